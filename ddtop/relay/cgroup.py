"""The control group of a process: how often its OOM killer has killed, and whether it is frozen. Versions 1 and 2.

In a container the path in /proc/PID/cgroup may be that of the host, while the container's own group is what is mounted:
then the file at the root of the mount is read.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def memory_events(pid: int, root: Path = ROOT, proc: Path = Path("/proc")) -> Path | None:
    """The file that counts the OOM killer's kills. Check: `grep oom_kill FILE`."""
    return _file(pid, "memory", "memory.oom_control", "memory.events", root, proc)


def freezer(pid: int, root: Path = ROOT, proc: Path = Path("/proc")) -> Path | None:
    """The file that says whether the group, or one above it, is frozen."""
    return _file(pid, "freezer", "freezer.state", "cgroup.events", root, proc)


def oom_kills(events: Path | None) -> int | None:
    """How many processes of the group the OOM killer has killed so far; None if the file cannot be read."""
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


def _file(pid: int, controller: str, name_v1: str, name_v2: str, root: Path, proc: Path) -> Path | None:
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
            places = [base / path.lstrip("/") / name_v2 for base in bases] + [base / name_v2 for base in bases]
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
