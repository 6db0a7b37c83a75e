"""The load of the whole host, and how full its disks are. Read from /proc.

The cheap numbers are read at every look, the others every few looks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from ddtop.policy import Policy
from ddtop.relay.host.disks import DiskWatch, Use
from ddtop.wire.load import HostLoad
from ddtop.wire.records import Hello

SLOWLY_EVERY = 5
"""Looks, one a second, between two reads of what changes slowly."""


class HostWatch:
    """The numbers of the whole host, once a second."""

    def __init__(self, policy: Policy) -> None:
        self._looks = 0
        self._times: tuple[int, int] | None = None
        self._slow = HostLoad()
        self._disks = DiskWatch(policy)
        self._uses: dict[str, Use] = {}

    def look(self, hellos: Iterable[Hello]) -> HostLoad:
        """The host now. Check: `vmstat 1`, `cat /proc/pressure/cpu`, `df -h`."""
        now = time.monotonic()
        if self._looks % SLOWLY_EVERY == 0:
            self._slow = HostLoad(
                cpu_stall_ratio=_stalled("cpu"),
                memory_stall_ratio=_stalled("memory"),
                io_stall_ratio=_stalled("io"),
                swapped_pages=_swapped(),
            )
            self._uses = self._disks.ask(hellos, now)
        self._looks += 1
        runnable, steal, total = _stat()
        ratio = None
        if (
            self._times is not None
            and steal is not None
            and total is not None
            and total > self._times[1]
        ):
            ratio = max(0.0, (steal - self._times[0]) / (total - self._times[1]))
        self._times = (steal, total) if steal is not None and total is not None else None
        slow = self._slow
        return HostLoad(
            runnable,
            ratio,
            slow.cpu_stall_ratio,
            slow.memory_stall_ratio,
            slow.io_stall_ratio,
            slow.swapped_pages,
            self._disks.disks(self._uses, now),
            self._disks.unanswered(now),
        )


def _stat() -> tuple[int | None, int | None, int | None]:
    """(threads that run or want to, without this one, stolen ticks, all ticks)."""
    try:
        text = Path("/proc/stat").read_text()
        times = [int(word) for word in text[: text.index("\n")].split()[1:9]]
        runnable = int(text[text.index("procs_running") + 13 :].split(None, 1)[0])
    except (OSError, ValueError, IndexError):
        return None, None, None
    return max(runnable - 1, 0), times[7] if len(times) > 7 else None, sum(times)


def _stalled(what: str) -> float | None:
    try:
        text = Path(f"/proc/pressure/{what}").read_text()
        return float(text[text.index("avg10=") + 6 :].split(None, 1)[0]) / 100
    except (OSError, ValueError, IndexError):
        return None


def _swapped() -> int | None:
    try:
        words = Path("/proc/vmstat").read_text().split()
        return sum(int(words[words.index(name) + 1]) for name in ("pswpin", "pswpout"))
    except (OSError, ValueError, IndexError):
        return None
