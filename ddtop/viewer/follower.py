"""Makes looks from the frames of a job's relay, or from the last state that the relay left.

Time is that of the relay: "now" is the time on its clock, and stops while the relay does not
report, because a silent relay must not make its ranks look silent.
"""

from __future__ import annotations

import functools
import os
import pwd
import time
from collections.abc import Callable
from dataclasses import replace
from sys import intern

import msgspec

from ddtop import journal, registry
from ddtop.diagnosis.finding import CRITICAL, Verdict
from ddtop.diagnosis.judge import Judge
from ddtop.diagnosis.until_then import began_to_end_unix_ns, is_over
from ddtop.folders import patiently, state_dir_text
from ddtop.link.viewer_side import ViewerLink
from ddtop.model.job import Job
from ddtop.model.state.facts import Snapshot
from ddtop.viewer.replay import NO_END, read_recording
from ddtop.viewer.requests import ANSWERS, Requests
from ddtop.viewer.thresholds import chosen
from ddtop.wire import frames
from ddtop.wire.pace import rank_period_s
from ddtop.wire.progress import Speed
from ddtop.wire.records import AnyRecord, Command, Reply, Stacks

HISTORY_S = 600.0
"""History that a viewer asks for: enough for its sparklines."""
JOIN_S = 5.0
"""A relay on loopback answers within milliseconds; one that does not answer within this time is not
there."""
LOOK_S = 0.5
NEWEST_FROM = 4096
"""Above this number of ranks, only the newest report of each is applied, just before a look. Then
looks are seconds apart, and to apply every report would cost three times as much as the looks."""
STUCK_LATE_S = 0.25
"""A look that should name a hang comes this long after the time limit, so that it is not slightly
too early."""
STUCK_HEARD_S = 2.0
"""A stuck rank is known at most so long after it got stuck: its agent reports it after a second,
and the report takes up to another second."""
_REPORTS = ("RankState", "HostState")
WAITS_TO_S = 3.0
"""If the ranks take turns of at least so many seconds, their reports are applied when they arrive.
Almost none would be replaced before a look, and the look would take longer."""
_Source = tuple[str, str, "int | None", "int | None"]
"""Kind, sender, rank and pid of a report: a newer one replaces an older one of the same."""
STOPPED_STATES = "Tt"
"""States in /proc/PID/stat: stopped by a signal, or by a tracer."""


class UnreachableError(Exception):
    """The job's relay does not answer and it left no last state; the text says what to do."""


class NotHeardError(UnreachableError):
    """The job's relay seems to exist but does not answer, so the state of the job is not known."""


LEFT_S = 60.0
"""The time limit for reading what a relay left, in addition to that for a folder: 192 MiB of
journal take ten seconds."""


class Follower:
    """A job built from frames, with the clock of its relay and the current findings.

    `asking`: this viewer's requests. `answers`: how many answers have arrived.
    """

    def __init__(
        self,
        name: str,
        clock: Callable[[], int] = time.time_ns,
        answered: Callable[[Reply | Stacks], None] | None = None,
    ) -> None:
        """`clock`: unix ns. `answered` takes each answer; None: `asking` takes it."""
        self.policy = chosen()
        self.job, self.judge = Job(name, self.policy), Judge(self.policy)
        self.asking = Requests()
        self.answers = 0
        self._answered = answered or self._take_answer
        self.garbled = 0
        self.live = False
        self.refusal: str | None = None
        self.rejoin = False
        self._mute_answers: list[Reply] = []
        self.compares = False
        """The speed of the last run of this name has not been looked up yet."""
        self.took_mono_s = time.monotonic()
        """When the last frame of any kind arrived."""
        self.newest_only = False
        """For a large job: apply only the newest report of each rank and host, before a look."""
        self.stuck_unix_ns: int | None = None
        """Since when the first rank of a large job is stuck, as far as known; reset by the look
        that can name the reason (`stuck_look_s` later)."""
        self._waiting: dict[_Source, frames.Envelope] = {}
        self._stuck: dict[tuple[str, int | None], str] = {}
        self._clock = clock
        self._offset_ns = 0
        self._groups: tuple[bytes, AnyRecord | None] = (b"", None)

    def take(self, data: bytes) -> frames.Envelope | None:
        """Process one frame; a frame that cannot be read is counted. Returns its envelope; None if
        it has nothing for the model, or waits for the next look."""
        self.took_mono_s = time.monotonic()
        try:
            envelope = frames.open_envelope(data)
        except frames.SchemaError as error:
            self.refusal = str(error)
            return None
        except frames.WireError:
            self.garbled += 1
            return None
        news = self.stuck_unix_ns is None
        if envelope.kind in _REPORTS:
            if self.newest_only and self._may_wait(envelope) and self._waits(envelope):
                return None
        elif envelope.kind != "Reply":
            # The waiting reports are older than this one.
            self._take_waiting()
        taken = self._take(envelope)
        if news and self.stuck_unix_ns is not None:
            self.stuck_unix_ns = self._stuck_since_unix_ns(envelope, self.stuck_unix_ns)
        return taken

    def _stuck_since_unix_ns(self, envelope: frames.Envelope, now_unix_ns: int) -> int:
        """Since when the rank of this report is stuck: a hang is named so long after that."""
        memory = self.job.ranks.get(envelope.rank) if envelope.rank is not None else None
        if memory is None or memory.state is None:
            return now_unix_ns
        since = [one.pending_since_unix_ns or now_unix_ns for one in memory.state.groups]
        since += [call.since_unix_ns for call in memory.state.open_calls]
        # A receive may have been open for hours, and be no part of what has happened now.
        earliest = now_unix_ns - int(STUCK_HEARD_S * 1e9)
        return min(max(min(since, default=now_unix_ns), earliest), now_unix_ns)

    def _may_wait(self, envelope: frames.Envelope) -> bool:
        """Whether a newer report of the same rank or host may replace it before the next look."""
        # The clock of the leader is the clock of the job, so its age is measured on arrival.
        leader = self.job.leader
        many = len(self.job.ranks) > NEWEST_FROM
        return self.live and many and leader is not None and envelope.sender != leader

    def _waits(self, envelope: frames.Envelope) -> bool:
        """Let this report wait. False if it must be applied now because its rank has just got stuck
        or continues: the first such report dates the event."""
        key = (envelope.kind, envelope.sender, envelope.rank, envelope.pid)
        if envelope.rank is not None and self._notes_stuck(envelope):
            before = self._waiting.pop(key, None)
            if before is not None:
                self._take(before)
            return False
        if envelope.rank is not None and rank_period_s(self.job.world_size) >= WAITS_TO_S:
            return False
        before = self._waiting.get(key)
        if before is None or before.unix_ns <= envelope.unix_ns:
            self._waiting[key] = envelope
        if envelope.rank is None:
            self.job.note_host(envelope)
        return True

    def _notes_stuck(self, envelope: frames.Envelope) -> bool:
        """Whether the rank of this report has just got stuck, or goes on."""
        process, stuck = (envelope.sender, envelope.pid), envelope.stuck_key
        if stuck == self._stuck.get(process):
            return False
        if stuck is None:
            del self._stuck[process]
        else:
            self._stuck[intern(envelope.sender), envelope.pid] = intern(stuck)
            if self.stuck_unix_ns is None:
                self.stuck_unix_ns = self.now_unix_ns()
        return True

    def _take_waiting(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for envelope in waiting.values():
                self._take(envelope)

    def _take(self, envelope: frames.Envelope) -> frames.Envelope | None:
        try:
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
            self.answers += 1
            self._answered(record)
        if self.live and envelope.kind == "HostState" and envelope.sender == self.job.leader:
            # With several hosts, the hub's clock is the clock of the job.
            offset = self.job.hosts[envelope.sender][0] - self._clock()
            self._offset_ns = offset if abs(offset) > self.policy.clock_apart_s * 1e9 else 0
        return envelope

    def _opened(self, envelope: frames.Envelope) -> AnyRecord:
        """The record. Each of 10,000 ranks sends the same 30 KB of members, which are decoded only
        once."""
        if envelope.kind != "Groups":
            return frames.open_record(envelope)
        data = bytes(envelope.record)
        if data != self._groups[0]:
            self._groups = (data, frames.open_record(envelope))
        record = self._groups[1]
        assert record is not None
        return record

    def ask_mute(
        self, link: ViewerLink, kind: str, ranks: str, for_s: int, because: str
    ) -> Reply | None:
        """Ask the relay to mute findings. Returns its answer; None if none comes within a few
        seconds.
        """
        link.send(request(Command("mute", arguments=(kind, ranks, str(for_s), because))))
        for data in link.receive(JOIN_S):
            self.take(data)
            if self._mute_answers:
                return self._mute_answers.pop()
        return None

    def _on_reply(self, reply: Reply) -> None:
        if reply.name == "mute":
            self._mute_answers.append(reply)
            return
        if reply.name in ANSWERS:
            self.answers += 1
            self._answered(reply)
        elif reply.name == "live":
            self.live = True
        elif reply.name == "rejoin":
            self.rejoin = True
        elif not reply.ok:
            self.refusal = reply.text

    def _take_answer(self, answer: Reply | Stacks) -> None:
        self.asking.take(answer, time.monotonic())

    def now_unix_ns(self) -> int:
        """Now, on the clock of the relay, or of the hub of a job on several hosts."""
        return self._clock() + self._offset_ns

    @property
    def heard_unix_ns(self) -> int | None:
        """When the newest frame was made."""
        return self.job.last_unix_ns or None

    def look(self, at_unix_ns: int | None = None) -> tuple[Snapshot, Verdict]:
        """Snapshot and verdict now, or at another moment."""
        self._take_waiting()
        if self.compares and any(
            memory.state is not None and memory.state.pace is not None
            for memory in self.job.ranks.values()
        ):
            self.compares = False
            self.job.last_run = last_run_speed(self.job.name, self.job.run)
        at = self.now_unix_ns() if at_unix_ns is None else at_unix_ns
        if self.stuck_unix_ns is not None and at >= self.stuck_unix_ns + self.stuck_look_s * 1e9:
            self.stuck_unix_ns = None
        return self.judge.look(self.job.snapshot(at))

    @property
    def stuck_look_s(self) -> float:
        """How long after the first rank got stuck a hang can be named, seconds."""
        return self.job.policy.still_limit_s + STUCK_LATE_S


@functools.cache
def _myself() -> str:
    """The user and the host of this viewer."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = f"uid {os.getuid()}"
    return f"{name}@{os.uname().nodename}"


def request(record: AnyRecord) -> bytes:
    """A viewer's command as a frame; an order includes who gives it, for the relay's audit
    record."""
    if isinstance(record, Command) and record.name in ("stacks", "signal", "mute"):
        record = msgspec.structs.replace(record, instance=_myself(), pid=os.getpid())
    return frames.seal(record, sender="viewer", unix_ns=time.time_ns(), mono_ns=time.monotonic_ns())


def join(
    entry: registry.JobEntry, *, history_s: float = 30.0, controller: bool = False
) -> tuple[Follower, ViewerLink]:
    """A follower with all data of the job's relay, and the link to the relay, which the caller
    closes.

    Raises:
        NotHeardError: the relay does not answer. UnreachableError: it refuses.
        RegistryError: the key cannot be read.
    """
    follower = Follower(entry.job)
    follower.compares = True
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
    raise NotHeardError(why_silent(entry))


def why_silent(entry: registry.JobEntry) -> str:
    """A sentence about a relay that does not answer: what its process does, how many ranks live
    here, and the next step."""
    living = entry.living_ranks()
    ranks = f"; {living} of its ranks live on this host" if living else ""
    who = f"the relay of {entry.job} (pid {entry.relay_pid})"
    if entry.is_here and entry.relay_state() is None:
        text = f"the relay of {entry.job} is gone{ranks}"
        return (
            f"{text}: their agents start another within 10 s, or their launcher is about to end"
            if living
            else text
        )
    if (entry.relay_state() or "") in STOPPED_STATES:
        return (
            f"{who} is stopped, so how the job goes is not known{ranks}; it goes on after: kill"
            f" -CONT {entry.relay_pid}"
        )
    if entry.is_here and entry.relay_state() == "D":
        return (
            f"{who} waits in the kernel, for a disk or a file server, so how the job goes is not"
            f" known{ranks}"
        )
    where = "" if entry.is_here else f" on {entry.host}"
    return (
        f"{who}{where} does not answer on port {entry.port}, so how the job goes is not"
        f" known{ranks}"
    )


def look_once(entry: registry.JobEntry, seconds: float) -> tuple[Snapshot, Verdict]:
    """Snapshot and verdict after watching for `seconds`, or from what the relay left if it is gone.
    If it does not answer, and the job is not known to have ended, health is unknown.

    Raises:
        UnreachableError: the relay refuses, or is gone and left nothing.
        RegistryError: the key cannot be read.
    """
    if not entry.reachable(time.time_ns()):
        return left_behind(entry)
    try:
        follower, link = join(entry)
    except NotHeardError as error:
        return not_heard(entry, str(error))
    try:
        return _watch(entry, follower, link, seconds)
    finally:
        link.close()


def _watch(
    entry: registry.JobEntry, follower: Follower, link: ViewerLink, seconds: float
) -> tuple[Snapshot, Verdict]:
    until = time.monotonic() + seconds
    snapshot, verdict = follower.look()
    while snapshot.ended is None and (left := until - time.monotonic()) > 0:
        hear(follower, link, min(LOOK_S, left))
        silent_s = time.monotonic() - follower.took_mono_s
        if silent_s > follower.policy.relay_silent_s:
            # The previous look shows the last reported moment.
            verdict = verdict.when_unheard(why_silent(entry), silent_s)
        else:
            snapshot, verdict = follower.look()
    return snapshot, verdict


def left_behind(entry: registry.JobEntry) -> tuple[Snapshot, Verdict]:
    """The snapshot and verdict that a relay left. Health is unknown, unless they show how the job
    ended or what was wrong before all its ranks ended.

    Raises:
        UnreachableError: it left nothing, or nothing that can be read.
    """
    living = entry.living_ranks()
    try:
        snapshot, verdict = last_state(entry)
    except UnreachableError:
        if not living:
            raise
        return _nothing_known(entry, why_silent(entry))
    if living:
        return _as_unheard(entry, snapshot, verdict, why_silent(entry))
    if snapshot.ended is not None:
        return snapshot, verdict
    if living is None and not entry.over(time.time_ns()):
        return _as_unheard(entry, snapshot, verdict, why_silent(entry))
    # All of its ranks have ended. Earlier findings are useful for a post-mortem; without findings,
    # it is not known how the job ended.
    return (
        (snapshot, verdict)
        if verdict.health == CRITICAL
        else (snapshot, verdict.when_unheard(NO_END, None))
    )


def not_heard(entry: registry.JobEntry, why: str) -> tuple[Snapshot, Verdict]:
    """The last known state, from the journal of a relay that does not answer. Health is unknown,
    unless the job had ended by then."""
    try:
        snapshot, verdict = last_state(entry)
    except (UnreachableError, registry.RegistryError):
        return _nothing_known(entry, why)
    if snapshot.ended is not None and not entry.living_ranks():
        return snapshot, verdict
    return _as_unheard(entry, snapshot, verdict, why)


def _as_unheard(
    entry: registry.JobEntry, snapshot: Snapshot, verdict: Verdict, why: str
) -> tuple[Snapshot, Verdict]:
    heard_unix_ns = max(snapshot.time_unix_ns, entry.heartbeat_unix_ns)
    verdict = verdict.when_unheard(why, max(time.time_ns() - heard_unix_ns, 0) / 1e9)
    return replace(snapshot, live=True, ended=None), verdict


def _nothing_known(entry: registry.JobEntry, why: str) -> tuple[Snapshot, Verdict]:
    snapshot, verdict = Follower(entry.job).look(entry.heartbeat_unix_ns)
    return _as_unheard(entry, replace(snapshot, world_size=0), verdict, why)


def hear(follower: Follower, link: ViewerLink, seconds: float) -> None:
    """Process frames for this long. If it is called every few seconds, the relay keeps this viewer
    connected."""
    for data in link.receive(seconds):
        follower.take(data)
    if link.is_due:
        link.send(request(Command("ping")))


def last_run_speed(name: str, run: str) -> Speed | None:
    """The speed of the last run of that name on this host, at its end; None if not known.

    `run` is the current run. It reads the state that the relay of the last run left.
    """
    try:
        entries = [one for one in registry.read_entries() if one.job == name and one.run != run]
        over = [one for one in entries if one.over(time.time_ns())]
        if not over:
            return None
        last = max(over, key=lambda one: one.started_unix_ns)
        snapshot, _ = last_state(last, from_journal=False)
    except (registry.RegistryError, UnreachableError, OSError):
        return None
    speeds = [one.progress.pace.now for one in snapshot.ranks if one.progress.pace is not None]
    return sorted(speeds, key=lambda one: one.per_s)[len(speeds) // 2] if speeds else None


def last_state(entry: registry.JobEntry, *, from_journal: bool = True) -> tuple[Snapshot, Verdict]:
    """The last state that the relay wrote, else the end of its journal.

    A relay that was killed left only the journal; reading a large one takes seconds.

    Raises:
        UnreachableError: there is neither, or they cannot be read.
    """
    try:
        return patiently(lambda: _last_state(entry, from_journal), state_dir_text, LEFT_S)
    except registry.RegistryError as error:
        raise UnreachableError(f"the relay of {entry.job} is gone, and {error}") from None


def _last_state(entry: registry.JobEntry, from_journal: bool) -> tuple[Snapshot, Verdict]:
    ways = [_from_last_state]
    if from_journal:
        # A last state is written at the end of a run. If the run has not ended, the file is from an
        # earlier attempt.
        ways.insert(0 if entry.ended_unix_ns is None else 1, _from_journal)
    problems: list[journal.JournalError] = []
    for way in ways:
        try:
            snapshot, verdict = way(entry)
            return snapshot, with_what_stood(entry, snapshot, verdict) if from_journal else verdict
        except journal.JournalError as error:
            problems.insert(0, error) if way is _from_last_state else problems.append(error)
    raise UnreachableError(
        f"the relay of {entry.job} is gone and left no last state ({problems[0]}); "
        "if the job still runs, its agents start another within 10 s"
    )


def with_what_stood(entry: registry.JobEntry, snapshot: Snapshot, verdict: Verdict) -> Verdict:
    """The verdict on a job that has ended, with the findings from before; any other verdict
    unchanged.

    Only the journal has these findings. Reading it takes a second for 20 MiB.
    """
    if not is_over(snapshot) or began_to_end_unix_ns(verdict.findings, snapshot) is None:
        return verdict
    try:
        path = registry.journal_path(entry.job, entry.run, entry.sender)
        tape = read_recording(path, entry.job, growing=True).tape
    except (journal.JournalError, OSError):
        return verdict
    return tape.with_what_stood(snapshot, verdict)


_LAST_HEARD = "this is the last moment of the relay's journal"
_LAST_MOMENT = (
    "the relay is gone, this is the last moment of its journal; a job that runs starts another"
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
        notes.append(_LAST_MOMENT if entry.relay_state() is None else _LAST_HEARD)
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
