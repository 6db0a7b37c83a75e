"""What the load of the host does to one process. Read from /proc and the cgroup files.

The cheap numbers are read at every look, the others every few looks: they cost a system call or
more each, and change slowly.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ddtop.relay.processes import cgroup
from ddtop.wire.load import Limit, ProcessLoad

SLOWLY_EVERY = 5
"""Looks (one a second) between two reads of the numbers that change slowly."""
THREADS_MAX = 256
"""Of at most this many threads of a process the waits for a CPU are read."""
_MAJOR_FAULTS = 9
"""Field 12 of /proc/PID/stat, counted from the third."""


@dataclass
class ProcessWatch:
    """What is remembered of one process between two looks."""

    looks: int = 0
    slow: ProcessLoad = field(default_factory=ProcessLoad)
    throttling: Path | None = None
    memory: Path | None = None
    delays: dict[str, int] = field(default_factory=dict)
    delays_ended: int = 0
    pids: Path | None = None


def look_at_process(watch: ProcessWatch, pid: int, fields: list[str]) -> ProcessLoad:
    """The process now; `fields` are those of its /proc/PID/stat.

    Check: `cat /proc/PID/schedstat`, `ls /proc/PID/fd | wc -l`.
    """
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
        threads_delay_ns=slow.threads_delay_ns,
        limits=slow.limits,
    )


def _slowly(watch: ProcessWatch, pid: int) -> ProcessLoad:
    if watch.looks == 0:
        watch.throttling, watch.memory = cgroup.cpu_stat(pid), cgroup.memory_folder(pid)
        watch.pids = cgroup.pids_folder(pid)
    status = _status(pid)
    cpus = _cpus(status)
    limit, used = cgroup.memory(watch.memory)
    files: int | None
    try:
        files = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        files = None
    most = _own_limit(pid, resource.RLIMIT_NOFILE)
    return ProcessLoad(
        cpus=cpus,
        cpus_count=_count(cpus),
        quota_cores=cgroup.quota_cores(watch.throttling),
        memory_limit_bytes=limit,
        memory_used_bytes=used,
        files=files,
        files_limit=most,
        limits=tuple(_limits(watch, pid, status)),
        threads_delay_ns=_threads_delay(watch, pid),
    )


def _limits(watch: ProcessWatch, pid: int, status: str) -> Iterator[Limit]:
    for name, number, word in (
        ("RLIMIT_AS", resource.RLIMIT_AS, "VmSize:"),
        ("RLIMIT_DATA", resource.RLIMIT_DATA, "VmData:"),
    ):
        most, used_kib = _own_limit(pid, number), _field(status, word)
        if most is not None and used_kib is not None and used_kib.isdigit():
            yield Limit(name, int(used_kib) * 1024, most)
    most, used = cgroup.pids(watch.pids)
    if most is not None and used is not None:
        yield Limit("pids.max", used, most)


def _own_limit(pid: int, number: int) -> int | None:
    """The soft limit; None where there is none. Check: `prlimit --pid PID`."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        most = resource.prlimit(pid, number)[0]
        return most if 0 < most < cgroup.UNLIMITED_BYTES else None
    return None


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return ""


def _field(status: str, name: str) -> str | None:
    """The first word behind a name in /proc/PID/status."""
    try:
        return status[status.index(name) + len(name) :].split(None, 1)[0]
    except (ValueError, IndexError):
        return None


def _threads_delay(watch: ProcessWatch, pid: int) -> int | None:
    """How long all threads but the main thread were ready without a CPU, ns, summed.

    OpenMP's threads may lack CPUs while the main thread sleeps.

    Source: /proc/PID/task/*/schedstat, about 10 us a thread. Caveat: of more than `THREADS_MAX`
    threads only the first ones of the listing are read.
    """
    found: dict[str, int] = {}
    try:
        for name in os.listdir(f"/proc/{pid}/task")[: THREADS_MAX + 1]:
            if name != str(pid):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    found[name] = int(
                        Path(f"/proc/{pid}/task/{name}/schedstat").read_bytes().split()[1]
                    )
    except OSError:
        return None
    # A thread that has ended leaves the listing, and its waits stay in the sum; so do those of a
    # thread whose number now belongs to another one.
    watch.delays_ended += sum(
        delay for name, delay in watch.delays.items() if found.get(name, -1) < delay
    )
    watch.delays = found
    return watch.delays_ended + sum(found.values())


def _schedule(pid: int) -> tuple[int | None, int | None]:
    """(ran, ready but without a CPU) of the main thread, ns."""
    try:
        ran, delay, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_bytes().split()
        return int(ran), int(delay)
    except (OSError, ValueError):
        return None, None


def _cpus(status: str) -> str | None:
    return _field(status, "Cpus_allowed_list:")


def _count(cpus: str | None) -> int | None:
    """How many CPUs a list like `0-3,8` names."""
    try:
        parts = [part.split("-") for part in (cpus or "").split(",") if part]
        return sum(int(part[-1]) - int(part[0]) + 1 for part in parts) or None
    except ValueError:
        return None
