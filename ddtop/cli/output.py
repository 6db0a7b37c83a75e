"""The width and the characters of the terminal or pipe, and the tables for it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddtop.cli.errors import USAGE, CommandError

if TYPE_CHECKING:
    from ddtop.diagnosis.finding import Verdict
    from ddtop.model.facts import Snapshot
    from ddtop.present.text import Glyphs

DUMB = "TERM=dumb"
"""Why there is no dashboard on a terminal that cannot move the cursor."""
GOOD, BAD, NOTE = "ok", "bad", "note"
CheckLine = tuple[str, str, str]
"""Of a check: a mark, what was checked, and one sentence."""
WIDTH = 120
"""Columns of the output where it is not a terminal."""


def width() -> int:
    """Columns of the output."""
    return shutil.get_terminal_size((WIDTH, 24)).columns


def table_width() -> int | None:
    """Columns of a table; None in a pipe: what is cut there nobody can widen."""
    return width() if sys.stdout.isatty() or os.environ.get("COLUMNS") else None


def glyphs() -> Glyphs:
    """The glyphs that the encoding of stdout can express."""
    from ddtop.present.text import glyphs_for

    return glyphs_for(sys.stdout.encoding)


def writable_folder(folder: str, option: str) -> Path:
    """The path of this folder, which the user has named for files of ours.

    Raises:
        CommandError: 2, it is none, or it cannot be written.
    """
    import tempfile

    if not os.path.isdir(folder):
        raise CommandError(f"ddtop: {option} {folder}: there is no such folder", USAGE)
    try:
        # Without a name, where the file system can: others may write there and place a link.
        with tempfile.TemporaryFile(dir=folder):
            return Path(folder).absolute()
    except OSError as error:
        raise CommandError(f"ddtop: {option} {folder}: {error.strerror}", USAGE) from None


def without_controls(text: str) -> str:
    """The text without control characters, line by line.

    Names and reasons in it come from jobs and from other hosts. They must not control the terminal.
    """
    from ddtop.present.text import clean

    return "\n".join(clean(line) for line in text.split("\n"))


def echo(text: str, err: bool = False, nl: bool = True) -> None:
    """Print the text without control characters. `err`: on stderr. `nl`: and end the line."""
    click.echo(without_controls(text), nl=nl, err=err)


def no_dashboard() -> str | None:
    """Why the dashboard cannot be drawn here; None if it can."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return "no terminal"
    if not sys.stderr.isatty():
        return "standard error is redirected, and the dashboard is drawn there"
    if os.environ.get("TERM", "dumb") in ("", "dumb"):
        return DUMB
    return None


def explain_no_dashboard(why: str, instead: str = "the status table") -> None:
    """Say on stderr what is printed instead of the dashboard. `why`: of `no_dashboard`."""
    click.echo(f"ddtop: {why}, so here is {instead} instead of the dashboard", err=True)


def print_status(snapshot: Snapshot, verdict: Verdict) -> None:
    """Print the status table."""
    from ddtop.present.plain import status_text

    whole = table_width() is None
    click.echo(status_text(snapshot, verdict, width(), glyphs(), whole=whole), nl=False)


def print_findings(snapshot: Snapshot, verdict: Verdict) -> None:
    """Print the findings as `diagnose` does."""
    from ddtop.present.plain import diagnose_text

    click.echo(diagnose_text(snapshot, verdict, width(), glyphs()), nl=False)
