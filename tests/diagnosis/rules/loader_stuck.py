"""Jobs for the tests of `loader_stuck` and of the policy."""

from __future__ import annotations

from tests.jobs import FakeJob


def starving(number=1, world_size=3, **worker):
    """Rank `number` waits for a batch, the others for it."""
    job = FakeJob(world_size)
    job.trains(10)
    job.ranks[number].waits_for_batch(**worker)
    job.passes(0.5)
    job.others_wait(number)
    return job
