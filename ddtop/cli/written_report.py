"""Makes the report about a job, and writes it: `ddtop report`."""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click

import ddtop
from ddtop import private, registry
from ddtop.cli.errors import UNREACHABLE, CommandError
from ddtop.cli.look import STATUS_S, Seen
from ddtop.cli.output import without_controls
from ddtop.cli.place import Hosts, Local, Place, There, run_there, typed_command
from ddtop.cli.sources import look_at
from ddtop.cli.stacks_output import with_source
from ddtop.diagnosis.finding import Verdict
from ddtop.folders import call_patiently, state_dir_text
from ddtop.follow.engine import LEFT_S, with_what_stood
from ddtop.follow.looks import Joined, ask
from ddtop.follow.recording import Recording, read_recording
from ddtop.follow.tape import Past
from ddtop.journal import JournalError
from ddtop.model.facts import Snapshot
from ddtop.present.events import ListedEvent, listed
from ddtop.present.filter import by_verdict
from ddtop.present.html import report_html
from ddtop.present.report import Material, file_name, report_text
from ddtop.present.stacks import Shape, answers, last_request, merged_of
from ddtop.thresholds import chosen
from ddtop.wire.records import OF_LOOKS
from ddtop.words.units import SECOND_NS

STDOUT = "-"
LANES_MAX = 16
"""The page shows the last minutes of so many ranks, those at fault first."""


@dataclass(frozen=True, slots=True)
class Output:
    """What the user wants. `output`: the file, `-` is stdout; None: one with the job's name and the
    time. `html`: as a page for a browser."""

    output: str | None = None
    html: bool = False

    def path(self, job: str, now_unix_ns: int) -> Path:
        """The file to write.

        Raises:
            CommandError: 3, it exists, and the user has not named it.
        """
        if self.output is not None:
            return Path(self.output)
        path = Path(file_name(job, now_unix_ns, "html" if self.html else "md"))
        if path.exists():
            raise CommandError(
                f"ddtop: {path} exists already; name the file: ddtop report -o FILE", UNREACHABLE
            )
        return path


def report_on(place: Place, target: Output, source: bool) -> int:
    """Write the report about the job there, and print where. Returns the exit code.

    Raises:
        CommandError: 2, no such job; 3, no contact, or it cannot be written.
    """
    if isinstance(place, There):
        written = _report_there(place, target)
        if isinstance(written, int):
            return written
        place = written
    if isinstance(place, Local):
        return report(place.entry, target, source)
    return _report_seen(look_at(place, "report"), target, source)


def report(entry: registry.JobEntry, target: Output = Output(), source: bool = True) -> int:
    """Write the report about a job with a relay, or what one left, and print where.

    `source`: with the lines of source around the frames.

    Raises:
        CommandError: 3, no contact, or it cannot be written.
    """
    path = target.path(entry.job, time.time_ns())
    recording, why = recording_of(entry)
    known = ask(entry, lambda job: _from_relay(entry, job), _from_left)
    material = _material(known, recording, why, source)
    if target.html and recording is not None:
        material = _with_minutes(material, recording)
    return _print(material, path, target)


def _report_there(place: There, target: Output) -> int | Hosts:
    """Make the report on the other host and write it here. Returns the exit code; or where to look
    from outside.

    Raises:
        CommandError: 2, no such job; 3, no contact, or it cannot be written.
    """
    # Without the file of this host, which is written here.
    words = [
        word for word in typed_command(click.get_current_context()) if not word.startswith("-o=")
    ]
    words += ["-o", STDOUT]
    if target.output == STDOUT:
        return run_there(place, words)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        ran = run_there(place, words)
    if ran != 0:
        return ran
    name = "-".join([*place.host.option.strip("-").split(), *([place.job] if place.job else [])])
    return _write_report(target.path(name, time.time_ns()), text.getvalue(), target)


def _report_seen(found: Seen, target: Output, source: bool) -> int:
    path = target.path(found.name, time.time_ns())
    seen = "its processes from outside: /proc, and stacks by py-spy --nonblocking"
    known = _begun(seen, found.snapshot, found.verdict), OF_LOOKS, None
    why = "nothing was recorded of a job that was started without DDTOP=1"
    code = _print(_material(known, None, why, source), path, target)
    return code if found.needed is None else UNREACHABLE


def _print(material: Material, path: Path, target: Output) -> int:
    text = report_html(material) if target.html else without_controls(report_text(material))
    if target.output == STDOUT:
        click.echo(text, nl=False)
        return 0
    return _write_report(path, text, target)


_Known = tuple[Material, "str | None", "int | None"]
"""What is known of the job; the request whose stacks belong to the report, None if there are none;
and when they were asked for, None if they are older."""


def _begun(
    seen: str,
    snapshot: Snapshot,
    verdict: Verdict,
    stacks_note: str | None = None,
    garbled: int = 0,
) -> Material:
    """A report without its stacks and events."""
    return Material(
        written_unix_ns=0,
        version=ddtop.__version__,
        seen=seen,
        snapshot=snapshot,
        verdict=verdict,
        stacks_note=stacks_note,
        garbled=garbled,
        home=str(Path.home()),
    )


def _from_left(left: tuple[Snapshot, Verdict], why: str | None) -> _Known:
    seen = f"what its relay left behind ({why or 'its relay is gone'})"
    return _begun(seen, *left), last_request(left[0]), None


async def _from_relay(entry: registry.JobEntry, job: Joined) -> _Known:
    """The data that its relay sends, with new stacks if the job is live."""
    request, asked, note = None, None, None
    snapshot, verdict = await job.watch(STATUS_S)
    if snapshot.ended is None:
        dump = await job.stacks()
        request, asked, note = dump.request, dump.asked_unix_ns, dump.refused
        snapshot, verdict = await job.watch(0.0)
    verdict = with_what_stood(entry, snapshot, verdict)
    if request is None or not answers(snapshot, request, None):
        request, asked = last_request(snapshot), None
        note = f"no fresh stacks: {note}" if note else None
    seen = "its relay" + (", live" if snapshot.ended is None else "")
    return _begun(seen, snapshot, verdict, note, job.source.session.joined.garbled), request, asked


def _material(
    known: _Known, recording: Recording | None, why: str | None, source: bool
) -> Material:
    """The contents of the report. `why`: why there is no recording."""
    material, request, asked_unix_ns = known
    snapshot, verdict = material.snapshot, material.verdict
    events, note = recent_events(snapshot, verdict, recording)
    material = replace(
        material, written_unix_ns=time.time_ns(), happened=events, timeline_note=note or why
    )
    if request is None:
        state = _no_stacks(snapshot) if snapshot.ended else "no stacks have been taken"
        return replace(material, stacks_note=material.stacks_note or state)
    merged = merged_of(answers(snapshot, request, asked_unix_ns), verdict, snapshot)
    setting = with_source(merged, snapshot, verdict, Shape(), source)
    return replace(material, merged=merged, around=setting)


def _with_minutes(material: Material, recording: Recording) -> Material:
    """The same with the last minutes of the job, and of some ranks."""
    assert recording.tape.span is not None
    until_unix_ns = recording.tape.span[1]
    past = Past(recording.tape, until_unix_ns)
    ranks = by_verdict(material.snapshot, material.verdict)[:LANES_MAX]
    past.read(ranks)
    lanes = {rank: past.memory_of(rank) for rank in ranks}
    points = tuple(recording.job_history.points(until_unix_ns))
    return replace(material, lanes=lanes, points=points, until_unix_ns=until_unix_ns)


def _no_stacks(snapshot: Snapshot) -> str:
    if any(rank.reported.exception and rank.reported.exception.frames for rank in snapshot.ranks):
        return (
            "it has ended, and no stacks had been taken; the tracebacks above say where it raised"
        )
    return "it has ended, and no stacks had been taken"


def _write_report(path: Path, text: str, target: Output) -> int:
    """Write the file, readable by this user only, and print where. Returns the exit code.

    A file that exists is replaced only if the user named it.
    """
    data = text.encode("utf-8")
    try:
        ours = not path.is_symlink() or path.lstat().st_uid in (0, os.getuid())
        if target.output is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(private.open_file(path, flags), "wb") as file:
                file.write(data)
        elif ours and path.exists() and not path.is_file():
            # A pipe or a device, such as /dev/stdout.
            with path.open("wb") as file:
                file.write(data)
        else:
            with private.written(path.resolve() if ours else path) as new:
                new.write(data)
    except OSError as error:
        raise CommandError(
            f"ddtop: {path} cannot be written: {error.strerror}", UNREACHABLE
        ) from None
    click.echo(
        f"wrote {path} ({len(data) / 1024:,.0f} KiB); "
        "text that looks like a secret is redacted: read it before you share it"
    )
    return 0


# -- What has happened to a job in the last minutes, from its journal


BACK_S = 900.0
"""The timeline covers the last minutes; exits are listed for the whole run."""
LOOKS_MAX, LOOKS_S = 180, 6.0
"""How many past moments are examined, and how long that may take.

With thousands of ranks each look takes a second.
"""


def recording_of(entry: registry.JobEntry) -> tuple[Recording | None, str | None]:
    """The journal of the run, or the reason why there is none."""
    path = registry.journal_path(entry.job, entry.run, entry.sender)
    try:
        growing = entry.reachable(time.time_ns())
        found = call_patiently(
            lambda: read_recording(path, entry.job, growing=growing), state_dir_text, LEFT_S
        )
    except (JournalError, OSError, registry.RegistryError) as error:
        return None, f"no journal, so the last minutes are not known: {error}"
    return found, None


def recent_events(
    snapshot: Snapshot, verdict: Verdict, recording: Recording | None, back_s: float = BACK_S
) -> tuple[tuple[ListedEvent, ...], str | None]:
    """The events of the last minutes, with a note if not all of them could be looked at."""
    looks = [(snapshot, verdict)]
    if recording is None or recording.tape.span is None:
        return listed(looks, chosen()), None
    first, last = recording.tape.span
    began = time.monotonic()
    past: list[tuple[Snapshot, Verdict]] = []
    note = recording.damage
    for at in _moments(first, last, back_s):
        if time.monotonic() - began > LOOKS_S:
            note = (
                f"looked back only to {(last - at) / SECOND_NS:.0f} s before the end: "
                "with so many ranks, a look takes long"
            )
            break
        past.append(recording.tape.at(at))
    past = [look for look in reversed(past) if look[0].time_unix_ns < snapshot.time_unix_ns]
    return listed([*past, *looks], chosen()), note


def _moments(first: int, last: int, back_s: float) -> Iterator[int]:
    """Moments (ns) from the last one back, as densely as `LOOKS_MAX` allows."""
    begin = max(first, last - int(back_s * SECOND_NS))
    yield from range(last, begin - 1, -max((last - begin) // LOOKS_MAX, SECOND_NS))
