"""Jobs in which long waits are usual."""

from __future__ import annotations

from tests.jobs import FakeJob


def used_to(wait_s: float, times: int = 2) -> FakeJob:
    """A job that trains, and whose ranks have waited this long for each other before."""
    job = FakeJob(2)
    for rank in job.ranks:
        rank.healthy_wait_ms = 1000 * wait_s
        rank.usual_wait_ms = 1000 * wait_s if times > 1 else 20.0
    return job.trains(10)


def validated(job: FakeJob, seconds: float, then_s: float = 60.0) -> None:
    """Rank 0 validates for this long while the others wait. Then the job trains."""
    job.ranks[0].works_at("validate")
    job.others_wait(0)
    job.passes(seconds)
    job.ranks[0].passes_through()
    job.goes_on()
    job.trains(then_s)
