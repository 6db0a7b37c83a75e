"""The control group of a process: OOM kills, freezing, limits of CPU and memory. Versions 1 and 2.

In a container the path in /proc/PID/cgroup may be that of the host, while the mount shows the
container's own group. Then the file at the root of the mount is read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ddtop.procfs import FIRST_PID_NAMESPACE, link

ROOT = Path("/sys/fs/cgroup")
UNLIMITED_BYTES = 1 << 60
"""Version 1 writes a number near 2^63 for "no limit"."""


def memory_events(pid: int, root: Path = ROOT, proc: Path = Path("/proc")) -> Path | None:
    """The file that counts the OOM killer's kills. Check: `grep oom_kill FILE`."""
    return _file(pid, "memory", "memory.oom_control", "memory.events", root, proc)


def freezer(pid: int, root: Path = ROOT, proc: Path = Path("/proc")) -> Path | None:
    """The file that says whether the group, or one above it, is frozen."""
    return _file(pid, "freezer", "freezer.state", "cgroup.events", root, proc)


def oom_kills(events: Path | None) -> int | None:
    """How many processes of the group the OOM killer has killed so far.

    None if the file cannot be read.
    """
    return _number(events, "oom_kill")


def is_frozen(state: Path | None) -> bool | None:
    """Whether it is frozen; None if that cannot be read."""
    if state is None:
        return None
    if state.name == "freezer.state":
        try:
            return state.read_text().strip() == "FROZEN"
        except OSError:
            return None
    number = _number(state, "frozen")
    return None if number is None else bool(number)


def _file(
    pid: int, controller: str, name_v1: str, name_v2: str, root: Path, proc: Path
) -> Path | None:
    try:
        lines = (proc / str(pid) / "cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        number, controllers, path = parts
        if controller in controllers.split(","):
            places = [root / controller / path.lstrip("/") / name_v1, root / controller / name_v1]
        elif number == "0" and not controllers:
            # With both versions mounted the second is in a folder of its own.
            bases = (root, root / "unified")
            places = [base / path.lstrip("/") / name_v2 for base in bases] + [
                base / name_v2 for base in bases
            ]
        else:
            continue
        found = next((place for place in places if place.exists()), None)
        if found is not None:
            return found
    return None


def _number(path: Path | None, word: str) -> int | None:
    if path is None:
        return None
    try:
        words = path.read_text().split()
        return int(words[words.index(word) + 1])
    except (OSError, ValueError, IndexError):
        return None


def cpu_stat(pid: int, root: Path = ROOT, proc: Path = Path("/proc")) -> Path | None:
    """The file that counts how long its CPU quota has held the group."""
    return _file(pid, "cpu", "cpu.stat", "cpu.stat", root, proc)


def throttled_ns(stat: Path | None) -> int | None:
    """How long the quota has held threads of the group; only grows.

    Check: `grep throttled FILE`.
    """
    ns = _number(stat, "throttled_time")
    us = _number(stat, "throttled_usec") if ns is None else None
    return us * 1000 if us is not None else ns


def quota_cores(stat: Path | None) -> float | None:
    """The CPU limit of the group in cores; None without a limit."""
    if stat is None:
        return None
    try:
        if (most := stat.with_name("cpu.max")).exists():
            quota, period = most.read_text().split()[:2]
        else:
            quota = stat.with_name("cpu.cfs_quota_us").read_text().strip()
            period = stat.with_name("cpu.cfs_period_us").read_text().strip()
        return int(quota) / int(period) if quota != "max" and int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def memory_folder(pid: int, root: Path = ROOT, proc: Path = Path("/proc")) -> Path | None:
    """The folder with the memory limit of the group."""
    path = _file(pid, "memory", "memory.limit_in_bytes", "memory.max", root, proc)
    return path.parent if path is not None else None


def memory(folder: Path | None) -> tuple[int | None, int | None]:
    """(limit, used without what the kernel could drop at once) in bytes.

    None where there is no limit.
    """
    if folder is None:
        return None, None
    new = (folder / "memory.max").exists()
    limit = _read_int(folder / ("memory.max" if new else "memory.limit_in_bytes"))
    used = _read_int(folder / ("memory.current" if new else "memory.usage_in_bytes"))
    if limit is None or limit > UNLIMITED_BYTES or used is None:
        return None, None
    # Files that are read once fill any limit and are no sign of want.
    cached = _number(folder / "memory.stat", "inactive_file" if new else "total_inactive_file") or 0
    return limit, max(0, used - cached)


def pids_folder(pid: int, root: Path = ROOT, proc: Path = Path("/proc")) -> Path | None:
    """The group that is nearest to its limit of threads: the process's own, or one above it.

    None if there is no limit.
    """
    found = _file(pid, "pids", "pids.max", "pids.max", root, proc)
    folder = found.parent if found is not None else None
    limited: list[tuple[int, Path]] = []
    while folder is not None and folder != root and root in folder.parents:
        most, used = pids(folder)
        if most is not None and used is not None:
            limited.append((most - used, folder))
        folder = folder.parent
    return min(limited, default=(0, None))[1]


def pids(folder: Path | None) -> tuple[int | None, int | None]:
    """(limit, used) in threads of the whole group; None without a limit.

    Check: `cat FOLDER/pids.max FOLDER/pids.current`.
    """
    if folder is None:
        return None, None
    return _read_int(folder / "pids.max"), _read_int(folder / "pids.current")


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


# -- Whether the OOM killer ended a process: the kernel's log, or the count of the control group
#
# The log names the process, the count does not. If the log says that another process was killed,
# the count rose for that one. Check: `dmesg | grep -i 'killed process'`, `grep oom_kill
# /sys/fs/cgroup/.../memory.events`.


LOG = Path("/dev/kmsg")
_RECORD_BYTES = 8192
_RECORDS_MAX = 50_000
_READ_S = 0.2
_LINE_MAX = 300
_KILLED = re.compile(r"Kill(?:ed)? process (\d+)\b")
_CHOSEN = re.compile(r"^oom-kill:.*\bpid=(\d+)\b")


@dataclass(frozen=True, slots=True)
class Kill:
    """One line of the log that names a process which the OOM killer chose or killed."""

    pid: int
    line: str


def verdict(
    pid: int, count_before: int | None, count_now: int | None, kills: tuple[Kill, ...] | None
) -> tuple[bool | None, str | None]:
    """(the OOM killer ended this process, the log's line) of a process that died of SIGKILL.

    None if it is not known.

    `kills`: what the log says of the last minutes, None where it cannot be read.
    """
    for kill in reversed(kills or ()):
        if kill.pid == pid:
            return True, kill.line
    if kills:
        return False, None
    if count_before is not None and count_now is not None:
        return count_now > count_before, None
    return (None, None) if kills is None else (False, None)


def read_log(recent_s: float, path: Path = LOG) -> tuple[Kill, ...] | None:
    """The OOM killer's lines of the last `recent_s` seconds.

    None where the log cannot be read or counts other pids than ours.

    Bounded: at most 0.2 s, and never waits for a line to come.
    """
    if link("self", "ns/pid") != FIRST_PID_NAMESPACE:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # The log's clock is not adjusted by NTP: after a month it may be wrong by a minute.
        now_boot_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        return kills_in(_records(descriptor), now_boot_ns, recent_s)
    except PermissionError:
        return None
    finally:
        os.close(descriptor)


def _records(descriptor: int) -> Iterable[bytes]:
    end = time.monotonic() + _READ_S
    for _ in range(_RECORDS_MAX):
        try:
            record = os.read(descriptor, _RECORD_BYTES)
        except BrokenPipeError:
            continue  # overwritten while we read: the next read goes on with the oldest there is
        except BlockingIOError:
            return
        if not record or time.monotonic() > end:
            return
        yield record


def kills_in(records: Iterable[bytes], now_boot_ns: int, recent_s: float) -> tuple[Kill, ...]:
    """The kills of the last `recent_s` seconds among records as /dev/kmsg has them.

    `6,1234,5678901,-;text`, the third in us since boot.
    """
    kills = []
    for record in records:
        head, _, text = record.partition(b";")
        try:
            at_ns = int(head.split(b",")[2]) * 1000
        except (ValueError, IndexError):
            continue
        if now_boot_ns - at_ns > recent_s * 1e9:
            continue
        line = text.partition(b"\n")[0].decode("utf-8", "replace")
        match = _KILLED.search(line) or _CHOSEN.search(line)
        if match is not None:
            kills.append(Kill(int(match[1]), line[:_LINE_MAX]))
    return tuple(kills)
