"""The journal of a job, found and shown: for `replay`, and for `attach` of a job that is over."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from ddtop import journal, registry
from ddtop.cli import dashboard
from ddtop.cli.errors import UNREACHABLE, CommandError
from ddtop.cli.find_job import entry_of
from ddtop.cli.output import echo, explain_no_dashboard, no_dashboard, print_status
from ddtop.folders import call_patiently, state_dir_text
from ddtop.follow.engine import LEFT_S
from ddtop.follow.recording import ReplaySource, at_end, read_recording


@dataclass(frozen=True, slots=True)
class Recorded:
    """A journal to show. `entry`: the job that it belongs to, None if that is not known."""

    path: Path
    name: str
    entry: registry.JobEntry | None

    def growing(self) -> bool:
        """True while its relay still writes."""
        return self.entry is not None and not self.entry.over(time.time_ns())


def recorded(what: str) -> Recorded:
    """The journal that the user means: a file, or that of a job.

    Raises:
        CommandError: 2, several jobs could be meant; 3, no such file or job.
    """
    path = Path(what)
    if os.sep in what or os.path.lexists(path) or path.suffix in (".journal", ".last"):
        return Recorded(path, registry.clean_job_name(path.name.partition(".")[0]), _entry_of(path))
    entry = entry_of(what)
    found = journal_of(entry)
    if found is None:
        path = registry.journal_path(entry.job, entry.run, entry.sender)
        raise CommandError(
            f"ddtop: {entry.job} has no journal ({path}); DDTOP_JOURNAL_MIB=0 switches it off, "
            "and old ones are removed",
            UNREACHABLE,
        )
    return found


def journal_of(entry: registry.JobEntry) -> Recorded | None:
    """The journal of a job, or the last state that its relay left; None if there is neither."""
    path = registry.journal_path(entry.job, entry.run, entry.sender)
    last = registry.left_path(entry)
    # What to open, and the file that must be there for it.
    choices = ((path, path), (path, journal.older_half(path)), (last, last))
    there = call_patiently(
        lambda: next((one for one, file in choices if file.exists()), None), state_dir_text
    )
    return Recorded(there, entry.job, entry) if there is not None else None


def _entry_of(path: Path) -> registry.JobEntry | None:
    """The job in the state folder whose journal that file is."""
    try:
        whole = path.resolve()
        return next(
            (
                entry
                for entry in registry.read_entries()
                if registry.entry_path(entry).with_suffix(".journal").resolve() == whole
            ),
            None,
        )
    except (registry.RegistryError, OSError, RuntimeError):
        return None


def open_journal(found: Recorded, from_list: bool = False) -> bool:
    """The dashboard on a journal; without a terminal the status table at its last moment.

    Returns:
        True if the user wants to go back to the list of jobs.

    Raises:
        JournalError: the file is none.
    """
    why = no_dashboard()
    if why is not None:
        _print_last(found, why)
        return False
    # Before the dashboard takes the screen: a file that is not a journal is an error message.
    journal.Reader(found.path).close()
    return show(found, from_list)


def show(found: Recorded, from_list: bool = False) -> bool:
    """The dashboard on a journal. True if the user wants to go back to the list of jobs."""
    source = ReplaySource(found.path, found.name, found.growing)
    return dashboard.show(source, found.name, readonly=True, from_list=from_list)


def _print_last(found: Recorded, why: str) -> None:
    growing = found.growing()
    recording = call_patiently(
        lambda: read_recording(found.path, found.name, growing=growing),
        lambda: str(found.path.parent),
        LEFT_S,
    )
    explain_no_dashboard(why, "the last moment")
    snapshot, verdict, note = at_end(recording, growing)
    print_status(snapshot, verdict)
    if note is not None:
        echo(f"note: {note}")
