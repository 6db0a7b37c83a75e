"""Jobs that are killed, some of them after a hang."""

from __future__ import annotations

from tests import jobs
from tests.jobs import FakeJob, hung


def seen_from_the_start() -> FakeJob:
    """A job in its tenth second, whose viewer was there from the start."""
    job = jobs.trained()
    job.joined_s = 0.0
    return job


def launcher_ends_the_others(job: FakeJob, first: int) -> FakeJob:
    """torchrun ends the others within a second after a rank has ended."""
    for rank in job.ranks:
        if rank.number != first:
            rank.ends(signal=15, later_s=0.3 + 0.01 * rank.number)
    return job.passes(5)


def killed_after_a_hang(first: int = 2) -> FakeJob:
    job = hung(10, joined_s=0.0)
    job.ranks[first].ends(signal=9)
    return launcher_ends_the_others(job, first)
