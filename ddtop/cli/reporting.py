"""`ddtop report`: everything about a job in one redacted file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click

import ddtop
from ddtop import registry
from ddtop.cli.jobs import UNREACHABLE, CommandError, find, shown
from ddtop.diagnosis.finding import Verdict
from ddtop.folders import patiently, state_dir_text
from ddtop.journal import JournalError
from ddtop.link.viewer_side import ViewerLink
from ddtop.model.state.facts import Snapshot
from ddtop.present.findings.timeline import Event, events
from ddtop.present.report import Material, file_name, report_text
from ddtop.present.stacks.dump_sets import answers, around, last_request, merged_of
from ddtop.present.stacks.lines import stacks_text
from ddtop.viewer.follower import LEFT_S, Follower, UnreachableError, hear, join, left_behind, not_heard, request
from ddtop.viewer.replay import Recording, read_recording
from ddtop.viewer.source_lines import Excerpts
from ddtop.words.units import SECOND_NS

WATCH_S = 1.2
"""Two snapshots half a second apart, so that what stands is shown."""
SLICE_S, SOURCE_S = 0.05, 1.0
BACK_S = 900.0
"""The last minutes that the timeline tells of; exits are told of the whole run."""
LOOKS_MAX, LOOKS_S = 180, 6.0
"""Moments of the past that are looked at, and how long that may take: with thousands of ranks each costs a second."""
STDOUT = "-"


@dataclass(frozen=True, slots=True)
class _Known:
    """What could be learned of the job, and from where. `request`: the stacks that belong to the report."""

    snapshot: Snapshot
    verdict: Verdict
    seen: str
    request: str | None = None
    asked_unix_ns: int | None = None
    stacks_note: str | None = None
    garbled: int = 0


def report(name: str | None, wait_s: float, output: str | None, hub: str | None = None, source: bool = True) -> int:
    """Write the report and say where. `source`: with the lines of source around the frames of stacks.

    Raises:
        CommandError: 2, several such jobs; 3, no contact, or it cannot be written.
    """
    entry = find(name, wait_s, asked_by="report", hub=hub)
    now = time.time_ns()
    target = Path(output) if output is not None else Path(file_name(entry.job, now))
    if output is None and target.exists():
        raise CommandError(f"ddtop: {target} exists already; name the file: ddtop report -o FILE", UNREACHABLE)
    recording, why = _recording(entry)
    text = shown(report_text(_material(_known(entry), recording, why, now, source)))
    if output == STDOUT:
        click.echo(text, nl=False)
        return 0
    size = _write(target, text, output is not None)
    click.echo(
        f"wrote {target} ({size / 1024:,.0f} KiB); secrets are redacted by their looks: read it before you share it"
    )
    return 0


def _known(entry: registry.JobEntry) -> _Known:
    gone = "its relay is gone"
    if entry.reachable(time.time_ns()):
        try:
            return _from_relay(entry)
        except UnreachableError as error:
            gone = str(error)
    try:
        snapshot, verdict = left_behind(entry) if not entry.reachable(time.time_ns()) else not_heard(entry, gone)
    except UnreachableError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
    return _Known(snapshot, verdict, f"what its relay left behind ({gone})", last_request(snapshot))


def _from_relay(entry: registry.JobEntry) -> _Known:
    """What its relay says, with fresh stacks while the job lives."""
    follower, link = join(entry)
    try:
        request_name, asked, note = None, None, None
        _listen(follower, link, time.monotonic() + WATCH_S)
        if follower.look()[0].ended is None:
            asked = follower.now_unix_ns()
            link.send(request(follower.asking.stacks((), asked, time.monotonic())))
            _listen(follower, link, None)
            dump = follower.asking.dump(time.monotonic())
            request_name, note = (dump.request, dump.refused) if dump is not None else (None, None)
        snapshot, verdict = follower.look()
        if request_name is None or not answers(snapshot, request_name, None):
            fell_back = last_request(snapshot)
            note = f"no fresh stacks: {note}" if note else None
            request_name, asked = fell_back, None
        seen = "its relay" + (", live" if snapshot.ended is None else "")
        return _Known(snapshot, verdict, seen, request_name, asked, note, follower.garbled)
    finally:
        link.close()


def _listen(follower: Follower, link: ViewerLink, until_mono_s: float | None) -> None:
    """Take in what comes, until then or until the stacks that were asked for are there."""
    looked = 0.0
    while True:
        now = time.monotonic()
        if until_mono_s is not None and now >= until_mono_s:
            return
        if until_mono_s is None and ((dump := follower.asking.dump(now)) is None or dump.done):
            return
        hear(follower, link, SLICE_S)
        if now - looked >= 0.5:
            looked = now
            follower.look()


def _recording(entry: registry.JobEntry) -> tuple[Recording | None, str | None]:
    """The journal of the run, or why there is none."""
    path = registry.journal_path(entry.job, entry.run, entry.sender)
    try:
        growing = entry.reachable(time.time_ns())
        return patiently(lambda: read_recording(path, entry.job, growing=growing), state_dir_text, LEFT_S), None
    except (JournalError, OSError, registry.RegistryError) as error:
        return None, f"no journal, so the last minutes are not known: {error}"


def _material(known: _Known, recording: Recording | None, why: str | None, now_unix_ns: int, source: bool) -> Material:
    happened, note = _happened(known, recording)
    material = Material(
        written_unix_ns=now_unix_ns,
        version=ddtop.__version__,
        seen=known.seen,
        snapshot=known.snapshot,
        verdict=known.verdict,
        stacks_note=known.stacks_note,
        happened=happened,
        timeline_note=note or why,
        garbled=known.garbled,
        home=str(Path.home()),
    )
    if known.request is None:
        state = "has ended and left no stacks" if known.snapshot.ended else "nobody has taken stacks"
        return replace(material, stacks_note=known.stacks_note or state)
    merged = merged_of(answers(known.snapshot, known.request, known.asked_unix_ns), known.verdict, known.snapshot)
    excerpts = Excerpts(source)
    setting = around(known.snapshot, known.verdict, merged, excerpts.get)
    # Once to learn which lines are wanted: the files are read on a thread of their own.
    stacks_text(merged, 120, around=setting)
    excerpts.wait(SOURCE_S)
    return replace(material, merged=merged, around=setting)


def _happened(known: _Known, recording: Recording | None) -> tuple[tuple[Event, ...], str | None]:
    """What happened lately; with a note where not all of it could be looked at."""
    looks = [(known.snapshot, known.verdict)]
    if recording is None or recording.tape.span is None:
        return events(looks), None
    first, last = recording.tape.span
    began = time.monotonic()
    past: list[tuple[Snapshot, Verdict]] = []
    note = recording.damage
    for at in _moments(first, last):
        if time.monotonic() - began > LOOKS_S:
            note = f"looked back to {(last - at) / SECOND_NS:.0f} s before the end only: a look at so many ranks takes long"
            break
        past.append(recording.tape.at(at))
    past = [look for look in reversed(past) if look[0].time_unix_ns < known.snapshot.time_unix_ns]
    return events([*past, *looks]), note


def _moments(first: int, last: int) -> Iterator[int]:
    """From the last moment back, as densely as `LOOKS_MAX` allows."""
    begin = max(first, last - int(BACK_S * SECOND_NS))
    step = max((last - begin) // LOOKS_MAX, SECOND_NS)
    yield from range(last, begin - 1, -step)


def _write(target: Path, text: str, named: bool) -> int:
    """The file, readable by this user only; one that exists is replaced only if it was named."""
    data = text.encode("utf-8")
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if named else os.O_EXCL | os.O_NOFOLLOW)
    try:
        descriptor = os.open(target, flags, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            if named and target.is_file():
                os.fchmod(descriptor, 0o600)
            file.write(data)
    except OSError as error:
        raise CommandError(f"ddtop: {target} cannot be written: {error.strerror}", UNREACHABLE) from None
    return len(data)
