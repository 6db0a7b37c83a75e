"""Verdicts on jobs under MPI, where a waiting rank uses a whole core."""

from __future__ import annotations

import pytest

from ddtop.wire.mpi import MpiPart
from ddtop.wire.records import OpenCall
from tests.mpi_jobs import WORLD, MpiJob
from tests.ranks import unix_ns


def test_ranks_that_spin_in_a_barrier_wait_for_the_one_that_sleeps():
    job = MpiJob().passes(10)
    job.in_collective("Barrier", 0, 1)
    job.ranks[2].stands_at("load", "/home/ada/sim.py", 40)
    finding = job.passes(8).finds("critical", "not-in-collective", 2)

    assert finding.victims == (0, 1)
    assert "ranks 0,1 wait for it in Barrier #21 of MPI_COMM_WORLD" in finding.summary
    assert job.snapshot().rank(0).process.spinning


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"nbytes": 800}, {"nbytes": 1600}, "Allreduce of 800 bytes"),
        ({"peer": 0}, {"peer": 2}, "root 2"),
    ],
)
def test_lengths_and_roots_that_differ_are_a_mismatch_of_the_minority(one, other, said):
    name = "Bcast" if "peer" in one else "Allreduce"
    job = MpiJob(4).passes(10)
    job.in_collective(name, 0, 1, 3, **one)
    job.in_collective(name, 2, **other)
    finding = job.passes(8).finds("critical", "collective-mismatch", 2)

    assert said in finding.summary


@pytest.mark.parametrize(
    ("one", "more", "other"),
    [("Allreduce", {"nbytes": 800}, "Allreduce"), ("Barrier", {}, "barrier")],
    ids=["a length that one side does not know", "a lowercase twin"],
)
def test_calls_that_may_be_one_collective_are_no_mismatch(one, more, other):
    job = MpiJob().passes(10)
    job.in_collective(one, 0, **more)
    job.in_collective(other, 1)
    job.ranks[2].stands_at("load")

    assert job.passes(8).kinds() == [("critical", "not-in-collective", (2,))]


def test_a_rank_before_mpi_init_is_late_and_the_call_has_its_name():
    job = MpiJob(2)
    for rank in job.ranks:
        rank.mpi, rank.iteration, rank.phase, rank.trains = None, None, "starting", False
    job.ranks[0].calls = [OpenCall("MPI_Init", unix_ns(job.now))]
    job.ranks[0].cores = 1.0
    job.ranks[0].seen_outside = {"init_since_unix_ns": unix_ns(job.now)}
    job.ranks[1].stands_at("wait_for_licence")
    job.passes(0.5)
    job.ranks[0].reports = False
    finding = job.passes(12).finds("critical", "late-to-init", 1)

    assert "not in MPI_Init yet; rank 0 waits in MPI_Init for it" in finding.summary
    assert job.snapshot().rank(0).state.value == "joining"


@pytest.mark.parametrize(("root", "kinds"), [(0, []), (1, [("critical", "collective-mismatch")])])
def test_the_root_of_a_started_broadcast_is_that_with_which_it_began(root, kinds):
    job = MpiJob(2).passes(10)
    parts = (MpiPart("Ibcast", WORLD, job.done + 1),)
    begun = (MpiPart("Ibcast", WORLD, job.done + 1, 0, None, 80),)
    job.inside(0, job.call("Wait", parts=parts), done=begun)
    job.in_collective("Ibcast", 1, peer=root, nbytes=80)

    assert [(severity, kind) for severity, kind, _ in job.passes(4).kinds()] == kinds


@pytest.mark.parametrize(
    ("other", "kinds"),
    [("Create_intercomm", [("critical", "wait-cycle", (0, 1))]), ("Win.Fence", [])],
)
def test_ranks_that_all_make_communicators_and_make_none_do_not_make_the_same(other, kinds):
    """Two halves build a bridge with tags that differ."""
    job = MpiJob(2).passes(10)
    job.inside(0, job.call("Create_intercomm"))
    job.inside(1, job.call(other))

    assert job.passes(12).kinds() == kinds


@pytest.mark.parametrize(
    ("third", "kinds"),
    [("stands_at", [("critical", "not-in-collective", (1, 2))]), ("works_at", [])],
)
def test_a_fence_is_held_up_by_the_others_only_where_all_of_them_make_no_progress(third, kinds):
    """It is not known which ranks share the window."""
    job = MpiJob(3).passes(10)
    job.inside(0, job.call("Win.Fence"))
    job.ranks[1].stands_at("load", line=40)
    job.outside(1)
    getattr(job.ranks[2], third)("load", line=40)
    job.outside(2)

    assert job.passes(10).kinds() == kinds


@pytest.mark.parametrize(("call", "findings"), [("File.Write_all", 0), ("Barrier", 1)])
def test_a_collective_write_may_take_long_while_all_ranks_are_in_it(call, findings):
    """A checkpoint of a terabyte, or a file server that is busy. A barrier takes no time."""
    job = MpiJob().passes(10)
    job.in_collective(call, 0, 1, 2)

    stuck = [kind for kind in job.passes(20).ever() if kind[1] == "collective-stuck"]
    assert len(stuck) == findings
