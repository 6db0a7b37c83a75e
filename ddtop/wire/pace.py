"""How often the hub is sent the report of each rank: in a very large world less often.

Leaves and viewers compute it from the world size, so it does not have to be sent. While most ranks
are stuck, a hub asks for more: each report of the ranks that are not.
"""

from __future__ import annotations

RANKS_PER_S = 16_384
"""Reports of ranks that a hub receives each second: half of a core for the hub."""
HOST_SHARE = 4
"""A host reports this many times as often. At 131,072 ranks that is every two seconds, which does
not count as silence."""
UNSTUCK = "unstuck"
"""Name of the `Reply` with which a hub asks a leaf for each report of its ranks that are not stuck,
and of its host. An older leaf ignores it."""
UNSTUCK_RANKS = 1024
"""A hub asks for that while at most so many ranks of the whole job are not stuck: the cause is
among them, and they add a sixteenth to what it receives."""
UNSTUCK_S = 3.0
"""The hub asks once a second. This long after its last request, the ranks report in turns again."""


def rank_period_s(world_size: int) -> float:
    """Seconds between two reports of a rank to the hub."""
    return max(1.0, world_size / RANKS_PER_S)


def host_period_s(world_size: int) -> float:
    """Seconds between two reports of a host to the hub."""
    return max(1.0, rank_period_s(world_size) / HOST_SHARE)
