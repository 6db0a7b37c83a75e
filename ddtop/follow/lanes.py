"""What a rank did in a second, as one number: the cells of its lane on the screen.

Only the difference of two reports says that: means over ten seconds lag behind, and means over
ranks hide the one that differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

WORK, COLLECTIVE, DATA, GPU, ASLEEP, GONE = range(6)
"""What a rank waited for in most of the time that it was not at work; GONE: it had ended."""
STEPS = 8
"""The share at work is kept in so many steps: more than a cell of the screen can show."""
ASLEEP_BELOW = 0.25
"""A thread that uses less than this share of a core for what looks like work sleeps instead: four
ranks may share one core."""


def cell_of(kind: int, work_ratio: float) -> int:
    """The number of a cell."""
    return kind * (STEPS + 1) + round(min(max(work_ratio, 0.0), 1.0) * STEPS)


def parts_of(cell: int) -> tuple[int, int]:
    """(what it waited for, steps of `STEPS` at work)."""
    return divmod(cell, STEPS + 1)


def joined_cells(cells: Sequence[int | None]) -> int | None:
    """Those of several seconds as one; None if none is known."""
    known = [parts_of(cell) for cell in cells if cell is not None]
    if not known:
        return None
    waits = [0] * (GONE + 1)
    for kind, work in known:
        waits[kind] += STEPS - work
    # Its end is the last that is known of a rank, however late in these seconds.
    kind = GONE if waits[GONE] else max(range(GONE), key=waits.__getitem__)
    return cell_of(kind, sum(work for _, work in known) / len(known) / STEPS)


def lane_cell(
    before: Sequence[int],
    now: Sequence[int],
    cpu_ratio: float | None,
    on_gpu: bool = False,
    in_collective: bool = False,
) -> int | None:
    """The cell between two values of `RankState.activity_samples`; None if nothing was sampled.

    `cpu_ratio`: cores that the process uses. `on_gpu`: what its main thread does may cost no CPU.
    `in_collective`: a wait for its GPU is one for the other ranks.
    """
    grown = [after - earlier for after, earlier in zip(now, (*before, *repeat(0, 7)), strict=False)]
    total = sum(grown)
    if len(grown) < 7 or total <= 0 or min(grown) < 0:
        return None
    loader, forward, backward, optimizer, collective, sync, other = (part / total for part in grown)
    work = forward + backward + optimizer + other
    # A main thread that only starts kernels sleeps while they run, but not in its own code.
    doubted = other if on_gpu else work
    asleep = 0.0
    if cpu_ratio is not None and cpu_ratio < ASLEEP_BELOW * doubted:
        asleep = doubted - cpu_ratio
    if in_collective:
        collective, sync = collective + sync, 0.0
    waits = ((collective, COLLECTIVE), (loader, DATA), (sync, GPU), (asleep, ASLEEP))
    most, kind = max(waits, key=lambda wait: wait[0])
    return cell_of(kind if most else WORK, work - asleep)
