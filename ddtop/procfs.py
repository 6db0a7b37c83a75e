"""What /proc tells of any process, asked by the agent (of its workers) and by the relay (of its ranks)."""

from __future__ import annotations

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


def parent_of(pid: int) -> int | None:
    """Field 4 of /proc/PID/stat; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return int(text[text.rindex(")") + 2 :].split(None, 2)[1])
    except (OSError, ValueError, IndexError):
        return None


def descendants(pid: int, at_most: int = DESCENDANTS_MAX) -> tuple[int, ...]:
    """Its children and theirs, at most so many. Check: `pstree -p PID`."""
    found: list[int] = []
    open_pids = [pid]
    while open_pids and len(found) < at_most:
        try:
            lists = [path.read_text() for path in Path(f"/proc/{open_pids.pop()}/task").glob("*/children")]
        except OSError:
            continue
        children = [int(word) for text in lists for word in text.split()]
        found += children
        open_pids += children
    return tuple(found[:at_most])
