"""The control group of a process: OOM kills, freezing, limits of CPU and memory. Versions 1 and 2.

In a container the path in /proc/PID/cgroup may be that of the host, while the mount shows the
container's own group. Then the file at the root of the mount is read.
"""

from __future__ import annotations

from pathlib import Path

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
    found = _file(pid, "memory", "memory.limit_in_bytes", "memory.max", root, proc)
    return found.parent if found is not None else None


def memory(folder: Path | None) -> tuple[int | None, int | None]:
    """(limit, used without what the kernel could drop at once) in bytes.

    None where there is no limit.
    """
    if folder is None:
        return None, None
    new = (folder / "memory.max").exists()
    limit = _whole(folder / ("memory.max" if new else "memory.limit_in_bytes"))
    used = _whole(folder / ("memory.current" if new else "memory.usage_in_bytes"))
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
    return _whole(folder / "pids.max"), _whole(folder / "pids.current")


def _whole(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
