"""`loader-stuck`: the main thread waits for a batch, and the worker that must deliver it has ended,
is stopped or makes no progress.

The rank cannot change that, so the finding is about the worker. A worker that works, however
slowly, is left to `not-in-collective`; so is a DataLoader without workers.
"""

from __future__ import annotations

from tests.jobs import FakeJob


def starving(number=1, world_size=3, **worker):
    """Rank `number` waits for a batch, and the others wait for that rank."""
    job = FakeJob(world_size).trains(10)
    job.ranks[number].waits_for_batch(**worker)
    job.passes(0.5)
    job.others_wait(number)
    return job
