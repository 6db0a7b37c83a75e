"""What a command says of itself: its exit codes and what is true of it. And the exception that ends
it with such a code.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import Flag, auto
from typing import TYPE_CHECKING, Any

import click

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


class Trait(Flag):
    """What is true of a command."""

    NONE = 0
    #: It is about jobs of this host, and therefore needs Linux.
    ON_LINUX = auto()
    #: It works also while the config file is wrong.
    WITHOUT_CONFIG = auto()
    #: It starts a job: the user's settings of the viewer must not get into the job's environment.
    STARTS_JOBS = auto()
    #: It looks at processes that were started without ddtop.
    FROM_OUTSIDE = auto()
    #: It takes the job that ended last if no job is live and none is named.
    OF_ENDED = auto()
    #: It goes on with a job: of one without a rank yet, until there are some.
    FOLLOWS = auto()


class DdtopCommand(click.Command):
    """A command of ddtop. `exits`: its exit codes, as the reference shows them; 2 is a wrong
    command line and 130 Ctrl-C in all of them. `traits`: what is true of it."""

    def __init__(self, *given: Any, exits: str, traits: Trait = Trait.NONE, **more: Any) -> None:
        super().__init__(*given, **more)
        self.exits, self.traits = exits, traits


def has(command: click.Command | None, trait: Trait) -> bool:
    """Whether this is true of a command; of a group, whether it is true of all its commands."""
    if isinstance(command, click.Group):
        return all(has(one, trait) for one in command.commands.values())
    return isinstance(command, DdtopCommand) and trait in command.traits


def is_here(trait: Trait) -> bool:
    """Whether this is true of the command that runs on this thread."""
    context = click.get_current_context(silent=True)
    return context is not None and has(context.command, trait)


class CommandError(Exception):
    """Ends a command with a message on stderr and an exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`; did you mean rank-killed?`; empty if no word is similar."""
    known, asked = list(names), name.strip().lower().replace("_", "-").replace(" ", "-")
    holds = sorted((word for word in known if asked and asked in word), key=lambda w: w.find(asked))
    # With less in common, a guess only leads astray.
    found = holds or get_close_matches(asked, known, 1, 0.6)
    return f"; did you mean {found[0]}?" if found else ""


def exit_code(verdict: Verdict) -> int:
    """The exit code of `diagnose`: 0 nothing critical, 1 critical, 4 health is unknown."""
    from ddtop.diagnosis.finding import CRITICAL, UNKNOWN

    return {CRITICAL: 1, UNKNOWN: NOT_HEARD}.get(verdict.health, 0)
