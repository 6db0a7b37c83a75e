"""Exit codes, and the exception that ends a command with one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddtop.diagnosis.finding import Verdict

USAGE = 2
"""The command line is wrong, or it names several jobs."""
UNREACHABLE = 3
"""There is no such job, or no contact with it."""
NOT_HEARD = 4
"""As far as we know the job exists, but its relay is not heard: its present state is unknown."""


ELSEWHERE = (
    "ddtop watches jobs on Linux only. From here: ddtop attach --ssh HOST, where HOST runs the job"
)
"""For a computer without /proc. A viewer through ssh is all that works there."""


class CommandError(Exception):
    """Ends a command with a message on stderr and an exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`; did you mean rank-killed?`; empty if no word is similar."""
    known = list(names)
    starts = [word for word in known if word.startswith(name)] if name else []
    found = starts or get_close_matches(name, known, 1, 0.5)
    return f"; did you mean {found[0]}?" if found else ""


def exit_code(verdict: Verdict) -> int:
    """The exit code of `diagnose`: 0 nothing critical, 1 critical, 4 health is unknown."""
    from ddtop.diagnosis.finding import CRITICAL, UNKNOWN

    return {CRITICAL: 1, UNKNOWN: NOT_HEARD}.get(verdict.health, 0)
