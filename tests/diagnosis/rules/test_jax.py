"""Jobs of jax.distributed: their start in JAX's words, and waits that only stacks show."""

import pytest

from ddtop.policy import POLICY
from ddtop.say.calm import calm_text
from ddtop.wire.names import JAX_INIT
from ddtop.wire.records import OpenCall
from tests.diagnosis.rules.jax import parted
from tests.diagnosis.rules.starting import early
from tests.jobs import unix_ns

# -- the start


def starts(*addresses, absent=()):
    """These ranks are in initialize; each has its coordinator's address."""
    job = early(3, absent=absent)
    for rank, address in zip(job.ranks, addresses, strict=True):
        rank.claim = "init"
        rank.told |= {"backend": "jax", "init_method": f"tcp://{address}"}
        rank.told["init_timeout_ms"] = 300_000
        if rank.number not in absent:
            rank.stands_at("main", line=30, waits_on="collective", callee="initialize")
            rank.is_in_init()
            rank.calls = [OpenCall(JAX_INIT, unix_ns(job.now))]
    return job


def test_a_missing_process_is_named_in_the_words_of_jax():
    job = starts(*3 * ["10.0.0.1:8476"], absent=(1,))
    assert calm_text(job.passes(2).snapshot(), POLICY) == "starting: 2/3 ranks seen, not yet 1"
    finding = job.passes(8).finds("critical", "rank-missing", 1)

    assert finding.summary == (
        "rank 1 has not joined: num_processes is 3, ranks 0,2 wait in jax.distributed.initialize"
        " (coordinator 10.0.0.1:8476), 10 s so far; no process with process_id=1 was seen on any"
        " host that reports"
    )
    assert finding.advice == (
        "num_processes is 3, but 2 processes joined: start as many as num_processes says;"
        " jax.distributed.initialize times out in 4 min 50 s"
    )


def test_a_process_with_another_port_is_named_in_the_words_of_jax():
    job = starts("127.0.0.1:8476", "127.0.0.1:8476", "127.0.0.1:8477")
    text = calm_text(job.passes(2).snapshot(), POLICY)
    assert text == "starting: 3/3 ranks not in jax.distributed yet, 3 in jax.distributed.initialize"
    finding = job.passes(8).finds("critical", "rendezvous-mismatch", 2)

    assert finding.summary.startswith("coordinator_address differs between ranks (ranks 0,1: 127.")
    assert finding.advice == "give all ranks the same coordinator_address"


# -- waits


@pytest.mark.parametrize("job", [{"quiet": False}, {"lines": (40, 40, 40)}])
def test_devices_that_may_compute_and_one_place_are_no_proof(job):
    """On GPUs a long step looks the same. At one place all may wait for a slow network."""
    assert parted(**job).passes(12).ever() == []
