"""The ends of the files into which ranks write, read on a separate thread: a file server that hangs
must not block the screen.

The job, or a recording, says which file it is, and may name any. So a file is read only if it
belongs to the user of the processes, was written since the rank started, and is in no hidden
folder. No link is followed but that of the process itself. Secrets are redacted.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass

from ddtop.follow.source_lines import Readings, is_hidden, owner
from ddtop.redaction import redact

TAIL_BYTES = 128 << 10
"""A thousand lines: who wants more opens the file."""
LINE_CHARACTERS = 2000
AGAIN_S = 1.0
"""A file is read at most once in this time."""
_LINK = "a link leads elsewhere"

Wanted = tuple[str, int, int, int]
"""Path, number of the descriptor, pid, and the start of the process (unix ns)."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The last lines of a file; `problem`: why there are none."""

    lines: tuple[str, ...] = ()
    problem: str = ""


def tails() -> Readings[Wanted, Tail]:
    """Reads them when they are asked for, again and again."""
    return Readings(lambda wanted: read_tail(*wanted), AGAIN_S)


def read_tail(path: str, number: int, pid: int, started_unix_ns: int) -> Tail:
    """The last lines of that file, redacted."""
    # Its own link leads there from another mount namespace too.
    link = f"/proc/{pid}/fd/{number}"
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        if own := _target(link) == path:
            opened = os.open(link, flags)
        else:
            opened = os.open(path, flags | os.O_NOFOLLOW)
        with open(opened, "rb") as file:
            about, there = os.fstat(opened), _target(f"/proc/self/fd/{opened}")
            if not own and there != path:
                return Tail(problem=_LINK)
            if problem := _why_not(path, about, started_unix_ns):
                return Tail(problem=problem)
            first = max(about.st_size - TAIL_BYTES, 0)
            file.seek(first)
            text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return Tail(problem="it is not on this host")
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ELOOP:
            return Tail(problem=_LINK)
        return Tail(problem=getattr(error, "strerror", None) or str(error))
    # The first line may be cut. A progress bar writes over its line again and again.
    lines = text.rstrip("\n").split("\n")[1 if first else 0 :]
    shown = [line.rstrip("\r").rpartition("\r")[2][:LINE_CHARACTERS].rstrip() for line in lines]
    return Tail(tuple(redact(line.expandtabs(4)) for line in shown))


def _why_not(path: str, about: os.stat_result, started_unix_ns: int) -> str:
    written = about.st_mtime_ns >= started_unix_ns
    reasons = (
        (is_hidden(path), "it is in a hidden folder"),
        (not stat.S_ISREG(about.st_mode), "it is not a regular file"),
        (about.st_uid != owner(), "it belongs to another user"),
        (not written, "nothing was written into it since the rank started"),
    )
    return next((reason for holds, reason in reasons if holds), "")


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
