"""`ddtop replay FILE|JOB`, and `attach` of a job that is over: its journal in the dashboard."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import click

from ddtop import journal, registry
from ddtop.cli.jobs import UNREACHABLE, CommandError, known, shown
from ddtop.cli.looking import plain_terminal
from ddtop.folders import patiently, state_dir_text


@dataclass(frozen=True, slots=True)
class Recorded:
    """A journal to show; `entry` is the job that it belongs to, where that is known."""

    path: Path
    name: str
    entry: registry.JobEntry | None

    def growing(self) -> bool:
        """Its relay still writes."""
        return self.entry is not None and not self.entry.over(time.time_ns())


def recorded(what: str) -> Recorded:
    """The journal that a person means: a file, or that of a job.

    Raises:
        CommandError: no such file or job (3), several jobs (2).
    """
    path = Path(what)
    if os.sep in what or os.path.lexists(path) or path.suffix in (".journal", ".last"):
        return Recorded(path, registry.clean_job_name(path.name.partition(".")[0]), _entry_of(path))
    entry = known(what)
    found = journal_of(entry)
    if found is None:
        path = registry.journal_path(entry.job, entry.run, entry.sender)
        raise CommandError(
            f"ddtop: {entry.job} has no journal ({path}); DDTOP_JOURNAL_MIB=0 switches it off, and old ones are removed",
            UNREACHABLE,
        )
    return found


def journal_of(entry: registry.JobEntry) -> Recorded | None:
    """The journal of a job, or the last state that its relay left; None if there is neither."""
    path = registry.journal_path(entry.job, entry.run, entry.sender)
    last = registry.left_path(entry)
    ways = ((path, path), (path, journal.older_half(path)), (last, last))
    there = patiently(lambda: next((one for one, file in ways if file.exists()), None), state_dir_text)
    return Recorded(there, entry.job, entry) if there is not None else None


def _entry_of(path: Path) -> registry.JobEntry | None:
    """The job in the state folder whose journal that file is."""
    try:
        whole = path.resolve()
        entries = registry.read_entries()
        return next(
            (one for one in entries if registry.entry_path(one).with_suffix(".journal").resolve() == whole), None
        )
    except (registry.RegistryError, OSError, RuntimeError):
        return None


def replay(what: str) -> None:
    """The dashboard on a journal; the status table at its last moment where there is no terminal for it."""
    open_journal(recorded(what))


def open_journal(found: Recorded, from_list: bool = False) -> bool:
    """The same, of a journal that was found; True where the list of jobs is wanted after it.

    Raises:
        CommandError: it is none (3).
    """
    why = plain_terminal()
    if why is not None:
        _print_last(found, why)
        return False
    try:
        # Before the screen is taken: what is no journal is said on the command line.
        journal.Reader(found.path).close()
    except journal.JournalError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
    return show(found, from_list)


def show(found: Recorded, from_list: bool = False) -> bool:
    """Run the dashboard until it is quit; True where the list of jobs is wanted after it."""
    from ddtop.ui.app import DdtopApp
    from ddtop.ui.settings import kept
    from ddtop.viewer.replay import ReplaySource

    source = ReplaySource(found.path, found.name, found.growing)
    app = DdtopApp(source, found.name, readonly=True, from_list=from_list, kept=kept())
    app.run()
    return app.to_list


def _print_last(found: Recorded, why: str) -> None:
    from ddtop.cli import glyphs, width
    from ddtop.present.plain import status_text
    from ddtop.viewer.follower import LEFT_S
    from ddtop.viewer.replay import at_end, read_recording

    growing = found.growing()
    try:
        recording = patiently(
            lambda: read_recording(found.path, found.name, growing=growing), lambda: str(found.path.parent), LEFT_S
        )
    except journal.JournalError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
    click.echo(f"ddtop: {why}, so here is the last moment instead of the dashboard", err=True)
    snapshot, verdict, said = at_end(recording, growing)
    click.echo(status_text(snapshot, verdict, width(), glyphs()), nl=False)
    if said is not None:
        click.echo(shown(f"note: {said}"))
