"""Jobs for the list of jobs."""

from __future__ import annotations

from ddtop import registry

SECOND = 1_000_000_000


NOW = 1_700_000_000 * SECOND


def entry(job: str, age_s: float = 60.0, **more: object) -> registry.JobEntry:
    """A live job of 8 ranks. `sender` is another host's, so only the heartbeat is
    checked.
    """
    told: dict[str, object] = {
        "schema": registry.SCHEMA,
        "job": job,
        "run": "r1",
        "host": "node1",
        "sender": "feed",
        "relay_pid": 1,
        "relay_start_ticks": 1,
        "address": "127.0.0.1",
        "port": 1,
        "socket": "",
        "script": "train.py",
        "world_size": 8,
        "reporting": 8,
        "started_unix_ns": NOW - round(age_s * SECOND),
        "heartbeat_unix_ns": NOW,
    }
    return registry.JobEntry(**(told | more))  # type: ignore[arg-type]


def ended(job: str, age_s: float = 60.0, **more: object) -> registry.JobEntry:
    return entry(
        job,
        age_s,
        **({"heartbeat_unix_ns": 0, "ended_unix_ns": NOW, "ended_reason": "cancelled"} | more),
    )
