"""Ranks of which only stacks are known."""

from __future__ import annotations

from ddtop.wire.records import COLLECTIVE, P2P, RUN, OutsideLook
from tests.jobs import FakeJob, unix_ns


def standing(*calls, quiet=True, absent=()):
    """Each rank sleeps in its call: (call, line)."""
    job = FakeJob(len(calls) + len(absent), run=RUN, absent=absent).trains(6)
    for rank, (call, line) in zip(job.ranks, calls, strict=False):
        kind = P2P if call in ("Send", "Recv") else COLLECTIVE
        now = unix_ns(job.now)
        rank.stands_at("train", line=line, waits_on=kind, callee=call, activity="collective")
        since = now if quiet else None
        rank.says["outside"] = OutsideLook(kind, call, now, True, quiet_since_unix_ns=since)
    return job


DIFFER = (("barrier", 19), ("backward", 12), ("backward", 12))
