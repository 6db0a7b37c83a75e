"""Jobs of several hosts, one of which is not heard any more."""

from __future__ import annotations

from tests.spread import SpreadJob


def cut(world_size: int = 8, hosts: int = 4, host: str = "node2") -> SpreadJob:
    """All ranks train. Then no record of one host arrives any more."""
    job = SpreadJob(world_size, hosts).trains(6)
    job.goes_silent(host)
    return job


def down(seconds=12.0):
    """The host is down, so the others wait."""
    job = cut()
    job.others_wait(4, 5)
    return job.passes(seconds)
