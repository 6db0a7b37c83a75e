"""A job that hangs."""

from __future__ import annotations

from tests.jobs import trained


def hangs(seconds=60):
    """Rank 2 sleeps, and the others wait for it for this long."""
    job = trained()
    job.ranks[2].stands_at("main", "train.py", 40)
    job.others_wait(2)
    return job.passes(seconds)
