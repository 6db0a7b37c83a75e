"""The position of each rank in the grid of parallel groups: dp 0, tp 3, pp 1.

A rank knows its own place in each of its groups, so its coordinates come from its own report. The
reports of all ranks together show which dimensions make the grid. Flattened and joint groups
(dp_cp, mp) are not dimensions of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import combinations
from math import prod

from ddtop.model.facts import Axis, Coordinates
from ddtop.wire.names import EXPERTS, ORDER, WHOLE, rank_of
from ddtop.wire.records import BESIDE, Group, place_in, size_of

AXES_MOST = 6
DIMENSIONS_MOST = 12
"""The grid is searched among so many dimensions: at most 2,500 combinations."""


def coordinates_of(groups: Iterable[Group], rank: int) -> Coordinates:
    """(meaning, place, size) of each of the rank's groups that has a meaning.

    The place is the rank's number in the group, as `torch.distributed.get_rank(group)` says it.
    """
    found: dict[str, tuple[str, int, int]] = {}
    for group in groups:
        if not group.meanings or group.name.endswith(BESIDE):
            continue
        place = place_in(group, rank)
        if place is None:
            continue
        for meaning in group.meanings:
            if meaning not in WHOLE:
                found.setdefault(meaning, (meaning, place, size_of(group)))
    return tuple(found[meaning] for meaning in sorted(found, key=rank_of))


def axes_of(ranks: Collection[Coordinates], world_size: int) -> tuple[Axis, ...]:
    """The dimensions of the grid, outermost first.

    The product of their sizes is the world size, and no two ranks have the same coordinates. If no
    dimensions have this property, the result is as many of them as fit into the world. A dimension
    of size 1 is left out.
    """
    sizes: dict[str, int] = {}
    for rank in ranks:
        for meaning, _, size in rank:
            sizes[meaning] = max(size, sizes.get(meaning, 0))
    names = [name for name in sorted(sizes, key=rank_of) if sizes[name] > 1][:DIMENSIONS_MOST]
    # Experts' groups cut the same ranks another way: dp 4 is also edp 2 x ep 2.
    plain = [name for name in names if name in ORDER and name not in EXPERTS]
    for some in (plain, names):
        for chosen in _choices(some, sizes, world_size):
            if _tells_apart(ranks, chosen):
                return tuple(Axis(name, sizes[name]) for name in chosen)
    cells = 1
    fitting: list[Axis] = []
    for name in names:
        if cells * sizes[name] <= world_size:
            cells *= sizes[name]
            fitting.append(Axis(name, sizes[name]))
    return tuple(fitting)


def _choices(names: list[str], sizes: dict[str, int], world_size: int) -> Iterator[tuple[str, ...]]:
    """Sets of dimensions whose product is the world size, those with most dimensions first."""
    for count in range(min(len(names), AXES_MOST), 0, -1):
        for chosen in combinations(names, count):
            if prod(sizes[name] for name in chosen) == world_size:
                yield chosen


def _tells_apart(ranks: Collection[Coordinates], chosen: tuple[str, ...]) -> bool:
    """Whether each rank has all of these dimensions, and no two have the same coordinates."""
    wanted, seen = frozenset(chosen), set()
    for rank in ranks:
        places = tuple([(name, place) for name, place, _ in rank if name in wanted])
        if len(places) < len(chosen) or places in seen:
            return False
        seen.add(places)
    return True
