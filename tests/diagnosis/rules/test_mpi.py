"""Verdicts on jobs under MPI, where a waiting rank uses a whole core."""

from __future__ import annotations

from ddtop.wire.records import OpenCall
from tests.mpi_jobs import MpiJob
from tests.ranks import unix_ns


def test_ranks_that_spin_in_a_barrier_wait_for_the_one_that_sleeps():
    job = MpiJob().passes(10)
    job.in_collective("Barrier", 0, 1)
    job.ranks[2].stands_at("load", "/home/ada/sim.py", 40)
    finding = job.passes(8).finds("critical", "not-in-collective", 2)

    assert finding.victims == (0, 1)
    assert "ranks 0,1 wait for it in Barrier #21 of MPI_COMM_WORLD" in finding.summary
    assert job.snapshot().rank(0).process.spinning


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
