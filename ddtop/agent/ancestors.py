"""The command lines of the processes above a rank: a launcher there has its options in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from ddtop.procfs import parent_of

ANCESTORS_MAX = 4
"""Between a rank and Hydra's proxy, or torchrun, are at most a shell and a wrapper or two."""


def ancestors(pid: int) -> Callable[[], Iterator[Sequence[str]]]:
    """Reads the command lines of `pid` and of those above it, when it is called."""
    return partial(_command_lines, pid)


def _command_lines(pid: int) -> Iterator[Sequence[str]]:
    """A process that cannot be read ends them. Source: /proc/PID/cmdline."""
    for _ in range(ANCESTORS_MAX):
        if pid < 1:
            return
        try:
            text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            return
        words = text.split("\0")
        yield words[:-1] if words[-1] == "" else words
        pid = parent_of(pid) or 0
