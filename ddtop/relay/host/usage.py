"""The host's own numbers, by psutil."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import psutil

from ddtop.wire.records import HostState, ProcessState

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
        memory = _asked(psutil.virtual_memory)
        cpu_percent = _asked(psutil.cpu_percent)
        shm = _asked(lambda: os.statvfs("/dev/shm"))
        times, own = _asked(self._me.cpu_times), _asked(self._me.memory_info)
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


def _asked(what: Callable[[], _T]) -> _T | None:
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
