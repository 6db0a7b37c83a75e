"""Which processes belong to a job without being ranks.

Those that its launcher or a parent started.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ddtop.procfs import parent_of

STEPS_MAX = 32
"""Limit of a chain of parents: containers and batch systems put a dozen above a program."""
_NOT_OF_A_JOB = frozenset(
    {
        "bash",
        "sh",
        "dash",
        "zsh",
        "fish",
        "ksh",
        "csh",
        "tcsh",
        "tmux",
        "screen",
        "login",
        "sshd",
        "systemd",
        "init",
        "su",
        "sudo",
        "cron",
        "code",
        "node",
        "jupyter-lab",
        "jupyter-noteboo",
    }
)
"""Names of programs that start anything: two programs of one shell have nothing in common."""


def is_of_the_job(pid: int, launcher: int, ranks: Iterable[int]) -> bool:
    """Whether the launcher or a rank is among the ancestors of the process.

    `launcher`: 0 if none is known; a shell counts as none.
    """
    known = launcher > 1 and not _starts_anything(launcher)
    if known and (pid == launcher or launcher in _above(pid)):
        return True
    return any(pid in _above(rank) for rank in ranks) and not _starts_anything(pid)


def _above(pid: int) -> list[int]:
    found: list[int] = []
    while len(found) < STEPS_MAX and (parent := parent_of(pid)) is not None and parent > 1:
        found.append(parent)
        pid = parent
    return found


def _starts_anything(pid: int) -> bool:
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return False
    return name.partition(":")[0] in _NOT_OF_A_JOB
