"""Verdicts on MPI jobs in which some ranks are done, or leave without MPI_Finalize."""

from __future__ import annotations

import pytest

from tests.mpi_jobs import MpiJob

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
