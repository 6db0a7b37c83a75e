"""The load of the whole host. Read from /proc."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil

from ddtop.relay.disks import DiskWatch, Use
from ddtop.wire.records import Hello, HostLoad, HostState, ProcessState

# -- The load of the whole host, and how full its disks are. Read from /proc
#
# The cheap numbers are read at every look, the others every few looks.


SLOWLY_EVERY = 5
"""Looks, one a second, between two reads of what changes slowly."""


class HostWatch:
    """The numbers of the whole host, once a second."""

    def __init__(self) -> None:
        self._looks = 0
        self._times: tuple[int, int] | None = None
        self._memory_stall_ratio: float | None = None
        self._disks = DiskWatch()
        self._uses: dict[str, Use] = {}

    def look(self, hellos: Iterable[Hello]) -> HostLoad:
        """The host now. Check: `vmstat 1`, `cat /proc/pressure/memory`, `df -h`."""
        now = time.monotonic()
        if self._looks % SLOWLY_EVERY == 0:
            self._memory_stall_ratio = _memory_stall_ratio()
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
        return HostLoad(
            runnable,
            ratio,
            self._memory_stall_ratio,
            self._disks.disks(self._uses, now),
            self._disks.unanswered_paths(now),
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


def _memory_stall_ratio() -> float | None:
    try:
        text = Path("/proc/pressure/memory").read_text()
        return float(text[text.index("avg10=") + 6 :].split(None, 1)[0]) / 100
    except (OSError, ValueError, IndexError):
        return None


# -- The host's own numbers, by psutil


_T = TypeVar("_T")
SHORTAGE_S = 0.1
"""Pause after a shortage of descriptors; without it, the same work would be tried again at once."""


class HostProbe:
    """One look a second; the first CPU figure is None, because a ratio needs two looks."""

    def __init__(self) -> None:
        self.host = socket.gethostname()
        self._me = psutil.Process()
        self._looked = False
        psutil.cpu_percent(interval=None)

    def look(self, processes: tuple[ProcessState, ...], **counters: object) -> HostState:
        """The host now. `counters` are further fields of the record.

        Check: `top`, `free -b`, `df /dev/shm`.
        """
        memory = _ask_kernel(psutil.virtual_memory)
        cpu_percent = _ask_kernel(psutil.cpu_percent)
        shm = _ask_kernel(lambda: os.statvfs("/dev/shm"))
        times, own = _ask_kernel(self._me.cpu_times), _ask_kernel(self._me.memory_info)
        first, self._looked = not self._looked, True
        return HostState(
            host=self.host,
            cores=len(os.sched_getaffinity(0)),
            cpu_ratio=None if first or cpu_percent is None else cpu_percent / 100,
            memory_total_bytes=memory and memory.total,
            memory_available_bytes=memory and memory.available,
            shm_total_bytes=shm and shm.f_blocks * shm.f_frsize,
            shm_free_bytes=shm and shm.f_bavail * shm.f_frsize,
            processes=processes,
            relay_pid=os.getpid(),
            relay_cpu_ns=int((times.user + times.system) * 1e9) if times else 0,
            relay_rss_bytes=own.rss if own else 0,
            **counters,  # type: ignore[arg-type]  # names and types are the record's
        )


def _ask_kernel(what: Callable[[], _T]) -> _T | None:
    """The answer, or None if the kernel cannot be asked.

    Other peers may have used up all descriptors of this process.
    """
    try:
        return what()
    except (OSError, psutil.Error):
        return None


@contextlib.contextmanager
def without_descriptors_left() -> Iterator[None]:
    """Continue if no descriptor is left: values that need one are not measured this time.

    Any other error is raised.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        time.sleep(SHORTAGE_S)
