"""Runs the model on a separate thread, so that a key press never waits for the processing of 10,000
ranks.

The event loop queues frames. This thread decodes and applies them, makes looks, judges and keeps
the tape. It passes finished looks, which are frozen, to the loop through one reference. The time
between looks depends on the cost of a look.

Python's threads share the GIL: while this thread computes, the loop waits for the switch interval
each time that it needs the GIL. The default of 5 ms adds up to 50 ms per key press; with `SWITCH_S`
it is a few ms.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from sys import intern

import msgspec

from ddtop import journal, registry
from ddtop.diagnosis.finding import CRITICAL, Verdict
from ddtop.diagnosis.judge import STEP_NS, Judge, began_to_end_unix_ns, is_over
from ddtop.feeds.route import Bounds
from ddtop.folders import call_patiently, state_dir_text
from ddtop.follow.look import Look
from ddtop.follow.recording import NO_END, at_end, read_recording
from ddtop.follow.requests import ANSWERS
from ddtop.follow.tape import FRAME_COST_BYTES, Past, Tape
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.model.job import Job
from ddtop.say import told
from ddtop.thresholds import chosen
from ddtop.wire import frames
from ddtop.wire.bridge import LAST
from ddtop.wire.records import AnyRecord, Reply, Speed, Stacks
from ddtop.wire.times import rank_period_s

# -- Makes looks from the frames of a job's relay, or from the last state that the relay left
#
# Time is that of the relay: "now" is the time on its clock, and stops while the relay does not
# report, because a silent relay must not make its ranks look silent.


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
    """A job built from frames, with the clock of its relay and the current findings."""

    def __init__(
        self,
        name: str,
        clock: Callable[[], int] = time.time_ns,
        answered: Callable[[Reply | Stacks], None] = lambda _: None,
    ) -> None:
        """`clock`: unix ns. `answered` takes each answer to this viewer's requests."""
        self.policy = chosen()
        self.job, self.judge = Job(name, self.policy), Judge(self.policy)
        self._answered = answered
        self.garbled = 0
        self.live = False
        self.refusal: str | None = None
        self.rejoin = False
        self.compares = False
        """The speed of the last run of this name has not been looked up yet."""
        self.newest_only = False
        """For a large job: apply only the newest report of each rank and host, before a look."""
        self.stuck_unix_ns: int | None = None
        """Since when the first rank of a large job is stuck, as far as known; reset by the look
        that can name the reason (`stuck_look_s` later)."""
        self._waiting: dict[_Source, frames.Envelope] = {}
        self._stuck: dict[tuple[str, int | None], str] = {}
        self.looks = 0
        self._clock = clock
        self._offset_ns = 0
        self._groups: tuple[bytes, AnyRecord | None] = (b"", None)

    def take(self, data: bytes) -> frames.Envelope | None:
        """Process one frame; a frame that cannot be read is counted. Returns its envelope; None if
        it has nothing for the model, or waits for the next look."""
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
        since = [group.pending_since_unix_ns or now_unix_ns for group in memory.state.groups]
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
            record = self._open_record(envelope)
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
            self._answered(record)
        if self.live and envelope.kind == "HostState" and envelope.sender == self.job.leader:
            # With several hosts, the hub's clock is the clock of the job.
            offset = self.job.hosts[envelope.sender][0] - self._clock()
            self._offset_ns = offset if abs(offset) > self.policy.clock_apart_s * 1e9 else 0
        return envelope

    def _open_record(self, envelope: frames.Envelope) -> AnyRecord:
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

    def _on_reply(self, reply: Reply) -> None:
        if reply.name in ANSWERS:
            self._answered(reply)
        elif reply.name == "live":
            self.live = True
        elif reply.name == "rejoin":
            self.rejoin = True
        elif not reply.ok:
            self.refusal = reply.text

    def now_unix_ns(self) -> int:
        """Now, on the clock of the relay, or of the hub of a job on several hosts."""
        return self._clock() + self._offset_ns

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
        self.looks += 1
        return told.look(self.judge, self.job.snapshot(at))

    @property
    def settled(self) -> bool:
        """Whether it has looked often enough for a verdict, and no finding waits for another
        look."""
        return self.looks >= self.policy.first_verdict_looks and not self.judge.wavers

    @property
    def stuck_look_s(self) -> float:
        """How long after the first rank got stuck a hang can be named, seconds."""
        return self.job.policy.longest_wait_s + STUCK_LATE_S


def seen(job: str, turns: Iterable[tuple[int, Iterable[bytes]]]) -> tuple[Snapshot, Verdict]:
    """What a viewer sees in the end that looks at each of these times (unix ns), with the frames
    that have come by then. There must be one."""
    follower = Follower(job)
    for at_unix_ns, data in turns:
        for one in data:
            follower.take(one)
        found = follower.look(at_unix_ns)
    return found


def why_silent(entry: registry.JobEntry) -> str:
    """A sentence about a relay that does not answer: what its process does, how many ranks live
    here, and the next step."""
    living = entry.living_ranks()
    ranks = f"; {living} of its ranks live on this host" if living else ""
    relay = f"the relay of {entry.job} (pid {entry.relay_pid})"
    if entry.is_here and entry.relay_state() is None:
        text = f"the relay of {entry.job} is gone{ranks}"
        return (
            f"{text}: their agents start another within 10 s, or their launcher is about to end"
            if living
            else text
        )
    if (entry.relay_state() or "") in STOPPED_STATES:
        return (
            f"{relay} is stopped, so the state of the job is not known{ranks}; to continue it: kill"
            f" -CONT {entry.relay_pid}"
        )
    if entry.is_here and entry.relay_state() == "D":
        return (
            f"{relay} waits in the kernel, for a disk or a file server, so the state of the job is"
            f" not known{ranks}"
        )
    where = "" if entry.is_here else f" on {entry.host}"
    return (
        f"{relay}{where} does not answer on port {entry.port}, so the state of the job is not"
        f" known{ranks}"
    )


def left_behind(entry: registry.JobEntry, why: str | None = None) -> tuple[Snapshot, Verdict]:
    """The snapshot and verdict that a relay left. Health is unknown, unless they show how the job
    ended or what was wrong before all its ranks ended. `why`: why a relay that seems to exist does
    not answer; then it is enough that nothing is known.

    Raises:
        UnreachableError: it left nothing, or nothing that can be read.
    """
    living, silent = entry.living_ranks(), why or why_silent(entry)
    try:
        snapshot, verdict = last_state(entry)
    except UnreachableError:
        if why is None and not living:
            raise
        return _nothing_known(entry, silent)
    if snapshot.ended is not None and not living:
        return snapshot, verdict
    if why is not None or living or (living is None and not entry.over(time.time_ns())):
        return _as_unheard(entry, snapshot, verdict, silent)
    # All of its ranks have ended. Earlier findings are useful for a post-mortem; without findings,
    # it is not known how the job ended.
    return (
        (snapshot, verdict)
        if verdict.health == CRITICAL
        else (snapshot, verdict.when_unheard(NO_END, None))
    )


def _as_unheard(
    entry: registry.JobEntry, snapshot: Snapshot, verdict: Verdict, why: str
) -> tuple[Snapshot, Verdict]:
    heard_unix_ns = max(snapshot.time_unix_ns, entry.heartbeat_unix_ns)
    verdict = verdict.when_unheard(why, max(time.time_ns() - heard_unix_ns, 0) / 1e9)
    return replace(snapshot, live=True, ended=None), verdict


def _nothing_known(entry: registry.JobEntry, why: str) -> tuple[Snapshot, Verdict]:
    snapshot, verdict = seen(entry.job, [(entry.heartbeat_unix_ns, ())])
    return _as_unheard(entry, replace(snapshot, world_size=0), verdict, why)


def left_state(entry: registry.JobEntry, copied: Path | None) -> tuple[Snapshot, Verdict]:
    """The last state that a relay left: in the state folder, or in a copy of one of its files.

    Raises:
        UnreachableError: there is none, or it cannot be read.
    """
    if copied is None:
        return last_state(entry)
    if copied.suffix == f".{LAST}":
        entry = msgspec.structs.replace(entry, last_state=str(copied))
        return last_state(entry, from_journal=False)
    try:
        snapshot, verdict, note = at_end(read_recording(copied, entry.job), False)
    except journal.JournalError as error:
        raise UnreachableError(str(error)) from None
    notes = (note, *snapshot.notes) if note else snapshot.notes
    return replace(snapshot, live=False, notes=notes), verdict


def last_run_speed(name: str, run: str) -> Speed | None:
    """The speed of the last run of that name on this host, at its end; None if not known.

    `run` is the current run. It reads the state that the relay of the last run left.
    """
    try:
        entries = [
            entry for entry in registry.read_entries() if entry.job == name and entry.run != run
        ]
        over = [entry for entry in entries if entry.over(time.time_ns())]
        if not over:
            return None
        last = max(over, key=lambda entry: entry.started_unix_ns)
        snapshot, _ = last_state(last, from_journal=False)
    except (registry.RegistryError, UnreachableError, OSError):
        return None
    speeds = [rank.progress.pace.now for rank in snapshot.ranks if rank.progress.pace is not None]
    return sorted(speeds, key=lambda speed: speed.per_s)[len(speeds) // 2] if speeds else None


def last_state(entry: registry.JobEntry, *, from_journal: bool = True) -> tuple[Snapshot, Verdict]:
    """The last state that the relay wrote, else the end of its journal.

    A relay that was killed left only the journal; reading a large one takes seconds.

    Raises:
        UnreachableError: there is neither, or they cannot be read.
    """
    try:
        return call_patiently(lambda: _last_state(entry, from_journal), state_dir_text, LEFT_S)
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
    recording = read_recording(registry.journal_path(entry.job, entry.run, entry.sender), entry.job)
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
    at = follower.job.last_unix_ns or entry.heartbeat_unix_ns
    for _ in range(follower.judge.snapshots_needed):
        found = follower.look(at)
        at += 500_000_000
    return found


# -- The engine: a queue and a thread in front of the follower


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LOOK_LEAST_S, LOOK_MOST_S = 0.25, 3.0
LOOK_SHARE = 0.15
"""The share of a core for looks: four looks per second for 8 ranks, one every three seconds for
10,000."""
LOOK_SHARE_MOST = 0.5
"""The share if a look takes longer than that, as at 100,000 ranks."""
WAVERS_S = STEP_NS / 1e9
"""Something was found but is not shown yet: the second look comes as soon as it counts, whatever
its cost. These are the two or three looks until a finding appears or clears."""
BEHIND_S = 1.0
"""A look waits this long until the queued frames are applied: otherwise ranks would seem silent."""
MANY_PER_S, NAP_S = 400.0, 0.03
"""From this rate on, frames are applied in batches, because waking up for each frame would cost
more than the frame."""
SWITCH_S = 0.0005
GC_THRESHOLDS = (50_000, 10, 50)
"""The model has a million objects without reference cycles. With the default thresholds, Python's
collector walked through all of them every few seconds, which blocked key presses for 60 to 200 ms.
Only closed screens leave cycles, of a few thousand objects each."""
GC_EACH = 20
"""Added to the first threshold for each rank: the facts of two looks exist for a moment, which is
not growth."""
CHECKED_BYTES = 256 << 10
"""The amount of data between two checks of this process's memory, if it is bounded."""
LOOK_COST_BYTES = 4096
"""The memory that a look needs for each rank of the world size that the other side reports."""
SHOWN_S = 2.0
"""After this time the screens show the newest look, and the facts of older ones are freed. At
100,000 ranks those of one look, with the reports that they are made of, take 0.5 GiB."""
FREED_AT_ONCE = 250
"""How many ranks' facts are freed at once: freeing those of 10,000 takes 50 ms, during which no
other thread runs."""


_turns: list[tuple[float, tuple[int, int, int]]] = []
"""What each block of `short_turns` that runs now has to restore."""


@contextmanager
def short_turns() -> Iterator[None]:
    """Let the other threads of this process wait as little as possible, while the block runs: for
    the GIL, and for the garbage collector. The last of several blocks restores both."""
    before = _turns[0] if _turns else (sys.getswitchinterval(), gc.get_threshold())
    _turns.append(before)
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        _turns.pop()
        if not _turns:
            sys.setswitchinterval(before[0])
            gc.set_threshold(*before[1])


def expect_ranks(count: int) -> None:
    """Set the garbage collector so that the facts of this many ranks do not count as growth."""
    gc.set_threshold(GC_THRESHOLDS[0] + GC_EACH * count, *GC_THRESHOLDS[1:])


def free(facts: list[RankFacts]) -> None:
    """Free them a few at a time."""
    while facts:
        del facts[-FREED_AT_ONCE:]


Answers = Sequence[Reply | Stacks]


class EngineError(Exception):
    """The engine has failed and nothing new will come; the text says how."""


@dataclass(frozen=True, slots=True)
class NewestLook:
    """The newest look, and the connection from which it was made."""

    follower: Follower
    look: Look


@dataclass(frozen=True, slots=True)
class TapeMoment:
    """The state at `asked_unix_ns`, from the tape; or at the first moment of the tape, if that is
    later."""

    asked_unix_ns: int
    look: Look


class Engine:
    """Owns the followers and the tape.

    `put`, `travel`, `start` and `close` are for the event loop; so are `seen` and `moment`. The
    thread calls `on_news` with the answers to this viewer's requests, and with none if there is
    other news that a user waits for.
    """

    def __init__(
        self,
        job: str,
        on_news: Callable[[Answers], None] = lambda _: None,
        clock: Callable[[], int] = time.time_ns,
        bounds: Bounds = Bounds(),
        period: Callable[[float, bool], float] | None = None,
    ) -> None:
        """`period`: as `period_of_looks_s`, which is the default."""
        self._bounds, self._period = bounds, period or period_of_looks_s
        self.full = False
        """The memory limit is reached: the engine accepts no more data and makes no more looks."""
        self._job, self._clock = job, clock
        self._answers: list[Reply | Stacks] = []
        self.seen: NewestLook | None = None
        self.moment: TapeMoment | None = None
        self.dropped = 0
        self.failure: BaseException | None = None
        self._on_news = on_news
        self._tape = Tape(bounds.tape_bytes)
        self._queue: deque[tuple[Follower, bytes, float]] = deque()
        self._late_s = 0.0
        self._unchecked = 0
        self._put_bytes = self._taken_bytes = 0
        self._wake = threading.Event()
        self._stop = False
        self._thread: threading.Thread | None = None
        self._current: Follower | None = None
        self._heard = self._due = self._due_first = 0.0
        self._began = self._cost_s = 0.0
        self._wanted: int | None = None
        self._taken, self._counted_from, self._per_s = 0, time.monotonic(), 0.0
        self._turns = ExitStack()
        self._looked_at: deque[list[RankFacts]] = deque()
        self._handed_over = 0.0

    # -- for the event loop

    def start(self) -> None:
        """Start the thread; once."""
        self._turns.enter_context(short_turns())
        self._thread = threading.Thread(target=self._run, name="ddtop-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, at the latest after its current look."""
        self._stop = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._turns.close()

    def follower(self) -> Follower:
        """A follower for a new connection. Only this engine may use it, except for its flags and
        its clock."""
        follower = Follower(self._job, self._clock, self._answers.append)
        follower.compares = follower.newest_only = True
        return follower

    def put(self, follower: Follower, data: bytes) -> None:
        """Queue this frame for `follower`; if the queue is full, the frame is dropped and counted.
        O(1)."""
        if self.full or self._put_bytes - self._taken_bytes > self._bounds.queue_bytes:
            self.dropped += 1
            return
        self._put_bytes += len(data) + FRAME_COST_BYTES
        self._queue.append((follower, data, time.monotonic()))
        if not self._wake.is_set():
            self._wake.set()

    def travel(self, at_unix_ns: int | None) -> None:
        """Compute `moment` for that time; None: no longer wanted."""
        self._wanted = at_unix_ns
        self._wake.set()

    def check(self) -> None:
        """Raises: EngineError: it has failed."""
        if self.failure is not None:
            raise EngineError(f"{type(self.failure).__name__}: {self.failure}") from self.failure

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._stop:
                self._wake.wait(self._pause_s())
                self._wake.clear()
                self.turn()
                if self._per_s > MANY_PER_S and not self._queue and not self._stop:
                    time.sleep(NAP_S)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the loop says it and ends
            self.failure = error
            self._on_news(())

    def turn(self) -> None:
        """Apply what has come, and look if it is time. For a thread that has many engines: those
        are not started, and `forget` what was seen."""
        self._take_in()
        self._go_back()
        if time.monotonic() - self._handed_over > SHOWN_S:
            self._free_looks(1)
        if self._is_due():
            self._look()

    def forget(self) -> None:
        """Free the facts of all looks. Until the next one `seen` is None."""
        self.seen = None
        self._free_looks(0)

    def _pause_s(self) -> float:
        return (
            min(max(self._due - time.monotonic(), 0.0), LOOK_MOST_S)
            if self._current is not None
            else LOOK_MOST_S
        )

    def _take_in(self) -> None:
        if not self._queue:
            return
        self._heard = time.monotonic()
        until = self._heard + LOOK_LEAST_S
        taken = 0
        while self._queue and not self._stop:
            follower, data, came = self._queue.popleft()
            self._taken_bytes += len(data) + FRAME_COST_BYTES
            if self._is_full(len(data), 0):
                break
            envelope = follower.take(data)
            if envelope is not None:
                self._tape.add(envelope, data, follower.job)
            taken += 1
            if taken & 255 == 0 and time.monotonic() > until:
                self._wake.set()
                break
        self._taken += taken
        if self.full:
            return
        self._late_s = time.monotonic() - came if self._queue else 0.0
        if follower.live and follower is not self._current:
            self._current, self._due = follower, 0.0
            self._on_news(())
        if follower.stuck_unix_ns is not None:
            self._plan_for_stuck(follower, follower.stuck_unix_ns)
        self._hand_over(Reply)
        if self._answers:
            # These are stacks: show them to the user now, not at the next look.
            self._due = min(self._due, self._due_first)

    def _plan_for_stuck(self, follower: Follower, stuck_unix_ns: int) -> None:
        """Plan the next look for the time at which a hang that may have begun can be named."""
        since_s = (follower.now_unix_ns() - stuck_unix_ns) / 1e9
        wanted = time.monotonic() - since_s + follower.stuck_look_s
        self._due = due_for_stuck_s(self._due, self._began, self._cost_s, wanted)

    def _is_full(self, taken_bytes: int, wanted_bytes: int) -> bool:
        """Whether the memory limit is reached, including `wanted_bytes` more. It is checked after
        each small amount of data."""
        most = self._bounds.memory_bytes
        if most is None or self.full:
            return self.full
        self._unchecked += taken_bytes
        if self._unchecked < CHECKED_BYTES:
            return False
        self._unchecked = 0
        if _resident_bytes() + wanted_bytes < most:
            return False
        self.full = True
        self._queue.clear()
        self._tape = Tape(0)
        self._answers.clear()
        self._on_news(())
        return True

    def _is_due(self) -> bool:
        now = time.monotonic()
        if self._current is None or now < self._due:
            return False
        if now - self._heard > self._current.policy.relay_silent_s:
            self._due = now + LOOK_LEAST_S
            return False
        return not self._queue or now >= self._due + BEHIND_S

    def _look(self) -> None:
        follower = self._current
        assert follower is not None
        if self._is_full(CHECKED_BYTES, follower.job.world_size * LOOK_COST_BYTES):
            return
        began, worked = time.monotonic(), time.thread_time()
        # Ranks with queued frames would look silent, so the look is for the time of the last
        # applied frame.
        at = follower.now_unix_ns() - int(self._late_s * 1e9)
        before = self.seen
        if self._late_s and before is not None and before.follower is follower:
            # A queue that grows faster than time passes must not turn the clock back.
            at = max(at, before.look.snapshot.time_unix_ns if before.look.snapshot else 0)
        snapshot, verdict = follower.look(at)
        self._tape.notice(follower.judge.found)
        # A viewer that attaches after the end has not seen the earlier findings, but the relay has
        # sent the records.
        verdict = self._tape.with_what_stood(snapshot, verdict)
        snapshot = replace(snapshot, notes=(*self._notes(), *snapshot.notes))
        tape = self._tape
        recall = tape.looks if tape.span is not None else None
        look = Look(
            snapshot,
            verdict,
            span=tape.span,
            marks=tape.marks,
            recall=recall,
            untaped=tape.too_many,
            behind_s=self._late_s if self._is_behind(follower) else None,
            settled=follower.settled,
        )
        self.seen = NewestLook(follower, look)
        if before is None or before.follower is not follower or _differ(before.look, look):
            # Otherwise the screens would show it up to half a second later.
            self._on_news(())
        self._free_old_looks(snapshot)
        # Stacks are passed on after the look that includes them, so that a dump that is reported as
        # complete is complete on the screen.
        self._hand_over(Reply, Stacks)
        cost_s = time.thread_time() - worked
        self._began, self._cost_s = began, cost_s
        self._due_first = began + 2 * cost_s
        self._due = began + self._period(cost_s, not follower.settled)
        if began > self._counted_from:
            self._per_s = self._taken / (began - self._counted_from)
            self._taken, self._counted_from = 0, began

    def _free_old_looks(self, snapshot: Snapshot) -> None:
        """Free the facts of the look before the last one. The screens show the last one by now."""
        self._looked_at.append(list(snapshot.ranks))
        self._handed_over = time.monotonic()
        self._free_looks(2)
        expect_ranks(len(snapshot.ranks))

    def _free_looks(self, most: int) -> None:
        """Free the facts of all but the newest `most` looks, a few at a time."""
        while len(self._looked_at) > most:
            free(self._looked_at.popleft())

    def _is_behind(self, follower: Follower) -> bool:
        return self._late_s > follower.policy.viewer_late_s

    def _notes(self) -> Iterator[str]:
        if self.dropped:
            yield (
                f"{self.dropped:,} records were dropped: they came faster than they could be read"
            )
        if self._current is not None and self._is_behind(self._current):
            yield f"this viewer is {self._late_s:.0f} s behind: its host leaves it too little CPU"

    def _hand_over(self, *kinds: type[Reply | Stacks]) -> None:
        """Pass the answers of these kinds to the event loop."""
        answers = [answer for answer in self._answers if isinstance(answer, kinds)]
        if answers:
            self._answers[:] = [answer for answer in self._answers if not isinstance(answer, kinds)]
            self._on_news(answers)

    def _go_back(self) -> None:
        wanted, span = self._wanted, self._tape.span
        if (
            wanted is None
            or span is None
            or (self.moment is not None and self.moment.asked_unix_ns == wanted)
        ):
            return
        at = max(wanted, span[0])
        self.moment = TapeMoment(
            wanted, Look(*self._tape.at(at), travelled=True, past=Past(self._tape, at))
        )
        self._on_news(())


def _differ(before: Look, look: Look) -> bool:
    """Whether the verdict names other findings than before."""
    names = [[finding.identity for finding in found.verdict.findings] for found in (before, look)]
    return before.verdict.health != look.verdict.health or names[0] != names[1]


def period_of_looks_s(cost_s: float, wavers: bool) -> float:
    """Seconds from one look to the next, where a look takes `cost_s` of CPU.

    `wavers`: a finding waits for its second opinion, or the first looks are not over.
    """
    most_s = max(LOOK_MOST_S, cost_s / LOOK_SHARE_MOST)
    period_s = min(max(cost_s / LOOK_SHARE, LOOK_LEAST_S), most_s)
    return min(period_s, max(WAVERS_S, cost_s)) if wavers else period_s


def due_for_stuck_s(due: float, began: float, cost_s: float, wanted: float) -> float:
    """The time of the next look, if a hang can be named from `wanted` on.

    `due`: the time without this; `began` and `cost_s`: of the last look. A look that would not be
    finished at `wanted` starts at `wanted`, and so does a later one. All in seconds of one clock.
    """
    if due + cost_s <= wanted:
        return due
    return max(wanted, began + cost_s)


def _resident_bytes() -> int:
    """Of this process. Source: the second field of /proc/self/statm, in pages."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
