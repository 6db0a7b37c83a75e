"""Ranks of JAX that wait for each other."""

from __future__ import annotations

from ddtop.wire.records import COLLECTIVE, OutsideLook
from tests.jobs import FakeJob, unix_ns


def rests(job, number, call, line, quiet=True):
    """The rank sleeps in a computation, or elsewhere (no call)."""
    now, rank = unix_ns(job.now), job.ranks[number]
    waits = "collective" if call else None
    rank.stands_at("train", line=line, waits_on=waits, callee=call, activity=waits or "other")
    kind, quiet_since = (COLLECTIVE, now if quiet else None) if call else (None, None)
    rank.says["outside"] = OutsideLook(kind, call, now, True, quiet_since_unix_ns=quiet_since)


def parted(quiet=True, lines=(20, 40, 40)):
    job = FakeJob(3).trains(6)
    calls = ("process_allgather", "a computation", "a computation")
    for number, (call, line) in enumerate(zip(calls, lines, strict=True)):
        rests(job, number, call, line, quiet)
    return job
