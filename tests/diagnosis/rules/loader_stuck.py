"""Jobs in which a rank waits for a batch of a worker that makes no progress."""

from tests.jobs import FakeJob


def starving(number=1, world_size=3, **worker):
    """Rank `number` waits for a batch, and the others wait for that rank."""
    job = FakeJob(world_size).trains(10)
    job.ranks[number].waits_for_batch(**worker)
    job.passes(0.5)
    job.others_wait(number)
    return job
