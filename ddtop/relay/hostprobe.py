"""The host's own numbers, by psutil."""

from __future__ import annotations

import os
import socket

import psutil

from ddtop.wire.records import HostState, ProcessState


class HostProbe:
    """One look a second; the first CPU figure is None, because a ratio needs two looks."""

    def __init__(self) -> None:
        self.host = socket.gethostname()
        self._me = psutil.Process()
        self._looked = False
        psutil.cpu_percent(interval=None)

    def look(self, processes: tuple[ProcessState, ...], **counters: object) -> HostState:
        """The host now. `counters` are further fields of the record. Check: `top`, `free -b`, `df /dev/shm`."""
        memory = psutil.virtual_memory()
        cpu = psutil.cpu_percent(interval=None) / 100
        shm_total: int | None
        shm_free: int | None
        try:
            shm = os.statvfs("/dev/shm")
            shm_total, shm_free = shm.f_blocks * shm.f_frsize, shm.f_bavail * shm.f_frsize
        except OSError:
            shm_total = shm_free = None
        times = self._me.cpu_times()
        first, self._looked = not self._looked, True
        return HostState(
            host=self.host,
            cores=len(os.sched_getaffinity(0)),
            cpu_ratio=None if first else cpu,
            memory_total_bytes=memory.total,
            memory_available_bytes=memory.available,
            shm_total_bytes=shm_total,
            shm_free_bytes=shm_free,
            processes=processes,
            relay_pid=os.getpid(),
            relay_cpu_ns=int((times.user + times.system) * 1e9),
            relay_rss_bytes=self._me.memory_info().rss,
            **counters,  # type: ignore[arg-type]  # names and types are the record's
        )
