"""`ddtop replay`: the dashboard on a journal."""

from __future__ import annotations

import click

from ddtop.cli import completion
from ddtop.cli.errors import DdtopCommand


@click.command("replay", cls=DdtopCommand, exits="0; 3 no such recording")
@click.argument("what", metavar="FILE|JOB", shell_complete=completion.jobs)
def command(what: str) -> None:
    """The dashboard on a journal, at any moment: [ ] { } go back and forth in time."""
    from ddtop.cli import recordings

    recordings.open_journal(recordings.recorded(what))
