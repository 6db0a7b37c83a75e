"""From a job's relay, or from the last state it left behind, to looks.

Time is the relay's: snapshots are taken "now" on its clock, and stand still while it is not heard, because a silent relay
must not make its ranks look silent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ddtop import journal, registry
from ddtop.diagnosis.finding import Verdict
from ddtop.diagnosis.judge import Judge
from ddtop.link.viewer_side import ViewerLink
from ddtop.model.facts import Snapshot
from ddtop.model.job import Job
from ddtop.ui.asking import Asking
from ddtop.ui.replay import NO_END, read_recording
from ddtop.wire import frames
from ddtop.wire.records import AnyRecord, Command, Reply, Stacks

HISTORY_S = 600.0
"""History that a viewer asks for: enough for its sparklines."""
JOIN_S = 5.0
"""A relay on loopback answers within milliseconds; one that does not within this is not there."""
SILENT_S = 2.5
"""The relay says something every second; and less than `policy.report_silent_s`, or its ranks would look silent first."""
CLOCK_NS = 2_000_000_000
"""Clocks that differ by less are one: the frames' own way takes some of it."""
LOOK_S = 0.5


class UnreachableError(Exception):
    """The job's relay does not answer and it left no last state; the text says what to do."""


class Follower:
    """A job built from frames, with the clock of its relay and the findings that stand.

    `answers` counts what came in answer to what this viewer asked (`asking`).
    """

    def __init__(self, name: str, clock: Callable[[], int] = time.time_ns, asking: Asking | None = None) -> None:
        self.job = Job(name)
        self.judge = Judge()
        self.asking = asking if asking is not None else Asking()
        self.answers = 0
        self.garbled = 0
        self.live = False
        self.refusal: str | None = None
        self.rejoin = False
        self._clock = clock
        self._offset_ns = 0
        self._groups: tuple[bytes, AnyRecord | None] = (b"", None)

    def take(self, data: bytes) -> frames.Envelope | None:
        """Take in one frame; what cannot be read is counted. Its envelope, None where there is nothing in it for the model."""
        try:
            envelope = frames.open_envelope(data)
            record = self._opened(envelope)
        except frames.SchemaError as error:
            self.refusal = str(error)
            return None
        except frames.WireError:
            self.garbled += 1
            return None
        if isinstance(record, Reply):
            self._on_reply(record)
            return None
        self.job.apply(envelope, record)
        if isinstance(record, Stacks):
            self.asking.take_stacks(record, time.monotonic())
            self.answers += 1
        if self.live and envelope.kind == "HostState" and envelope.sender == self.job.leader:
            # Of several hosts the hub's clock is the job's.
            offset = self.job.hosts[envelope.sender][0] - self._clock()
            self._offset_ns = offset if abs(offset) > CLOCK_NS else 0
        return envelope

    def _opened(self, envelope: frames.Envelope) -> AnyRecord:
        """The record; each of 10,000 ranks sends the same 30 KB of members, which are read once."""
        if envelope.kind != "Groups":
            return frames.open_record(envelope)
        data = bytes(envelope.record)
        if data != self._groups[0]:
            self._groups = (data, frames.open_record(envelope))
        record = self._groups[1]
        assert record is not None
        return record

    def _on_reply(self, reply: Reply) -> None:
        if self.asking.take_reply(reply, time.monotonic()):
            self.answers += 1
        elif reply.name == "live":
            self.live = True
        elif reply.name == "rejoin":
            self.rejoin = True
        elif not reply.ok:
            self.refusal = reply.text

    def now_unix_ns(self) -> int:
        """Now, on the clock of the relay, or of the hub of a job on several hosts."""
        return self._clock() + self._offset_ns

    @property
    def heard_unix_ns(self) -> int | None:
        """When the newest frame was made."""
        return self.job.last_unix_ns or None

    def look(self, at_unix_ns: int | None = None) -> tuple[Snapshot, Verdict]:
        """Snapshot and verdict now, or at another moment."""
        snapshot = self.job.snapshot(self.now_unix_ns() if at_unix_ns is None else at_unix_ns)
        return snapshot, self.judge.observe(snapshot)


def request(record: AnyRecord) -> bytes:
    """A viewer's command as a frame."""
    return frames.seal(record, sender="viewer", unix_ns=time.time_ns(), mono_ns=time.monotonic_ns())


def join(entry: registry.JobEntry, *, history_s: float = 30.0, controller: bool = False) -> tuple[Follower, ViewerLink]:
    """A follower that has caught up with the job's relay, and the link to it, which the caller closes.

    Raises:
        UnreachableError: the relay does not answer, or refuses.
        RegistryError: the key cannot be read.
    """
    follower = Follower(entry.job)
    link = ViewerLink(*entry.endpoint(), registry.secret(), controller)
    link.send(request(Command("join", history_s=history_s)))
    for data in link.receive(JOIN_S):
        follower.take(data)
        if follower.live or follower.refusal:
            break
    if follower.live and not follower.refusal:
        return follower, link
    link.close()
    if follower.refusal:
        raise UnreachableError(f"the relay of {entry.job} refuses: {follower.refusal}")
    raise UnreachableError(f"the relay of {entry.job} (pid {entry.relay_pid}) does not answer on port {entry.port}")


def look_once(entry: registry.JobEntry, seconds: float) -> tuple[Snapshot, Verdict]:
    """Snapshot and verdict after watching for `seconds`; from the last state where the relay is gone.

    Raises:
        UnreachableError: neither answers.
        RegistryError: the key cannot be read.
    """
    if not entry.reachable(time.time_ns()):
        return last_state(entry)
    follower, link = join(entry)
    try:
        return _watch(follower, link, seconds)
    finally:
        link.close()


def _watch(follower: Follower, link: ViewerLink, seconds: float) -> tuple[Snapshot, Verdict]:
    until = time.monotonic() + seconds
    found = follower.look()
    while found[0].ended is None and (left := until - time.monotonic()) > 0:
        hear(follower, link, min(LOOK_S, left))
        found = follower.look()
    return found


def hear(follower: Follower, link: ViewerLink, seconds: float) -> None:
    """Take in what comes, for so long; the relay does not forget us meanwhile, where this is called every few seconds."""
    for data in link.receive(seconds):
        follower.take(data)
    if link.is_due:
        link.send(request(Command("ping")))


def last_state(entry: registry.JobEntry, *, from_journal: bool = True) -> tuple[Snapshot, Verdict]:
    """What was true at the last moment, as the relay wrote it down; else as its journal has it.

    A relay that was killed left only the journal, whose reading takes seconds where it is large.

    Raises:
        UnreachableError: there is neither, or they cannot be read.
    """
    ways = [_from_last_state]
    if from_journal:
        # A last state is written when the run is over; one beside a run that is not is that of an attempt before.
        ways.insert(0 if entry.ended_unix_ns is None else 1, _from_journal)
    problems: list[journal.JournalError] = []
    for way in ways:
        try:
            return way(entry)
        except journal.JournalError as error:
            problems.insert(0, error) if way is _from_last_state else problems.append(error)
    raise UnreachableError(
        f"the relay of {entry.job} is gone and left no last state ({problems[0]}); "
        "if the job still runs, its agents start another within 10 s"
    )


def _from_journal(entry: registry.JobEntry) -> tuple[Snapshot, Verdict]:
    path = registry.journal_path(entry.job, entry.run, entry.sender)
    recording = read_recording(path, entry.job)
    snapshot, verdict = recording.last()
    notes = [f"the journal is damaged: {recording.damage}"] if recording.damage else []
    if snapshot.ended is None and entry.over(time.time_ns()):
        snapshot = replace(snapshot, live=False)
        notes.append(NO_END)
    elif snapshot.ended is None:
        notes.append("the relay is gone, this is the last moment of its journal; a job that runs starts another")
    return replace(snapshot, notes=(*notes, *snapshot.notes)), verdict


def _from_last_state(entry: registry.JobEntry) -> tuple[Snapshot, Verdict]:
    follower = Follower(entry.job)
    path = registry.left_path(entry)
    if not entry.last_state and not path.exists():
        path = registry.last_state_path(entry.job, entry.run)
    reading = journal.read(path)
    for data in reading.frames:
        follower.take(data)
    if reading.damage:
        follower.job.notes.append(f"the last state is {reading.damage}")
    at = follower.heard_unix_ns or entry.heartbeat_unix_ns
    for _ in range(follower.judge.snapshots_needed):
        found = follower.look(at)
        at += 500_000_000
    return found
