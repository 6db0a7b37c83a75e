"""`ddtop check -- torchrun ...`: is everything there that the job needs?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

import click

from ddtop.cli.check.trial import TrialLine, judge_trial
from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError, DdtopCommand, Trait
from ddtop.cli.output import BAD, GOOD, echo

START_S, REDUCE_S = 60.0, 30.0


@click.command(
    "check",
    cls=DdtopCommand,
    exits="0; 1 something is wrong; 2 the command line is not understood; 3 it cannot be started",
    traits=Trait.ON_LINUX,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--within",
    "start_s",
    type=click.FloatRange(1, 3600),
    default=START_S,
    show_default=True,
    metavar="S",
    help="Seconds until all ranks must have met. torch may take long to import.",
)
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...")
def command(start_s: float, words: tuple[str, ...]) -> int:
    """Before the job: rendezvous, host names, versions, limits, GPUs, clocks and an all_reduce.

    It starts the ranks as the command does, with a small program in place of yours. For a job on
    several nodes start it on all of them, as you start the job: srun ddtop check -- torchrun ...

    Exit code 0; 1: something is wrong; 2: the command line is not understood; 3: nothing can be
    looked at here.
    """
    from ddtop.cli.check import trial
    from ddtop.thresholds import chosen

    try:
        line = trial.read(words, os.environ)
    except trial.NotUnderstoodError as error:
        raise CommandError(f"ddtop: {error}", USAGE) from None
    if shutil.which(words[0]) is None:
        raise CommandError(f"ddtop: {words[0]} is not found, or cannot be run", UNREACHABLE)
    lines = trial.checks(line)
    show(lines)
    if any(one.mark == BAD and one.what in ("rendezvous", "port") for one in lines):
        click.echo("The ranks cannot meet, so none was started.")
        return 1
    try:
        found = trial.run(line.trial(str(trial.PROGRAM), str(REDUCE_S)), start_s, REDUCE_S)
    except OSError as error:
        raise CommandError(
            f"ddtop: cannot start {words[0]}: {error.strerror}", UNREACHABLE
        ) from None
    more = judge_trial(found, line.nodes, start_s, REDUCE_S, chosen())
    show(more)
    return 1 if any(one.mark == BAD for one in (*lines, *more)) else 0


def show(lines: Sequence[TrialLine]) -> None:
    """Print one row per line, with the advice below the bad ones."""
    for line in lines:
        echo(f"{line.mark:<5}{line.what:<17}{line.text}")
        if line.fix and line.mark != GOOD:
            echo(f"{'':<22}-> {line.fix}")
