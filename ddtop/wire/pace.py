"""How often the hub is sent the report of each rank: in a very large world less often.

Leaves and viewers work it out from the size of the world, so nobody has to say it. What a hub asks
for beyond that, it says: while most ranks are stuck, each report of those that are not.
"""

from __future__ import annotations

RANKS_PER_S = 16_384
"""Reports of ranks that a hub is sent each second: half of a core for the hub."""
HOST_SHARE = 4
"""The report of a host comes so many times as often. At 131,072 ranks that is every two seconds,
which is less than a silence."""
UNSTUCK = "unstuck"
"""Name of the `Reply` with which a hub asks a leaf for each report of its ranks that are not stuck,
and of its host. An older leaf ignores it."""
UNSTUCK_RANKS = 1024
"""A hub asks for that while at most so many ranks of the whole job are not stuck: the cause is
among them, and they add a sixteenth to what it is sent."""
UNSTUCK_S = 3.0
"""It asks once a second. So long after it has asked for the last time they report in turns."""


def rank_period_s(world_size: int) -> float:
    """Seconds between two reports of a rank to the hub."""
    return max(1.0, world_size / RANKS_PER_S)


def host_period_s(world_size: int) -> float:
    """Seconds between two reports of a host to the hub."""
    return max(1.0, rank_period_s(world_size) / HOST_SHARE)
