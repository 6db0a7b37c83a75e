"""Verdicts on MPI jobs in which some ranks are done, or leave without MPI_Finalize."""

from __future__ import annotations

import pytest

from tests.diagnosis.rules.mpi_ends import _finalizing
from tests.mpi_jobs import MpiJob
from tests.ranks import unix_ns


def test_a_rank_in_finalize_has_left_and_is_no_worker_though_it_spins():
    job = MpiJob(2).passes(10)
    job.in_collective("Barrier", 0)
    job.ranks[1].works_at("main", line=99)
    job.outside(1, finalize_since_unix_ns=unix_ns(job.now))

    assert job.passes(10).kinds() == [("critical", "left-early", (1,))]


def test_a_rank_that_was_last_seen_in_a_call_and_exits_now_waits_for_nobody():
    """The interpreter ends, and its agent before it: no later sample replaces the last one."""
    job = MpiJob(2).passes(10)
    job.ranks[1].stands_at("main", waits_on="p2p")
    job.ranks[1].phase, job.ranks[1].seen_outside = "leaving", {"exiting": True}
    job.passes(0.5)
    job.ranks[1].reports = False
    job.in_collective("Barrier", 0)

    assert job.passes(10).kinds() == [("critical", "left-early", (1,))]


def test_the_rank_that_raised_and_hangs_in_finalize_is_named():
    job = MpiJob(2).passes(10)
    job.ranks[1].raises("ValueError", "boom")
    job.ranks[1].seen_outside = {"exiting": True}
    job.in_collective("Barrier", 0)
    finding = job.passes(5).finds("critical", "rank-crashed", 1)

    assert "its process is still alive" in finding.summary


def test_a_master_that_forgot_a_worker_is_named_with_it_and_not_who_is_done():
    job = MpiJob(3).passes(10)
    job.in_single(0, "recv", None, None)
    job.in_single(1, "recv", 0, None)
    _finalizing(job, 2)

    assert job.passes(10).kinds() == [("critical", "wait-cycle", (0, 1))]


def test_a_rank_that_leaves_without_finalize_went_first_though_the_launcher_kills_the_other():
    """os._exit(0) in one rank: mpirun ends the others, by SIGKILL."""
    job = MpiJob(2).passes(10)
    job.ranks[0].ends(0, exiting=False)
    job.ranks[1].ends(signal=9, later_s=0.05)

    assert job.passes(3).kinds() == [("critical", "left-early", (0,))]


def test_a_rank_that_hangs_while_the_others_are_in_finalize_is_named():
    job = MpiJob(3).passes(10)
    _finalizing(job, 0, 1)
    job.ranks[2].stands_at("save", line=77)
    job.outside(2)
    finding = job.passes(10).finds("critical", "not-in-collective", 2)

    assert finding.victims == (0, 1)
    assert "ranks 0,1 wait for it in MPI_Finalize" in finding.summary


def test_of_a_rank_that_waits_for_a_child_while_the_others_are_done_only_a_warning_is_given():
    job = MpiJob(2).passes(10)
    _finalizing(job, 0)
    job.ranks[1].stands_at("pack_results", waits_on="child")
    job.outside(1)

    assert job.passes(20).kinds() == [("warning", "not-in-collective", (1,))]


def test_ranks_that_wait_for_each_other_are_named_and_not_those_in_finalize():
    job = MpiJob(3).passes(10)
    _finalizing(job, 2)
    for rank in range(2):
        job.in_single(rank, "Ssend", 1 - rank, 3)

    assert job.passes(10).kinds() == [("critical", "wait-cycle", (0, 1))]


OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "3"}


def ended_by_signals(*ends, oom=None, environment=OPEN_MPI):
    """Each rank by (signal, seconds later)."""
    job = MpiJob(3)
    for rank in job.ranks:
        rank.told["environment"] = environment
        job.greet(rank)
    job.passes(10)
    for rank, (number, later_s) in zip(job.ranks, ends, strict=True):
        rank.ends(signal=number, later_s=later_s, oom=oom)
    job.passes(5)
    return job.ever()


def test_ranks_that_handle_sigterm_and_are_then_killed_by_mpirun_were_cancelled():
    """They save a checkpoint on SIGTERM, which takes longer than the second that mpirun waits."""
    found = ended_by_signals((9, 1.2), (9, 1.21), (9, 1.22))

    assert found == [("info", "cancelled", ())]


def test_one_rank_that_handles_sigterm_is_killed_after_the_others_have_ended():
    assert ended_by_signals((9, 1.3), (15, 0.0), (15, 0.01)) == [("info", "cancelled", ())]


@pytest.mark.parametrize(
    ("signals", "more", "first"),
    [
        pytest.param(
            [(15, 0.02), (9, 0.0), (15, 0.02)], {}, 1, id="before mpirun told the others to end"
        ),
        pytest.param(
            [(9, 1.3), (9, 0.0), (9, 1.31)], {}, 1, id="mpirun kills the others a second later"
        ),
        pytest.param(
            [(9, 0.0), (9, 0.01), (9, 0.02)], {"oom": True}, 0, id="the kernel kills all together"
        ),
        pytest.param(
            [(9, 0.0), (9, 0.01), (9, 0.02)], {"environment": {"PMI_RANK": "0"}}, 0,
            id="another launcher kills the others at once",
        ),
    ],
)  # fmt: skip
def test_the_rank_that_was_killed_first_is_the_cause(signals, more, first):
    assert ended_by_signals(*signals, **more) == [("critical", "rank-killed", (first,))]
