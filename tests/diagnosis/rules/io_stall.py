"""Jobs in which a rank's main thread stays in one uninterruptible sleep (state D)."""

from tests.jobs import trained


def stalled(*ranks, **seen):
    """Four ranks train, then these are stuck in a write and the others wait."""
    job = trained()
    for number in ranks:
        job.ranks[number].is_stalled(**seen)
    job.others_wait(*ranks)
    return job
