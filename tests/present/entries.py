"""Jobs for the list of jobs."""

from __future__ import annotations

from ddtop import registry
from tests import entries
from tests.entries import NOW, S


def entry(job: str, age_s: float = 60.0, **more: object) -> registry.JobEntry:
    """A live job of 8 ranks. `sender` is another host's, so only the heartbeat is
    checked.
    """
    told: dict[str, object] = {
        "host": "node1",
        "sender": "feed",
        "relay_pid": 1,
        "port": 1,
        "socket": "",
        "script": "train.py",
        "world_size": 8,
        "reporting": 8,
        "started_unix_ns": NOW - round(age_s * S),
        "heartbeat_unix_ns": NOW,
    }
    return entries.entry(job, **(told | more))


def ended(job: str, age_s: float = 60.0, **more: object) -> registry.JobEntry:
    return entry(
        job,
        age_s,
        **({"heartbeat_unix_ns": 0, "ended_unix_ns": NOW, "ended_reason": "cancelled"} | more),
    )
