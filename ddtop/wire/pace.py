"""How often the hub is sent the report of each rank: in a very large world less often.

Leaves and viewers work it out from the size of the world, so nobody has to say it.
"""

from __future__ import annotations

RANKS_PER_S = 16_384
"""Reports of ranks that a hub is sent each second: half of a core for the hub."""
HOST_SHARE = 4
"""The report of a host comes so many times as often. At 131,072 ranks that is every two seconds,
which is less than a silence."""


def rank_period_s(world_size: int) -> float:
    """Seconds between two reports of a rank to the hub."""
    return max(1.0, world_size / RANKS_PER_S)


def host_period_s(world_size: int) -> float:
    """Seconds between two reports of a host to the hub."""
    return max(1.0, rank_period_s(world_size) / HOST_SHARE)
