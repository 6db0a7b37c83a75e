"""Stores and peers that cannot be reached or trusted, and ranks of different versions."""

import pytest

from tests.diagnosis.rules.rendezvous import all_enter, file_store, meets
from tests.diagnosis.rules.starting import enter
from tests.diagnosis.rules.stores_and_peers import dials
from tests.jobs import BASE, SECOND, FakeJob

# -- peer-unreachable


def test_a_peer_at_an_address_of_a_bridge_is_named_with_its_interface():
    finding = dials().passes(10).finds("critical", "peer-unreachable", 0)

    assert finding.summary.startswith(
        "rank 1 has reached the store, but not rank 0 at 172.17.0.1:41234 (a container bridge), in"
        " init_process_group for"
    )
    assert "rank 0 on node0: GLOO_SOCKET_IFNAME=docker0" in finding.evidence


def gave_up(hosts, attempt=0):
    """The host's own name resolves to 127.0.1.1, and each rank gives that address to the others."""
    job = meets(2, hosts=hosts, attempt=attempt)
    all_enter(job, 0, 1)
    job.passes(2)
    for rank in job.ranks:
        rank.raises(
            "RuntimeError",
            "Gloo connectFullMesh failed: SO_ERROR: Connection refused, remote=[127.0.1.1]:3492",
        )
        rank.ends(1)
    return job.passes(2).finds("critical", "peer-unreachable")


def test_ranks_that_gave_up_on_each_other_say_at_which_address():
    finding = gave_up(hosts=2)

    assert finding.victims == (0, 1)
    assert (
        "but not the others at 127.0.1.1:3492 (loopback: each host reaches only itself)"
        in finding.summary
    )
    assert finding.advice.startswith("name the interface that the hosts share")


def test_on_one_host_the_loopback_is_no_reason_and_a_restart_is():
    """The second attempt of torchrun got the addresses of the first one."""
    finding = gave_up(hosts=1, attempt=1)

    assert "but not the others at 127.0.1.1:3492, and gave up" in finding.summary
    assert finding.advice.startswith("start the job again by hand")


# -- stale-store


@pytest.mark.parametrize(
    "more",
    [{"bytes": 0}, {"bytes": None, "modified_unix_ns": None}, {"modified_unix_ns": BASE + SECOND}],
)
def test_a_file_that_is_empty_or_of_this_job_is_not_stale(more):
    """mkstemp made it a day ago, or it is not there yet, or rank 1 has just written it."""
    job = meets(2, **file_store(**more))
    enter(job, 0, 1)

    assert job.passes(7).ever() == []


# -- version-skew


def test_another_torch_on_one_rank_is_a_warning():
    job = FakeJob(3)
    for rank, version in zip(job.ranks, ("2.7.0", "2.7.0", "2.6.0"), strict=True):
        rank.told["torch"] = version
        job.say(rank.hello(), rank)
    finding = job.trains(3).finds("warning", "version-skew", 2)

    assert (
        finding.summary
        == "rank 2 runs different versions from the rest: torch (ranks 0,1: 2.7.0, rank 2: 2.6.0)"
    )


def test_two_copies_of_the_script_are_distinguished_by_their_text():
    job = FakeJob(2)
    for rank, digest in zip(job.ranks, ("3f2a0000", "9bc10000"), strict=True):
        rank.told["script_digest"] = digest
        job.say(rank.hello(), rank)
    finding = job.trains(3).finds("warning", "version-skew", 0, 1)

    assert "script (rank 0: train 3f2a0000, rank 1: train 9bc10000)" in finding.summary


# -- all ranks have joined


def test_a_start_that_does_not_return_though_all_have_come_is_no_ok():
    """After a restart the store had an address of the previous attempt."""
    job = meets(2)
    all_enter(job, 0, 1)
    early = job.passes(20).finding()
    late = job.passes(50).finding()

    assert (early.severity, early.kind, early.ranks) == ("warning", "collective-stuck", ())
    assert early.victims == (0, 1)
    assert (late.severity, late.kind) == ("critical", "collective-stuck")
    assert late.summary == (
        "ranks 0,1 have all been in init_process_group for 70 s; no rank is missing, and none"
        " makes progress"
    )


def test_a_restart_that_does_not_meet_is_told_to_start_anew():
    job = meets(2).trains(1)
    job.restarts()
    all_enter(job, 0, 1)

    assert job.passes(20).finding().advice.startswith("start the job again by hand")
