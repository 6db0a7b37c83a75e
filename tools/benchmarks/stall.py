"""For how long the agent holds up a main thread that computes: blocks of steps with the agent at
work and held, in one process.

Two processes differ by more than what is looked for (layout of memory, clock of the core); blocks
within one differ by the agent alone. Each block with the agent is compared with its neighbour
without.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from tools.benchmarks.stage import HERE, Stage, StageError
from tools.benchmarks.table import Row, spread

BUSY = HERE / "busy_rank.py"


def measure(pairs: int) -> Iterator[Row]:
    """Rows about one rank. `pairs`: the number of pairs of blocks."""
    with Stage("stall") as stage:
        stage.ranks(BUSY, 1, True, "--blocks", str(2 * pairs))
        stage.wait(60 + 12.0 * pairs)
        head, *blocks = stage.said(0)
    if not head["agent"]:
        raise StageError("no agent in the rank: is ddtop installed in this Python?")
    found = [_pair(blocks[at], blocks[at + 1]) for at in range(0, len(blocks), 2)]
    means = [statistics.mean(on) - statistics.mean(off) for on, off in found]
    lasts = [_p99(on) - _p99(off) for on, off in found]
    every_on, every_off = (
        [ms for on, _ in found for ms in on],
        [ms for _, off in found for ms in off],
    )
    middle = statistics.median(every_off)
    detail = (
        f"pairs of blocks: {spread(means, 'ms')}\na step is {middle:.2f} ms; medians of all steps"
        f" on {statistics.median(every_on):.3f}, off {middle:.3f} ms"
    )
    yield Row(
        "stall of a busy main thread a step, on - off",
        f"{statistics.median(means):+.3f} ms",
        detail=detail,
    )
    yield Row(
        "the same, 99th percentile of a block's steps",
        f"{statistics.median(lasts):+.3f} ms",
        detail=(
            f"{spread(lasts, 'ms')}\nof all steps on {_p99(every_on):.2f}, off"
            f" {_p99(every_off):.2f} ms; longest on {max(every_on):.2f}, off"
            f" {max(every_off):.2f} ms"
        ),
    )


def _pair(first: dict[str, Any], second: dict[str, Any]) -> tuple[list[float], list[float]]:
    """(on, off) step times."""
    on, off = (second, first) if first["held"] else (first, second)
    if on["held"] or not off["held"]:
        raise StageError("blocks do not alternate")
    return on["ms"], off["ms"]


def _p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]
