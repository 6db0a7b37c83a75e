"""`io-stall`: the main thread stays in one uninterruptible sleep (state D), and its I/O does not
progress.

A rank that writes a large checkpoint is often in state D, but it wakes and its counters move. One
whose file server is dead does neither. Even SIGKILL does not end it before the server answers.
"""

from __future__ import annotations

from tests.jobs import trained


def stalled(*ranks, **seen):
    """Four ranks train, then these are stuck in a write and the others wait."""
    job = trained()
    for number in ranks:
        job.ranks[number].is_stalled(**seen)
    job.others_wait(*ranks)
    return job
