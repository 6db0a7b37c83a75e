"""Calls that are open in ranks."""

from __future__ import annotations

from ddtop.wire.records import OpenCall
from tests.jobs import unix_ns


def calls(job, rank, name, peer):
    """From now on that rank is in a call that waits for single ranks."""
    one = job.ranks[rank]
    one.stands_at("exchange", "/home/ada/pipe.py", 30 + rank)
    one.calls.append(OpenCall(name, unix_ns(job.now), peer, 0, 1))
