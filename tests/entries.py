"""Entries of the registry, as a relay writes them."""

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
