"""Reads facts about processes from /proc.

The agent reads about its workers, the relay about its ranks, and commands about any process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

DESCENDANTS_MAX = 256
STAT_BYTES_MAX = 2048
"""A line has about 350 bytes. The 50 numbers and the name have at most 1,200."""
STAT_FIELDS_MIN = 22
_STACK_START = 25
"""Field 28 of the line, of those from the third on."""


def io_bytes(pid: int) -> int | None:
    """Bytes that the process has read and written, through calls and mapped files; only grows.

    Source: /proc/PID/io.
    """
    try:
        lines = Path(f"/proc/{pid}/io").read_text().split()
        # rchar and wchar, read_bytes and write_bytes: only these count pages of a mapped file.
        return sum(int(lines[at]) for at in (1, 3, 9, 11))
    except (OSError, ValueError, IndexError):
        return None


def read_stat(pid: int | str) -> list[str]:
    """Fields of /proc/PID/stat from the third on: state, parent, ... Check: proc_pid_stat(5).

    `pid` is a process, or "PID/task/TID" for a thread.

    Raises:
        FileNotFoundError, ProcessLookupError: there is no such process.
        OSError: it cannot be read now, as with no descriptor left.
        ValueError: the line is cut.
    """
    # Unbuffered reads of bytes take half the CPU of Path.read_text.
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        data = file.read(STAT_BYTES_MAX)
    # The name of the program is in parentheses, and may have blanks and parentheses itself.
    fields = data[data.rindex(b")") + 2 :].decode("ascii", "replace").split()
    if len(fields) < STAT_FIELDS_MIN:
        raise ValueError(f"/proc/{pid}/stat has {len(fields)} fields")
    return fields


def stat_fields(pid: int | str) -> list[str] | None:
    """The result of `read_stat`; None if it fails, mostly because the process is gone."""
    try:
        return read_stat(pid)
    except (OSError, ValueError):
        return None


def runs(pid: int | str) -> bool:
    """Whether the main thread of the process runs or could run now. Check: `ps -o stat= -p PID`."""
    fields = stat_fields(pid)
    return fields is not None and fields[0] == "R"


def stack_start(fields: Sequence[str]) -> int:
    """The address at which the stack of a process begins, of what `stat_fields` returns.

    exec gives a process a new stack at a random address. 0 if the kernel hides it, as for another
    user's process. Check: field 28 of /proc/PID/stat.
    """
    return int(fields[_STACK_START]) if len(fields) > _STACK_START else 0


def command_name(pid: int | str) -> str | None:
    """The name of the program that the process runs. Check: `ps -o comm -p PID`."""
    try:
        text = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.strip() or None


SAMPLERS = ("py-spy",)
"""Names of programs that stop a process for milliseconds to read its stacks."""


def own_letter(pid: int, letter: str) -> str:
    """The state letter, but `S` in place of `t` while py-spy holds the process: no debugger does.

    The state right before is not known; CPU time and I/O show whether the process works.
    Check: `grep TracerPid /proc/PID/status`.
    """
    if letter != "t":
        return letter
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        tracer = next(
            line.split()[1] for line in status.splitlines() if line.startswith("TracerPid:")
        )
        name = Path(f"/proc/{tracer}/comm").read_text(encoding="ascii", errors="replace").strip()
    except (OSError, StopIteration, IndexError):
        return letter
    return "S" if name in SAMPLERS else letter


def parent_of(pid: int) -> int | None:
    """Field 4 of /proc/PID/stat; None if there is no such process."""
    fields = stat_fields(pid)
    return int(fields[1]) if fields is not None else None


def wchan(pid: int | str) -> str | None:
    """The function of the kernel in which the main thread sleeps; with "PID/task/TID" that thread.

    None if it runs, or where the kernel does not say. Source: /proc/PID/wchan.
    """
    try:
        text = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return None
    return text if text not in ("", "0") else None


def switches(status: Path) -> int | None:
    """Voluntary context switches of the thread with this status file; only grows.

    Check: `grep ^vol /proc/PID/task/TID/status`.
    """
    try:
        text = status.read_bytes()
        return int(text[text.rindex(b"\nvoluntary_ctxt_switches:") + 25 :].split(None, 1)[0])
    except (OSError, ValueError, IndexError):
        return None


def children(pid: int) -> tuple[int, ...]:
    """Its children, of all its threads; none if it is gone.

    Check: `cat /proc/PID/task/*/children`.
    """
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        # A thread may end before all others have been read.
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return tuple(found)


def descendants(pid: int, at_most: int = DESCENDANTS_MAX) -> tuple[int, ...]:
    """Its children and their descendants, at most so many. Check: `pstree -p PID`."""
    found: list[int] = []
    open_pids = [pid]
    while open_pids and len(found) < at_most:
        theirs = children(open_pids.pop())
        found += theirs
        open_pids += theirs
    return tuple(found[:at_most])
