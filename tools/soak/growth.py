"""Memory, descriptors and threads of a process over time."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from tools.benchmarks import table
from tools.benchmarks.procfs import memory_mib

SETTLED = 0.25
"""What grows in the first quarter is caches and history filling up."""
LOOKS_MIN = 12
SHOWN = 12


@dataclass(frozen=True)
class Use:
    """The resources of a process at a moment. Memory is what it shares with no other process."""

    at_s: float
    private_mib: float
    descriptors: int
    threads: int


@dataclass
class Life:
    """One process over time."""

    what: str
    uses: list[Use] = field(default_factory=list)

    def look(self, pid: int, now_s: float) -> None:
        """Record its resources now, if it still exists."""
        with contextlib.suppress(OSError, KeyError):
            folder = Path(f"/proc/{pid}")
            self.uses.append(
                Use(
                    now_s,
                    memory_mib(pid)["private"],
                    len(os.listdir(folder / "fd")),
                    len(os.listdir(folder / "task")),
                )
            )

    def settled(self) -> tuple[list[Use], list[Use]] | None:
        """The looks of the second quarter and of the last, without the very last look, when the
        process may be ending. None if it did not run long enough.
        """
        if len(self.uses) < LOOKS_MIN:
            return None
        begin = int(len(self.uses) * SETTLED)
        few = max(len(self.uses) // 4, 3)
        return self.uses[begin : begin + few], self.uses[-1 - few : -1]


def rows(what: str, lives: list[Life], limit_mib: float, limit_count: int) -> list[table.Row]:
    """The largest growth of one of these processes after its first quarter. Peaks are compared,
    because an allocator returns memory and takes it again.
    """
    mib, descriptors, threads, series = [], [], [], []
    for life in lives:
        ends = life.settled()
        if ends is None:
            continue
        first, last = ends
        mib.append(max(use.private_mib for use in last) - max(use.private_mib for use in first))
        descriptors.append(_floor(last, "descriptors") - _floor(first, "descriptors"))
        threads.append(_floor(last, "threads") - _floor(first, "threads"))
        some = life.uses[:: max(1, len(life.uses) // SHOWN)]
        series.append(f"{life.what}: {', '.join(f'{one.private_mib:.1f}' for one in some)} MiB")
    if not mib:
        why = "it was not there long enough"
        return [table.missing(f"{what}: grown", why, f"<= {limit_mib:g} MiB")]
    detail = "\n".join(series)
    return [
        table.limited(f"{what}: private memory grown", max(mib), limit_mib, "MiB", detail, 2),
        table.limited(f"{what}: descriptors grown", max(descriptors), limit_count, "", digits=0),
        table.limited(f"{what}: threads grown", max(threads), limit_count, "", digits=0),
    ]


def _floor(uses: list[Use], name: str) -> int:
    """The minimum over some looks: a viewer comes and goes, but a leak is in each look."""
    return min(getattr(use, name) for use in uses)
