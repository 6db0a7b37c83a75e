"""What a viewer has received, with its times, and what it saw at any of these times.

The tape is cut into segments. Each begins with a copy of the model at that time. To show a moment,
the frames between the copy and that moment are taken in, which are those of a few seconds. The copy
has all that the model remembers, also from an hour before, such as the last report of a stopped
rank. A new judge looks several times until that moment, so that it has the same findings as the
judge had then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from ddtop.diagnosis.diagnoses import conclude
from ddtop.diagnosis.finding import CRITICAL, INFO, Finding, Verdict
from ddtop.diagnosis.judge import STEP_NS, Judge, began_to_end_unix_ns, is_over, with_what_stood
from ddtop.feeds.route import LIVE_BYTES
from ddtop.follow.history import DEPTH, PERIOD_NS, Memory, SeriesHistory, empty_memory
from ddtop.follow.lanes import COLLECTIVE, GONE, cell_of, lane_cell
from ddtop.model.facts import Snapshot
from ddtop.model.job import Job
from ddtop.model.memory import Series
from ddtop.policy import Policy
from ddtop.say import told
from ddtop.wire import frames
from ddtop.wire.records import HostState, ProcessState, RankState

FRAME_COST_BYTES = 128
"""Bytes that Python needs for each frame beside its data."""
RANK_COST_BYTES = 4096
"""Bytes of the copy of one rank's facts: its records are shared with the next copy, its series are
not."""
SEGMENT_NS = 20_000_000_000
"""A moment is at most this far from the copy before it. A copy takes about a quarter of what the
frames up to the next one do."""
SEGMENT_PART = 8
"""No segment is larger than this part of the budget: segments are forgotten whole."""
COPIES_MIN = 4
"""A world of which not even this many copies fit is not taped. The limit is about 4,096 ranks live,
and 12,000 in a replay."""
LOOKS, MANY, LOOKS_OF_MANY = 5, 64, 3
"""Looks of the judge up to a moment: a finding appears after two and clears after three. From MANY
ranks on a look costs 20 ms and more: then as many as are needed."""
MARKS_MAX = 512

Mark = tuple[int, str]
SHOWN = "shown"
"""A mark: from this moment on a critical finding can be seen."""
"""When (unix ns) something happened, and what: a finding's severity, or `gone` for a rank that
ended."""


@dataclass(slots=True)
class _Segment:
    """`job` is the model at `begin_unix_ns`, before the frames."""

    job: Job
    begin_unix_ns: int
    cost: int
    times: list[int] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)


class Tape:
    """The last frames of a job, at most about `bytes_max`; the oldest are dropped first."""

    def __init__(self, bytes_max: int = LIVE_BYTES) -> None:
        self.forgotten = 0
        self._too_many = 0
        self._bytes_max = bytes_max
        self._segments: deque[_Segment] = deque()
        self._job: Job | None = None
        self._last_unix_ns = 0
        self._firsts: dict[str, int] = {}
        self._hosts: dict[str, HostState] = {}
        self._marks: deque[Mark] = deque(maxlen=MARKS_MAX)
        self._found: frozenset[object] = frozenset()
        self._before_end: tuple[int, tuple[Finding, ...]] | None = None

    def add(self, envelope: frames.Envelope, data: bytes, job: Job) -> None:
        """Keep a frame that `job` has just taken in.

        If `job` is another object than the last time, the follower has joined again. Then frames
        of a time that is on the tape already are not kept twice.
        """
        # First of all: such a world says ten thousand things a second.
        if COPIES_MIN * RANK_COST_BYTES * len(job.ranks) > self._bytes_max:
            self._segments.clear()
            self._too_many = len(job.ranks)
            return
        self._too_many = 0
        at = job.on_hub_clock(envelope)
        if envelope.kind in ("Command", "Reply") or (
            job is not self._job and at <= self._last_unix_ns
        ):
            return
        if envelope.kind == "HostState" and not self._is_news(envelope.sender, job):
            return
        self._last_unix_ns = max(self._last_unix_ns, at)
        self._firsts.setdefault(envelope.kind, at)
        if envelope.kind == "Exit":
            self._mark(at, "gone")
        if job is not self._job or not self._segments:
            self._job = job
            self._begin(job)
            return
        segment = self._segments[-1]
        segment.times.append(at)
        segment.data.append(data)
        segment.cost += len(data) + FRAME_COST_BYTES
        # Of a large world the copy alone is more than that part: then as much in frames again.
        most = max(self._bytes_max // SEGMENT_PART, 2 * RANK_COST_BYTES * len(segment.job.ranks))
        if at - segment.begin_unix_ns >= SEGMENT_NS or segment.cost >= most:
            self._begin(job)

    def _is_news(self, sender: str, job: Job) -> bool:
        """Whether a report of a host is kept. The relay of an ended job goes on to report that no
        rank lives; of these only the first is kept."""
        known = job.hosts.get(sender)
        if known is None:
            return False
        host, before = known[1], self._hosts.get(sender)
        self._hosts[sender] = host
        quiet = (
            before is not None
            and not before.processes
            and before.launcher_alive == host.launcher_alive
        )
        return bool(host.processes) or not quiet

    def _begin(self, job: Job) -> None:
        """A new segment; the oldest are forgotten."""
        self._segments.append(
            _Segment(job.copy(), self._last_unix_ns, RANK_COST_BYTES * (len(job.ranks) + 1))
        )
        cost = sum(segment.cost for segment in self._segments) + self._bytes_max // SEGMENT_PART
        while cost > self._bytes_max and len(self._segments) > 1:
            first = self._segments.popleft()
            cost -= first.cost
            self.forgotten += len(first.data)

    @property
    def too_many(self) -> str | None:
        """Why nothing is kept, one sentence; None while frames are kept."""
        if not self._too_many:
            return None
        return (
            f"{self._too_many:,} ranks are too many to keep what was: {self._bytes_max >> 20} MiB"
            f" hold {self._bytes_max // COPIES_MIN // RANK_COST_BYTES:,}; ddtop replay shows the"
            " journal"
        )

    @property
    def policy(self) -> Policy:
        """The thresholds by which its moments are judged: those of the job that was recorded."""
        return self._segments[0].job.policy

    @property
    def span(self) -> tuple[int, int] | None:
        """The first and the last moment (unix ns) that can be shown.

        It begins when a host and a rank had reported, because a viewer that joins late also gets
        old reports of ranks that have ended. It ends with the last new report.
        """
        if not self._segments:
            return None
        heard = (self._firsts.get(kind, 0) for kind in ("Hello", "HostState"))
        begin = max(self._segments[0].begin_unix_ns, *heard)
        return min(begin, self._last_unix_ns), self._last_unix_ns

    @property
    def marks(self) -> tuple[Mark, ...]:
        """When findings began and ranks ended, as far as that was noticed."""
        return tuple(self._marks)

    def notice(self, findings: Iterable[Finding]) -> None:
        """Mark findings of this look that the last look did not have: when they began, and of a
        critical one the first picture that shows it."""
        found = [finding for finding in findings if finding.severity != INFO]
        for finding in found:
            if finding.identity not in self._found:
                self._mark(finding.since_unix_ns, finding.severity)
                if finding.severity == CRITICAL:
                    self._mark(self._last_unix_ns, SHOWN)
        self._found = frozenset(finding.identity for finding in found)

    def _mark(self, at: int, what: str) -> None:
        if (at, what) not in self._marks:
            self._marks.append((at, what))

    def between(self, first_unix_ns: int, last_unix_ns: int) -> Iterator[tuple[int, bytes]]:
        """The frames of that time with when they were made (unix ns), in order of arrival."""
        # Another thread may go on recording.
        segments = list(self._segments)
        for number, segment in enumerate(segments):
            following = (
                segments[number + 1].begin_unix_ns if number + 1 < len(segments) else last_unix_ns
            )
            if segment.begin_unix_ns > last_unix_ns or following < first_unix_ns:
                continue
            for at, data in zip(segment.times, segment.data, strict=False):
                if first_unix_ns <= at <= last_unix_ns:
                    yield at, data

    def at(self, unix_ns: int) -> tuple[Snapshot, Verdict]:
        """Snapshot and verdict at that moment, as a viewer that had looked for some time saw them.

        `span` must not be None. A few milliseconds for 8 ranks, a few hundred for 256; twice that
        for a job that is over.
        """
        snapshot, verdict = self._look_at(unix_ns)
        return snapshot, self.with_what_stood(snapshot, verdict)

    def with_what_stood(self, snapshot: Snapshot, verdict: Verdict) -> Verdict:
        """The verdict on an ended job, with the findings until its end; others are unchanged."""
        end_unix_ns = began_to_end_unix_ns(verdict.findings, snapshot)
        if end_unix_ns is None or not is_over(snapshot):
            return verdict
        if self.span is None or self.span[0] >= end_unix_ns:
            return verdict
        if self._before_end is None or self._before_end[0] != end_unix_ns:
            _, before = self._look_at(end_unix_ns - STEP_NS)
            self._before_end = (end_unix_ns, before.findings)
        findings = with_what_stood(verdict.findings, self._before_end[1], snapshot, self.policy)
        if findings == verdict.findings:
            return verdict
        verdict = replace(conclude(findings, snapshot), muted=verdict.muted)
        return told.told(verdict, snapshot, self.policy)

    def _look_at(self, unix_ns: int) -> tuple[Snapshot, Verdict]:
        looks = LOOKS if len(self._segments[-1].job.ranks) < MANY else LOOKS_OF_MANY
        moments = [unix_ns - STEP_NS * back for back in range(looks - 1, -1, -1)]
        begins = [segment.begin_unix_ns for segment in self._segments]
        first = max(bisect_right(begins, moments[0]) - 1, 0)
        job = self._segments[first].job.copy()
        judge = Judge(job.policy)
        waiting = [
            (at, data)
            for segment in list(self._segments)[
                first : max(bisect_right(begins, unix_ns), first + 1)
            ]
            for at, data in zip(segment.times, segment.data, strict=True)
        ]
        for moment in moments:
            later = []
            for at, data in waiting:
                if at <= moment:
                    _apply(job, data)
                else:
                    later.append((at, data))
            waiting = later
            found = told.look(judge, job.snapshot(moment))
        return found

    def looks(self, step_ns: int) -> Iterator[tuple[Snapshot, Verdict]]:
        """What a viewer saw that looked every `step_ns` over all that is kept, in one pass; for
        another thread.

        Segments that are forgotten meanwhile are left out; a finding stands after as many looks as
        always.
        """
        segments = list(self._segments)
        if not segments:
            return
        job, due = segments[0].job.copy(), segments[0].begin_unix_ns
        judge = Judge(job.policy)
        for segment in segments:
            for at, data in list(zip(segment.times, segment.data, strict=False)):
                _apply(job, data)
                if at >= due:
                    due = at + step_ns
                    yield told.look(judge, job.snapshot(at))


def _apply(job: Job, data: bytes) -> None:
    envelope = frames.open_envelope(data)
    try:
        job.apply(envelope, frames.open_record(envelope))
    except frames.WireError:
        # The model did not get it then either.
        return


# -- The sparklines of a moment that was travelled to: a rank's numbers in the minutes before it,
#    from the tape


class Past(SeriesHistory):
    """What a viewer would remember that had followed the job until that moment.

    Made for the ranks that somebody asks for.
    """

    def __init__(self, tape: Tape, unix_ns: int) -> None:
        super().__init__()
        self._tape, self._unix_ns = tape, unix_ns

    def memory_of(self, rank: int) -> Memory:
        """The rank's numbers up to that moment, one a second."""
        self.read([rank])
        return self._memories[rank]

    def read(self, ranks: Iterable[int]) -> None:
        """Those of these ranks, in one pass over the tape."""
        found = {rank: _Read(self._tape.policy) for rank in ranks if rank not in self._memories}
        self._memories |= {rank: read.memory for rank, read in found.items()}
        begin = self._unix_ns - DEPTH * PERIOD_NS
        for at, data in self._tape.between(begin, self._unix_ns) if found else ():
            envelope = frames.open_envelope(data)
            if envelope.kind == "RankState" and envelope.rank in found:
                record = frames.open_record(envelope)
                if isinstance(record, RankState):
                    found[envelope.rank].take(at, record)
            elif envelope.kind == "Exit" and envelope.rank in found:
                found[envelope.rank].end(at)
            elif envelope.kind == "HostState":
                record = frames.open_record(envelope)
                for process in record.processes if isinstance(record, HostState) else ():
                    if process.rank in found:
                        found[process.rank].look(at, process)


class _Read:
    """The memory of one rank, while its records are read."""

    def __init__(self, policy: Policy) -> None:
        self.memory = empty_memory()
        self._policy, self._waits = policy, Series(policy.window_s)
        self._cpu = Series(policy.cpu_window_s)
        self._state: RankState | None = None
        self._process: ProcessState | None = None
        self._due_unix_ns = 0

    def look(self, at: int, process: ProcessState) -> None:
        """Take what the relay saw of its process."""
        self._process = process
        if process.cpu_ns is not None:
            self._cpu.add(at, process.cpu_ns)

    def take(self, at: int, state: RankState) -> None:
        """Take a report of the rank; at most one a second is remembered."""
        self._waits.add(at, state.wait_samples, state.all_samples)
        if at < self._due_unix_ns:
            return
        self._append(at, state, self._cell(at, state))
        self._state = state

    def end(self, at: int) -> None:
        """Take the end of the rank."""
        if self._state is not None:
            self._append(at, self._state, cell_of(GONE, 0.0))

    def _append(self, at: int, state: RankState, cell: int | None) -> None:
        self._due_unix_ns = at + PERIOD_NS
        policy, memory = self._policy, self.memory
        grown = self._waits.growth(policy.window_s, at)
        measured = grown is not None and grown[0] >= policy.window_min_s and grown[1][1] > 0
        progress, step_ms = state.progress_unix_ns, state.step_ms
        old_ms = max(policy.step_old_s * 1e3, policy.step_old_factor * (step_ms or 0.0))
        stale = progress is not None and at - progress > old_ms * 1e6
        memory.seconds.append(at // PERIOD_NS)
        memory.step_ms.append(None if stale else step_ms)
        memory.wait_ratio.append(
            min(1.0, grown[1][0] / grown[1][1]) if measured and grown else None
        )
        memory.loader_depth.append(state.loader.depth if state.loader else None)
        memory.rss_bytes.append(self._process.rss_bytes if self._process is not None else None)
        memory.lane.append(cell)

    def _cell(self, at: int, state: RankState) -> int | None:
        if self._state is None:
            return None
        if any(call.since_unix_ns <= at - PERIOD_NS for call in state.open_calls):
            return cell_of(COLLECTIVE, 0.0)
        used = self._cpu.growth(self._policy.cpu_window_s, at)
        cpu = used[1][0] / (used[0] * 1e9) if used is not None else None
        before, pending = self._state.activity_samples, bool(state.open_collectives)
        return lane_cell(before, state.activity_samples, cpu, state.cuda is not None, pending)
