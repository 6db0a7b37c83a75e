"""What /proc tells of any process, asked by the agent (of its workers), the relay (of its ranks) and commands (of any)."""

from __future__ import annotations

import contextlib
from pathlib import Path

DESCENDANTS_MAX = 256


def io_bytes(pid: int) -> int | None:
    """What the process has read and written, through calls and mapped files; only grows. Check: /proc/PID/io."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().split()
        # rchar and wchar, and what came from or went to storage: pages of a mapped file are in neither of the first.
        return sum(int(lines[at]) for at in (1, 3, 9, 11))
    except (OSError, ValueError, IndexError):
        return None


def stat_fields(pid: int | str) -> list[str] | None:
    """Fields of /proc/PID/stat from the third on (state, parent, ...); of a thread with "PID/task/TID". None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        fields = text[text.rindex(")") + 2 :].split()
    except (OSError, ValueError):
        return None
    return fields if len(fields) > 21 else None


SAMPLERS = ("py-spy",)
"""Names of programs that stop a process for milliseconds to read its stacks."""


def own_letter(pid: int, letter: str) -> str:
    """The state letter without what a sampler does to it: `S` in place of `t` while py-spy holds it, which is no debugger.

    What it did an instant before cannot be told; its CPU and I/O tell whether it works. Check: `grep TracerPid /proc/PID/status`.
    """
    if letter != "t":
        return letter
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        tracer = next(line.split()[1] for line in status.splitlines() if line.startswith("TracerPid:"))
        name = Path(f"/proc/{tracer}/comm").read_text(encoding="ascii", errors="replace").strip()
    except (OSError, StopIteration, IndexError):
        return letter
    return "S" if name in SAMPLERS else letter


def parent_of(pid: int) -> int | None:
    """Field 4 of /proc/PID/stat; None if there is no such process."""
    fields = stat_fields(pid)
    return int(fields[1]) if fields is not None else None


def wchan(pid: int | str) -> str | None:
    """In which function of the kernel its main thread (of "PID/task/TID" that thread) sleeps; None if it runs, or where that is not told. Check: /proc/PID/wchan."""
    try:
        text = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return None
    return text if text not in ("", "0") else None


def switches(status: Path) -> int | None:
    """Voluntary context switches of the thread with this status file; only grows. Check: `grep ^vol /proc/PID/task/TID/status`."""
    try:
        text = status.read_bytes()
        return int(text[text.rindex(b"\nvoluntary_ctxt_switches:") + 25 :].split(None, 1)[0])
    except (OSError, ValueError, IndexError):
        return None


def children(pid: int) -> tuple[int, ...]:
    """Its children, of whichever of its threads; none if it is gone. Check: `cat /proc/PID/task/*/children`."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        # A thread may end while the others are still to be asked.
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return tuple(found)


def descendants(pid: int, at_most: int = DESCENDANTS_MAX) -> tuple[int, ...]:
    """Its children and theirs, at most so many. Check: `pstree -p PID`."""
    found: list[int] = []
    open_pids = [pid]
    while open_pids and len(found) < at_most:
        theirs = children(open_pids.pop())
        found += theirs
        open_pids += theirs
    return tuple(found[:at_most])
