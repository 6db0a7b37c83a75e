"""Jobs for the tests of `io_stall` and of the policy."""

from __future__ import annotations

from tests.jobs import FakeJob


def stalled(*ranks, **seen):
    """Four ranks train, then these are stuck in a write and the others wait."""
    job = FakeJob(4)
    job.trains(10)
    for number in ranks:
        job.ranks[number].is_stalled(**seen)
    job.others_wait(*ranks)
    return job
