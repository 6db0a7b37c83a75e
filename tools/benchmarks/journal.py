"""What the journal costs the relay: two relays of eight ranks each side by side, one with and one
without it.

Both are measured over the same seconds, so that what else the machine does is in both; and the
journal's own thread by itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from ddtop import registry
from tests.journals import read_journal
from tools.benchmarks import procfs
from tools.benchmarks.stage import PLAIN, Stage
from tools.benchmarks.table import Row, limited, spread

CPU_BAR_PERCENT = 1.0
RANKS = 8
SETTLE_S = 6.0


class _Journalled(Stage):
    """A stage whose relay keeps a journal of so many MiB."""

    def __init__(self, name: str, mib: int) -> None:
        super().__init__(name)
        self._mib = mib

    def environment(self, watched: bool, **more: str) -> dict[str, str]:
        return super().environment(watched, DDTOP_JOURNAL_MIB=str(self._mib), **more)


def measure(windows: int, seconds: float) -> Iterator[Row]:
    """The difference, and the thread."""
    with _Journalled("without", 0) as without:
        without.ranks(PLAIN, RANKS, True)
        plain = without.entry(RANKS)
        with _Journalled("with", 64) as stage:
            stage.ranks(PLAIN, RANKS, True)
            entry = stage.entry(RANKS)
            path = registry.journal_path(entry.job, entry.run)
            stage.wait_for("journal", path.exists)
            time.sleep(SETTLE_S)
            began_bytes, began = path.stat().st_size, time.monotonic()
            more, own = [], []
            for _ in range(windows):
                found = _window(entry.relay_pid, plain.relay_pid, seconds)
                more.append(found[0])
                own.append(found[1])
            per_s = (path.stat().st_size - began_bytes) / (time.monotonic() - began)
            frames = len(read_journal(path).frames)
    detail = f"windows of {seconds:.0f} s: {spread(more, '%', 2)}"
    yield limited(
        f"journal, {RANKS} ranks: CPU of the relay with it less that without",
        median(more),
        CPU_BAR_PERCENT,
        "% of a core",
        detail,
        digits=2,
    )
    detail = f"{per_s / 1024:.1f} KiB a second on disk, {frames} frames\n{spread(own, '%', 2)}"
    yield limited(
        f"journal, {RANKS} ranks: CPU of its own thread",
        median(own),
        CPU_BAR_PERCENT,
        "% of a core",
        detail,
        digits=2,
    )


def _window(pid: int, other: int, seconds: float) -> tuple[float, float]:
    """(CPU of the relay with a journal less that of the other, CPU of the journal thread), in
    percent of a core.
    """
    began = time.monotonic()
    before = procfs.cpu_ns(pid), procfs.cpu_ns(other), _thread_ns(pid)
    time.sleep(seconds)
    after = procfs.cpu_ns(pid), procfs.cpu_ns(other), _thread_ns(pid)
    one, two, own = (now - then for now, then in zip(after, before, strict=True))
    per_percent = (time.monotonic() - began) * 1e7
    return (one - two) / per_percent, own / per_percent


def _thread_ns(pid: int) -> int:
    """CPU of the threads that are neither the first nor ZeroMQ's."""
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        if int(task.name) != pid and not (task / "comm").read_text().startswith("ZMQ"):
            found += int((task / "schedstat").read_text().split()[0])
    return found
