"""The command lines of a rank's parent processes. They contain the options of the launcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from ddtop.procfs import parent_of

ANCESTORS_MAX = 4
"""Between a rank and Hydra's proxy, or torchrun, are at most a shell and a wrapper or two."""


def ancestors(pid: int) -> Callable[[], Iterator[Sequence[str]]]:
    """A function that reads the command lines of `pid` and of its parents."""
    return partial(_command_lines, pid)


def _command_lines(pid: int) -> Iterator[Sequence[str]]:
    """They end at the first process that cannot be read."""
    for _ in range(ANCESTORS_MAX):
        if pid < 1 or (words := command_line(pid)) is None:
            return
        yield words
        pid = parent_of(pid) or 0


def command_line(pid: int) -> list[str] | None:
    """The words of its command line; None if it cannot be read. Source: /proc/PID/cmdline."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    words = text.split("\0")
    return words[:-1] if words[-1] == "" else words
