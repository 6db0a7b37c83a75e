"""A source that shows a journal in the dashboard, at any recorded moment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from ddtop.diagnosis.diagnoses import diagnose
from ddtop.diagnosis.finding import CRITICAL, Verdict
from ddtop.follow.history import JobHistory
from ddtop.follow.look import Look
from ddtop.follow.tape import Past, Tape
from ddtop.journal import JournalError, Reader
from ddtop.model.facts import Snapshot
from ddtop.model.job import Job
from ddtop.patience import in_thread
from ddtop.thresholds import chosen
from ddtop.wire import frames
from ddtop.words import units

REPLAY_BYTES = 192 << 20
"""Enough for a whole journal of the default size, with Python's overhead for each frame; of a
larger one only the end is kept."""
NOTICES = 400
"""The number of looks for findings while a journal is read: more than a scrubber has columns, at
most half a second in all."""
NO_END = (
    "the journal stops before the end of the job: its relay was killed, as schedulers do at the end"
    " of a step"
)
RECORDING = "this is a recording"


@dataclass(frozen=True, slots=True)
class Recording:
    """A journal that was read. `damage`: what could not be read, and why; None if all could."""

    tape: Tape
    damage: str | None
    job_history: JobHistory

    def last(self) -> tuple[Snapshot, Verdict]:
        """The last moment."""
        span = self.tape.span
        assert span is not None
        return self.tape.at(span[1])


def read_recording(
    path: Path,
    name: str,
    *,
    growing: bool = False,
    progress: Callable[[float], None] = lambda _: None,
) -> Recording:
    """The journal there (both halves) as a tape. A second for 20 MiB: not for the event loop.

    `growing`: its relay still writes, so an incomplete end is not damage. `progress` is called with
    the share that has been read; an exception of it ends the reading.

    Raises:
        JournalError: it is not a journal, or this version can read nothing in it; the text says
        why.
    """
    job, tape = Job(name, chosen()), Tape(REPLAY_BYTES)
    garbled, refusal, noticed = 0, None, 0
    history = JobHistory(chosen())
    with closing(Reader(path)) as reader:
        for data in reader:
            try:
                envelope = frames.open_envelope(data)
                job.apply(envelope, frames.open_record(envelope))
            except frames.SchemaError as error:
                refusal = str(error)
            except frames.WireError:
                garbled += 1
            else:
                tape.add(envelope, data, job)
            if int(reader.read_ratio * NOTICES) > noticed:
                noticed = int(reader.read_ratio * NOTICES)
                snapshot = job.snapshot(job.last_unix_ns)
                tape.notice(diagnose(snapshot, job.policy))
                history.record(snapshot)
                progress(reader.read_ratio)
    damage = []
    if reader.damage and not (growing and reader.damage.startswith(f"{path.name}: cut off")):
        damage.append(f"what comes before the damage is shown ({reader.damage})")
    if refusal is not None:
        damage.append(f"some records cannot be read: {refusal}")
    if garbled:
        damage.append(f"{units.plural(garbled, 'record')} cannot be read")
    if tape.forgotten:
        damage.append("it is too large to be shown as a whole; this is its end")
    if tape.span is None:
        raise JournalError(
            f"there is nothing to show in {path}" + "".join(f"; {text}" for text in damage)
        )
    return Recording(tape, "; ".join(damage) or None, history)


def at_end(recording: Recording, growing: bool) -> tuple[Snapshot, Verdict, str | None]:
    """The last moment, and a note; None if the job ended there and nothing is missing."""
    snapshot, verdict = recording.last()
    notes = [f"the journal is damaged: {recording.damage}"] if recording.damage is not None else []
    if growing:
        notes.append("the job is live: this is what its journal has so far")
    elif snapshot.ended is None and not notes:
        notes.append(NO_END)
    if not growing and snapshot.ended is None and verdict.health != CRITICAL:
        verdict = verdict.when_unheard(NO_END, None)
    return snapshot, verdict, "; ".join(notes) or None


class ReplaySource:
    """A `source.Source` on a journal: opens at its last moment.

    `live`: returns whether the job's relay still writes; then the end of the journal is not the end
    of the job.
    """

    def __init__(self, path: Path, name: str, live: Callable[[], bool] = lambda: False) -> None:
        self._path, self._name, self._live = path, name, live
        self._recording: Recording | None = None
        self._ratio = 0.0
        self._problem: str | None = None
        self._growing = self._left = False
        self._at: int | None = None
        self._shown: tuple[int | None, Look] | None = None

    async def run(self) -> None:
        """Read the journal, off the event loop."""
        self._growing = await in_thread(self._live)
        try:
            self._recording = await in_thread(
                read_recording,
                self._path,
                self._name,
                growing=self._growing,
                progress=self._progress,
            )
        except JournalError as error:
            self._problem = str(error)
        finally:
            # Quitting does not wait until all of it has been read: the thread checks this flag.
            self._left = True

    def _progress(self, ratio: float) -> None:
        self._ratio = ratio
        if self._left:
            raise JournalError("it is no longer wanted")

    def look(self) -> Look:
        """The moment that was travelled to, or the last one."""
        if self._recording is None:
            text = self._problem or f"reading {self._path}, {units.percent(self._ratio)}"
            return Look(None, Verdict("ok", (), ""), text)
        if self._shown is None or self._shown[0] != self._at:
            self._shown = (self._at, self._look(self._recording))
        return self._shown[1]

    def _look(self, recording: Recording) -> Look:
        tape, contact = recording.tape, None
        if self._at is None:
            snapshot, verdict, contact = at_end(recording, self._growing)
        else:
            snapshot, verdict = tape.at(self._at)
            if recording.damage is not None:
                snapshot = replace(
                    snapshot, notes=(f"the journal is damaged: {recording.damage}", *snapshot.notes)
                )
        return Look(
            snapshot,
            verdict,
            contact,
            span=tape.span,
            travelled=True,
            recording=True,
            marks=tape.marks,
            past=Past(tape, snapshot.time_unix_ns),
            job_past=recording.job_history,
            recall=tape.looks,
        )

    def travel(self, at_unix_ns: int | None) -> None:
        """Show that moment; None: the last one."""
        self._at = at_unix_ns

    async def ask_stacks(self, ranks: tuple[int, ...], how: str = "") -> str | None:
        """A recording cannot answer."""
        del ranks, how
        return (
            f"{RECORDING}: it shows the stacks that were taken then; no rank can be asked for more"
        )

    async def send_signal(self, rank: int, number: int) -> str:
        """A recording has no process that could get it."""
        del rank, number
        return f"{RECORDING}: no signal was sent"
