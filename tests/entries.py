"""Entries of the registry, as a relay writes them."""

import time

from ddtop import registry
from ddtop.registry import JobEntry

S = 1_000_000_000


NOW = 1_700_000_000 * S


def entry(job="train", run="r1", **more):
    """A live job of another host, unless said otherwise."""
    given = {
        "schema": registry.SCHEMA,
        "host": "node0",
        "sender": "0" * 12,
        "relay_pid": 4730,
        "relay_start_ticks": 1,
        "address": "127.0.0.1",
        "port": 5000,
        "socket": "/tmp/x.sock",
        "script": "train",
        "world_size": 4,
        "reporting": 4,
        "started_unix_ns": NOW - 60 * S,
        "heartbeat_unix_ns": NOW - 5 * S,
    }
    return JobEntry(job=job, run=run, **(given | more))


def fresh(job="train", age_s=60.0, heard_ago_s=0.0, **more):
    """One of a job of this age, whose relay has written it so long ago."""
    now = time.time_ns()
    times = {
        "started_unix_ns": now - round(age_s * S),
        "heartbeat_unix_ns": now - round(heard_ago_s * S),
    }
    return entry(job, **(times | more))


def left(job="train", heard_ago_s=50.0, reason="finished", **more):
    """One that a relay left on this host when its job ended, so long ago."""
    ended = time.time_ns() - round(heard_ago_s * S)
    given = {"ended_unix_ns": ended, "ended_reason": reason, "reporting": 0}
    return fresh(job, heard_ago_s + 10.0, heard_ago_s, **(given | more))
