"""Jobs of several hosts of which one is not heard any more."""

from __future__ import annotations

from tests.spread import SpreadJob


def cut(world_size: int = 8, hosts: int = 4, host: str = "node2") -> SpreadJob:
    """All train; then nothing of one host comes through any more."""
    job = SpreadJob(world_size, hosts)
    job.trains(6)
    job.goes_silent(host)
    return job
