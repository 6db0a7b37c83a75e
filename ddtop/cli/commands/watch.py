"""`ddtop watch`: one line for each event, until the job ends."""

from __future__ import annotations

from typing import Any

import click

from ddtop.cli.errors import DdtopCommand, Trait
from ddtop.cli.options import JOB, SECONDS, WAIT
from ddtop.cli.output import echo
from ddtop.cli.place import LOCALS, PLACE, place_of


@click.command(
    "watch",
    cls=DdtopCommand,
    exits="0 the job ended well; 1 it ended badly; 3 no contact; 4 the relay is no longer heard",
    traits=Trait.FROM_OUTSIDE | Trait.FOLLOWS,
)
@JOB
@WAIT
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object a line, stable and versioned."
)
@click.option(
    "--on-critical",
    metavar="CMD",
    help="Run for each critical finding that appears; its JSON is on stdin.",
)
@click.option("--webhook", metavar="URL", help="Post the event there, and again when it is over.")
@click.option(
    "--webhook-file",
    metavar="FILE",
    help="The same, with the URL in this file or in $DDTOP_WEBHOOK.",
)
@click.option(
    "--webhook-format",
    "shape",
    type=click.Choice(["generic", "slack"]),
    help="The shape of what is posted.  [default: what fits the URL]",
)
@click.option("--report", "folder", metavar="DIR", help="Write a report there first.")
@click.option("--html", is_flag=True, help="With --report: as a page for a browser.")
@click.option(
    "--then",
    metavar="CMD",
    help="Run last, without a shell: 'scontrol requeue $SLURM_JOB_ID'",
)
@click.option(
    "--for",
    "for_s",
    type=SECONDS,
    default="0s",
    help="Act when the finding has lasted this long: 30s, 5m.",
)
@click.option(
    "--cooldown",
    "cooldown_s",
    type=SECONDS,
    default="0s",
    help="Pause between two actions for one kind of finding.",
)
@click.option("--once", is_flag=True, help="Act only once.")
@LOCALS
@PLACE
def command(job: str | None, wait_s: float, as_json: bool, arguments: bool, **act: Any) -> int:
    """One line for each event, until the job ends.

    The options say what to do when a finding is critical.

    Exit code 0: it ended well, 1: it did not, 3: no contact, 4: the relay is not heard any
    more.
    """
    from ddtop.cli.actions import guard_of
    from ddtop.cli.watching import watch

    make_guard = guard_of(lambda text: echo(f"ddtop: {text}", err=True), **act)
    return watch(place_of(job, wait_s, "watch", arguments), as_json, make_guard)
