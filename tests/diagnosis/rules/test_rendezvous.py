"""Ranks that run and do not find each other: in the wrong place, twice, or at an old file."""

import msgspec
import pytest

from ddtop.wire.records import StackFrame
from tests.diagnosis.rules.rendezvous import all_enter, meets, starts_a_twin
from tests.diagnosis.rules.starting import enter

# -- duplicate-rank


@pytest.mark.parametrize(
    "told",
    [
        {"environment": {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "31007"}},
        {"environment": {"MASTER_PORT": "31007"}, "inside": False, "joined": True},
        {"world_size": 1},
        {"init_method": "tcp://127.0.0.1:31007"},
        {"inside": False},
        {"inside": False, "joined": True, "waits": False},
        {"above": 4999},
    ],
)
def test_a_child_that_makes_another_group_or_has_made_it_is_no_duplicate(told):
    assert "duplicate-rank" not in [kind for _, kind, _ in starts_a_twin(**told).ever()]


# -- rendezvous-mismatch


def test_a_rank_with_another_port_is_the_odd_one():
    job = meets(3, environments={2: {"MASTER_PORT": "29501"}})
    all_enter(job, 0, 1)
    all_enter(
        job, 2, port=29501, sockets=(), probe="refused", listener_pid=None, listener_ours=None
    )
    finding = job.passes(7).finds("critical", "rendezvous-mismatch", 2)

    assert "(ranks 0,1: 127.0.0.1:29500, rank 2: 127.0.0.1:29501)" in finding.summary
    assert (
        "rank 2 (pid 4802) → 127.0.0.1:29501: no connection, the relay tried: refused; nothing"
        " listens there" in (finding.evidence)
    )


def test_of_two_ranks_with_two_ports_the_one_without_the_store_is_odd():
    job = meets(2, environments={1: {"MASTER_PORT": "29501"}})
    all_enter(job, 0)
    all_enter(
        job, 1, port=29501, sockets=(), probe="refused", listener_pid=None, listener_ours=None
    )

    assert job.passes(7).kinds() == [("critical", "rendezvous-mismatch", (1,))]


def test_a_world_size_that_fewer_processes_contradict_is_the_odd_one():
    """One process has WORLD_SIZE=2, the other WORLD_SIZE=3."""
    job = meets(3, absent=[2])
    job.ranks[0].told["world_size"] = 2
    all_enter(job, 0, 1)
    finding = job.passes(7).finds("critical", "rendezvous-mismatch", 1)

    assert finding.summary.startswith("WORLD_SIZE differs between ranks (rank 0: 2, rank 1: 3)")


def test_backends_that_have_nothing_in_common_differ():
    job = meets(3)
    for rank, backend in zip(job.ranks, ("gloo", "gloo", "mpi"), strict=True):
        rank.told["backend"] = backend
    all_enter(job, 0, 1, 2)

    assert job.passes(7).kinds() == [("critical", "rendezvous-mismatch", (2,))]


# -- master-unreachable


@pytest.mark.parametrize(
    ("probe", "why"),
    [
        ("timed out", "no answer: packets are dropped"),
        ("name not found", "no such host name"),
        ("unreachable", "no route to that host"),
    ],
)
def test_an_address_that_leads_nowhere_is_unreachable_for_those_who_have_it(probe, why):
    job = meets(2)
    all_enter(
        job,
        0,
        1,
        sockets=("SYN_SENT",),
        probe=probe,
        local=False,
        listener_pid=None,
        listener_ours=None,
    )
    finding = job.passes(7).finds("critical", "master-unreachable", 0, 1)

    assert finding.summary.startswith(f"ranks 0,1 cannot reach the store at 127.0.0.1:29500 ({why}")


def test_rank_0_that_listens_here_under_an_address_of_another_host_says_so():
    job = meets(2)
    all_enter(job, 0, 1, sockets=("CLOSE_WAIT",), probe="open", local=False)
    job.passes(7)

    assert "rank 0 listens on this host, which has a different address" in job.finding().summary


def test_a_refusal_while_rank_0_is_not_there_says_that_rank_0_is_missing():
    job = meets(3, absent=[0])
    all_enter(job, 1, 2, sockets=(), probe="refused", listener_pid=None, listener_ours=None)

    assert job.passes(10).ever() == [("critical", "rank-missing", (0,))]


def test_a_refusal_while_rank_0_sleeps_before_init_says_that_rank_0_is_late():
    job = meets(2)
    job.ranks[0].stands_at("prepare", line=5)
    all_enter(job, 1, sockets=(), probe="refused", listener_pid=None, listener_ours=None)

    assert job.passes(9).ever() == [("critical", "late-to-init", (0,))]


def test_ranks_that_gave_up_without_a_connection_could_not_reach_the_store():
    job = meets(2)
    all_enter(
        job,
        0,
        1,
        sockets=("SYN_SENT",),
        probe="timed out",
        local=False,
        listener_pid=None,
        listener_ours=None,
    )
    job.passes(7)
    for rank in job.ranks:
        rank.raises(
            "DistNetworkError",
            "The client socket has timed out after 1800000ms while trying to connect to (a, 1).",
        )
        rank.ends(1)
    finding = job.passes(2).finds("critical", "master-unreachable", 0, 1)

    assert (
        finding.summary
        == "ranks 0,1 cannot reach the store at 127.0.0.1:29500 and gave up in init_process_group"
    )


STRANGER = {"listener_pid": 99, "listener_ours": False, "listener_command": "python old.py"}


@pytest.mark.parametrize(
    ("function", "kind"), [("init_process_group", "master-unreachable"), ("serve", "rank-crashed")]
)
def test_a_rank_that_fails_before_its_agent_has_reported_the_call_is_known_by_its_traceback(
    function, kind
):
    """A port that is in use ends init_process_group within milliseconds."""
    job = meets(2)
    all_enter(job, 1, **STRANGER)
    rank = job.ranks[0]
    rank.raises("DistNetworkError", "failed to listen. name: EADDRINUSE")
    frames = (StackFrame("main", "/home/ada/t.py", 3), StackFrame(function, "/lib/c10d.py", 9))
    rank.exception = msgspec.structs.replace(rank.exception, frames=frames)
    rank.ends(1)
    job.passes(3)

    assert rank.hello().init_unix_ns is None
    assert job.finding().kind == kind


def test_a_stranger_on_the_port_is_named_and_the_rank_that_could_not_listen():
    """A run of yesterday listens: rank 0 dies, rank 1 is connected to the wrong store."""
    job = meets(2)
    all_enter(job, 1, **STRANGER)
    enter(job, 0)
    job.ranks[0].raises(
        "DistNetworkError", "failed to listen on any local network address. name: EADDRINUSE"
    )
    job.ranks[0].ends(1)
    finding = job.passes(3).finds("critical", "master-unreachable", 0, 1)

    assert (
        "rank 0 could not listen: 127.0.0.1:29500 is held by pid 99 (python old.py)"
        in finding.summary
    )
    assert "kill 99" in finding.advice


def test_another_users_listener_is_named_by_its_number():
    job = meets(2)
    all_enter(job, 1, listener_pid=None, listener_ours=False, listener_user="uid 1003")

    assert (
        "is held by a process of uid 1003, which does not belong to this job"
        in job.passes(7).finding().summary
    )
