"""What the host's load does to a rank, and how full its disks are. Read from /proc and the cgroup files.

The cheap numbers are read at every look, the others every few: they cost a system call or more each and change slowly.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ddtop.relay import cgroup
from ddtop.wire.load import Disk, HostLoad, ProcessLoad
from ddtop.wire.records import Hello

SLOWLY_EVERY = 5
"""Looks, one a second, between two reads of what changes slowly."""
_MAJOR_FAULTS = 9
"""Field 12 of /proc/PID/stat, counted from the third."""
DISKS_MAX = 8


@dataclass
class ProcessWatch:
    """What is remembered of one process between two looks."""

    looks: int = 0
    slow: ProcessLoad = field(default_factory=ProcessLoad)
    throttling: Path | None = None
    memory: Path | None = None


def look_at_process(watch: ProcessWatch, pid: int, fields: list[str]) -> ProcessLoad:
    """The process now; `fields` are those of its /proc/PID/stat. Check: `cat /proc/PID/schedstat`, `ls /proc/PID/fd | wc -l`."""
    if watch.looks % SLOWLY_EVERY == 0:
        watch.slow = _slowly(watch, pid)
    watch.looks += 1
    ran, delay = _schedule(pid)
    slow = watch.slow
    return ProcessLoad(
        run_delay_ns=delay,
        ran_ns=ran,
        major_faults=int(fields[_MAJOR_FAULTS]),
        cpus=slow.cpus,
        cpus_count=slow.cpus_count,
        quota_cores=slow.quota_cores,
        throttled_ns=cgroup.throttled_ns(watch.throttling),
        memory_limit_bytes=slow.memory_limit_bytes,
        memory_used_bytes=slow.memory_used_bytes,
        files=slow.files,
        files_limit=slow.files_limit,
    )


def _slowly(watch: ProcessWatch, pid: int) -> ProcessLoad:
    if watch.looks == 0:
        watch.throttling, watch.memory = cgroup.cpu_stat(pid), cgroup.memory_folder(pid)
    cpus = _cpus(pid)
    limit, used = cgroup.memory(watch.memory)
    files: int | None
    try:
        files = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        files = None
    most: int | None = None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        most = resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
    return ProcessLoad(
        cpus=cpus,
        cpus_count=_count(cpus),
        quota_cores=cgroup.quota_cores(watch.throttling),
        memory_limit_bytes=limit,
        memory_used_bytes=used,
        files=files,
        files_limit=most if most is not None and most > 0 else None,
    )


def _schedule(pid: int) -> tuple[int | None, int | None]:
    """(ran, ready but without a CPU) of the main thread, ns."""
    try:
        ran, delay, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_bytes().split()
        return int(ran), int(delay)
    except (OSError, ValueError):
        return None, None


def _cpus(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
        return text[text.index("Cpus_allowed_list:") + 18 :].split(None, 1)[0]
    except (OSError, ValueError, IndexError):
        return None


def _count(cpus: str | None) -> int | None:
    """How many CPUs a list like `0-3,8` names."""
    try:
        parts = [part.split("-") for part in (cpus or "").split(",") if part]
        return sum(int(part[-1]) - int(part[0]) + 1 for part in parts) or None
    except ValueError:
        return None


class HostWatch:
    """The numbers of the whole host, once a second."""

    def __init__(self) -> None:
        self._looks = 0
        self._times: tuple[int, int] | None = None
        self._slow = HostLoad()

    def look(self, hellos: Iterable[Hello]) -> HostLoad:
        """The host now. Check: `vmstat 1`, `cat /proc/pressure/cpu`, `df -h`."""
        if self._looks % SLOWLY_EVERY == 0:
            self._slow = HostLoad(
                cpu_stall_ratio=_stalled("cpu"),
                memory_stall_ratio=_stalled("memory"),
                io_stall_ratio=_stalled("io"),
                swapped_pages=_swapped(),
                disks=_disks(hellos),
            )
        self._looks += 1
        runnable, steal, total = _stat()
        ratio = None
        if self._times is not None and steal is not None and total is not None and total > self._times[1]:
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
            slow.disks,
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


def _disks(hellos: Iterable[Hello]) -> tuple[Disk, ...]:
    """The file systems of the ranks' working folders, their TMPDIR and /dev/shm, each once."""
    found: dict[tuple[int, ...], Disk] = {}
    for hello in hellos:
        temporary = hello.environment.get("TMPDIR", "/tmp")
        for path, uses in ((_cwd(hello.pid), "cwd"), (temporary, "TMPDIR"), ("/dev/shm", "shm")):
            if path is None or len(found) >= DISKS_MAX:
                continue
            with contextlib.suppress(OSError):
                space, device = os.statvfs(path), os.stat(path).st_dev
                if not space.f_flag & os.ST_RDONLY and space.f_blocks:
                    size = space.f_frsize
                    disk = Disk(path, uses, space.f_blocks * size, space.f_bavail * size, space.f_files, space.f_favail)
                    found.setdefault((device,), disk)
    return tuple(found.values())


def _cwd(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return None
