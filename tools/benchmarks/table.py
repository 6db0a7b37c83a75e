"""Rows of the one table that is printed, and the machine they were measured on."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from math import comb
from pathlib import Path

EACH_UP_TO = 24
"""More values than these nobody reads one by one."""


@dataclass(frozen=True)
class Row:
    """One number. `bar` None: for information only. `met` None: not measured, `detail` gives the
    reason.
    """

    what: str
    measured: str
    bar: str | None = None
    met: bool | None = None
    detail: str = ""
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    @property
    def verdict(self) -> str:
        """The last word of the row."""
        if self.bar is None:
            return ""
        return "not measured" if self.met is None else "met" if self.met else "NOT MET"


def limited(
    what: str, value: float, limit: float, unit: str, detail: str = "", digits: int = 3
) -> Row:
    """A number that should be at most `limit`."""
    return Row(what, f"{value:.{digits}f} {unit}", f"<= {limit:g} {unit}", value <= limit, detail)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % confidence interval of the median; None for fewer than six values.

    It follows from order statistics: each value is above the true median with a probability of one
    half, whatever the distribution. Outliers, which a shared machine has, move it little.
    """
    ordered, count = sorted(values), len(values)
    below, left_out = 0.0, 0
    while (below := below + comb(count, left_out) / 2**count) <= 0.025:
        left_out += 1
    return (ordered[left_out - 1], ordered[-left_out]) if left_out else None


def spread(values: Sequence[float], unit: str, digits: int = 3) -> str:
    """The confidence interval of the median of these values, and how many values there are."""
    found = interval(values)
    sure = "too few for an interval"
    if found is not None:
        low, high = (f"{one:+.{digits}f}" for one in found)
        sure = f"95 % interval of the median {low} to {high} {unit}"
    each = " ".join(f"{value:+.{digits}f}" for value in values)
    return f"n = {len(values)}, {sure}" + (f"; each {each}" if len(values) <= EACH_UP_TO else "")


def missing(what: str, why: str, bar: str | None = None) -> Row:
    """A number that could not be measured."""
    return Row(what, "-", bar, None, why)


def shown(rows: Iterable[Row]) -> str:
    """The table; a row's detail stands below it, its load average (1 min, when the row was
    measured) beside it.
    """
    rows = list(rows)
    cells = [("WHAT", "MEASURED", "BAR", "LOAD", "")]
    cells += [
        (row.what, row.measured, row.bar or "", f"{row.load:.2f}", row.verdict) for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = []
    for line, row in zip(cells, [None, *rows], strict=True):
        lines.append(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )
        if row is not None and row.detail:
            lines += [f"    {part}" for part in row.detail.splitlines()]
    return "\n".join(lines)


def machine() -> str:
    """Processor, its speed now, kernel, versions, date, load: without them numbers mean nothing."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(
        f"{name} {_version(name)}" for name in ("ddtop", "torch", "pyzmq", "textual")
    )
    return "\n".join(
        (
            (
                f"{time.strftime('%Y-%m-%d %H:%M %Z')}   load average"
                f" {' '.join(f'{one:.2f}' for one in os.getloadavg())}"
            ),
            f"{_processor()}, {cores} cores, {memory:.0f} GiB, Linux {platform.release()}",
            (
                f"Python {sys.version.split()[0]}, {versions}; a million additions take"
                f" {_yardstick_ms():.0f} ms"
            ),
        )
    )


def _yardstick_ms() -> float:
    """CPU time of a loop, the least of five: one machine is three times slower on some days."""

    def add() -> None:
        number = 0
        for one in range(1_000_000):
            number += one

    spent = []
    for _ in range(5):
        began = time.thread_time()
        add()
        spent.append(time.thread_time() - began)
    return min(spent) * 1000


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "-"
