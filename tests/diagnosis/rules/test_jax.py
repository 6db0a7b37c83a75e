"""Jobs of jax.distributed: their start in JAX's words, and waits that only stacks show."""

import pytest

from ddtop.policy import POLICY
from ddtop.say.calm import calm_text
from ddtop.wire.names import JAX_INIT
from ddtop.wire.records import COLLECTIVE, OpenCall, OutsideLook
from tests.diagnosis.rules.starting import early
from tests.jobs import FakeJob, unix_ns

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


def rests(job, number, call, line, quiet=True):
    """The rank sleeps in a computation, or elsewhere (no call)."""
    now, rank = unix_ns(job.now), job.ranks[number]
    waits = "collective" if call else None
    rank.stands_at("train", line=line, waits_on=waits, callee=call, activity=waits or "other")
    kind, quiet_since = (COLLECTIVE, now if quiet else None) if call else (None, None)
    rank.says["outside"] = OutsideLook(kind, call, now, True, quiet_since_unix_ns=quiet_since)


def test_a_rank_that_sleeps_while_others_are_in_a_computation_is_named_by_their_stacks():
    job = FakeJob(3).trains(6)
    for number, call in enumerate(("a computation", None, "a computation")):
        rests(job, number, call, 40 + number)
    finding = job.passes(8).finds("critical", "not-in-collective", 1)

    assert finding.summary.endswith("; ranks 0,2 wait for it in a computation, by their stacks")
    assert finding.evidence[-1].endswith("ddtop cannot read sequence numbers of JAX")


def parted(quiet=True, lines=(20, 40, 40)):
    job = FakeJob(3).trains(6)
    calls = ("process_allgather", "a computation", "a computation")
    for number, (call, line) in enumerate(zip(calls, lines, strict=True)):
        rests(job, number, call, line, quiet)
    return job


def test_ranks_that_all_sleep_in_different_computations_never_meet():
    """process_allgather under `if process_index() == 0`: the others are in the next step."""
    finding = parted().passes(8).finds("critical", "no-progress", 0)

    assert finding.victims == (1, 2)
    assert "rank 0 is in process_allgather (train.py:20 train)" in finding.summary


@pytest.mark.parametrize("job", [{"quiet": False}, {"lines": (40, 40, 40)}])
def test_devices_that_may_compute_and_one_place_are_no_proof(job):
    """On GPUs a long step looks the same. At one place all may wait for a slow network."""
    assert parted(**job).passes(12).ever() == []
