"""Jobs for the tests of `exception_swallowed` and of the policy."""

from __future__ import annotations

from ddtop.wire.samples import Catching, Caught
from tests.jobs import FakeJob

SECOND = 1_000_000_000


def caught(name="ValueError", line=88, count=60, windows=6, ago=0):
    return Caught(name, "/home/ada/model.py", "Net.forward", line, count, windows, ago)


def catching(*found, windows=6, omitted=0):
    return Catching(windows, windows * SECOND // 4, found, omitted)


def job_in_which(*catches):
    """A rank each, with what it catches."""
    job = FakeJob(len(catches))
    for rank, what in zip(job.ranks, catches, strict=True):
        rank.says = {"catching": what}
    job.trains(10)
    return job
