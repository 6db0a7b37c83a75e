"""`ddtop report`: everything about a job in one redacted file."""

from __future__ import annotations

import click

from ddtop.cli.errors import DdtopCommand, Trait
from ddtop.cli.options import JOB, NO_SOURCE, WAIT
from ddtop.cli.place import LOCALS, PLACE, place_of


@click.command(
    "report", cls=DdtopCommand, exits="0; 3 no contact", traits=Trait.FROM_OUTSIDE | Trait.OF_ENDED
)
@JOB
@WAIT
@click.option("-o", "output", metavar="FILE", help="Where to write it; - is stdout.")
@click.option(
    "--html",
    is_flag=True,
    help="As one page for a browser, with pictures of the last minutes; it has no script and asks"
    " nobody.",
)
@NO_SOURCE
@LOCALS
@PLACE
def command(
    job: str | None,
    wait_s: float,
    output: str | None,
    html: bool,
    no_source: bool,
    arguments: bool,
) -> int:
    """Verdict, stacks, environment and what happened, in one redacted file for a ticket."""
    from ddtop.cli.written_report import Output, report_on

    place = place_of(job, wait_s, "report", arguments)
    return report_on(place, Output(output, html), not no_source)
