"""`ddtop replay`: the dashboard on a journal."""

from __future__ import annotations

import click

from ddtop.cli import completion


@click.command("replay")
@click.argument("what", metavar="FILE|JOB", shell_complete=completion.jobs)
def command(what: str) -> None:
    """The dashboard on a journal, at any moment: [ ] { } go back and forth in time."""
    from ddtop.cli import recordings

    recordings.open_journal(recordings.recorded(what))
