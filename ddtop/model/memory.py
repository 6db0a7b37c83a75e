"""What a viewer remembers of a job and of its ranks. Only `Job.apply` and what it calls change it.

Times are unix ns on the hub's clock, as far as the clock of the sender's host is known
(`ddtop.model.hosts`). None is "not reported yet".
"""

from __future__ import annotations

import copy
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import lt, sub
from sys import intern
from typing import Any, TypeVar

import msgspec
from msgspec.structs import force_setattr

from ddtop.model import progress
from ddtop.model.call_order import Numbers, Parted
from ddtop.model.facts import Apart, Axis, Balance, Began, Candidate, Coordinates, Late, Own
from ddtop.model.gpu_memory import JobGpus
from ddtop.policy import Limits, Policy
from ddtop.wire.frames import Envelope
from ddtop.wire.records import (
    Arrivals,
    Candidacy,
    Exit,
    Group,
    GroupMade,
    Hello,
    HostState,
    Mute,
    Order,
    Place,
    ProcessState,
    RankState,
    RasAnswer,
    Rendezvous,
    Speed,
    Stacks,
    Turn,
)
from ddtop.wire.times import shift


@dataclass(frozen=True)
class CandidateLimits(Limits, of="candidate"):
    """Whether a process that has not joined makes progress."""

    asleep_s: float = 5.0
    """A process that has not joined and has not woken for this time makes no progress. A slow
    import wakes about once a second."""


# -- The ranks' answers about their arrivals in collectives, by round


ROUNDS_KEPT = 6


@dataclass(frozen=True, slots=True)
class Answer:
    """What one rank has answered in a round, and on which host."""

    rank: int
    host: str
    unix_ns: int
    arrivals: Arrivals
    #: Recently its main thread was in backward more than in collectives, so it waits for gradients.
    overlaps: bool = False
    #: Its answer in the round before.
    before: Arrivals | None = None
    #: How far its host's clock may be off the hub's; None: not measured.
    error_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one read of the arrivals."""

    late: tuple[Late, ...] = ()
    balances: tuple[Balance, ...] = ()


class Rounds:
    """The last answers of the ranks, by the request that they answer.

    `found` holds the result of each round, so that it is computed only once.
    """

    def __init__(self) -> None:
        self.answers: dict[str, dict[int, Answer]] = {}
        self.found: dict[str, tuple[tuple[str, ...], Round]] = {}

    def add(self, answer: Answer) -> None:
        """Add one answer."""
        request = answer.arrivals.request
        rounds = self.answers.values()
        before = next(
            (answers[answer.rank] for answers in reversed(rounds) if answer.rank in answers), None
        )
        if before is not None and before.arrivals.request != request:
            answer = replace(answer, before=before.arrivals)
        self.answers.setdefault(request, {})[answer.rank] = answer
        self.found.pop(request, None)
        while len(self.answers) > ROUNDS_KEPT:
            oldest = next(iter(self.answers))
            del self.answers[oldest]
            self.found.pop(oldest, None)

    def __copy__(self) -> Rounds:
        rounds = Rounds()
        rounds.answers = {request: dict(answers) for request, answers in self.answers.items()}
        rounds.found = dict(self.found)
        return rounds

    def move(self, host: str, by_ns: int) -> None:
        """Add `by_ns` to all times of that host: the offset of its clock was corrected."""
        for answers in self.answers.values():
            for rank, answer in answers.items():
                if answer.host == host:
                    before = shift(answer.before, by_ns) if answer.before is not None else None
                    answers[rank] = replace(
                        answer,
                        unix_ns=answer.unix_ns + by_ns,
                        arrivals=shift(answer.arrivals, by_ns),
                        before=before,
                    )
        self.found.clear()

    def clear(self) -> None:
        """Forget everything: another attempt begins."""
        self.answers.clear()
        self.found.clear()

    def __bool__(self) -> bool:
        return bool(self.answers)


# -- Text that many ranks report alike is kept once. Each record is read with text of its own, and
#    of 100,000 Hellos that is 100 MB


_TEXTS = (
    "job", "run", "host", "script", "python", "torch", "backend", "agent_version", "claim",
)  # fmt: skip


def share_text(hello: Hello, other: Hello | None) -> None:
    """Let this Hello share its text with all others, and with `other` its arguments.

    It stays equal to what it was. What is shared is freed with its last user.
    """
    for name in _TEXTS:
        text = getattr(hello, name)
        if text is not None:
            force_setattr(hello, name, intern(text))
    environment = {intern(key): intern(value) for key, value in hello.environment.items()}
    force_setattr(hello, "environment", environment)
    if other is not None and hello.argv == other.argv:
        force_setattr(hello, "argv", other.argv)


# -- Cumulative counters over time, bounded: any two points give a window
#
# At 10,000 ranks there are 30,000 of these, so a series is one flat array of integers. Ten seconds
# of three series take 2 KB for each rank, a fifteenth of deques of tuples, and the garbage
# collector has nothing to walk through.


POINTS = 128
"""More than a minute at 2 Hz. A sender that reports more than 12 times a second has shorter
windows."""
KEEP_S = 10.0
"""The longest window that states and rules use by default (`Policy.window_s`)."""


class Series:
    """Points of (unix ns, counters...), ascending. A point that is not newer than the last is
    ignored.

    It keeps the points of the last `keep_s` seconds and the one before: what any window of up to
    `keep_s` needs.
    """

    __slots__ = ("_keep_ns", "_points", "_stride")

    def __init__(self, keep_s: float = KEEP_S) -> None:
        self._points = array("q")
        self._stride = 1
        self._keep_ns = int(keep_s * 1e9)

    def __copy__(self) -> Series:
        series = Series.__new__(Series)
        series._points, series._stride, series._keep_ns = (
            self._points[:],
            self._stride,
            self._keep_ns,
        )
        return series

    def add(self, unix_ns: int, *values: int) -> None:
        """Append a point.

        Counters that fell (a new process) start the series anew. Counters beyond 63 bits are
        refused.
        """
        points, stride = self._points, self._stride
        if points:
            if unix_ns <= points[-stride]:
                return
            if stride != len(values) + 1 or True in map(lt, values, points[1 - stride :]):
                del points[:]
        self._stride = stride = len(values) + 1
        try:
            points.fromlist([unix_ns, *values])
        except OverflowError:
            del points[:]
            return
        # Usually one point comes and one goes.
        size, keep = len(points), unix_ns - self._keep_ns
        old = max(size - POINTS * stride, 0)
        while old + stride < size and points[old + stride] <= keep:
            old += stride
        if old:
            del points[:old]

    def move(self, by_ns: int) -> None:
        """Add `by_ns` to the times of all points: the offset of their clock was corrected."""
        points = self._points
        for at in range(0, len(points), self._stride):
            points[at] += by_ns

    def __len__(self) -> int:
        return len(self._points) // self._stride

    def growth(self, window_s: float, now_unix_ns: int) -> tuple[float, tuple[float, ...]] | None:
        """(seconds, growth of each counter) over the last `window_s` (at most `keep_s`).

        The window ends at the newest point. None with fewer than two points, or if the newest point
        is older than the window.
        """
        begin = self._begin(window_s, now_unix_ns)
        if begin is None:
            return None
        points, stride = self._points, self._stride
        end = len(points) - stride
        grown = tuple(map(sub, points[end + 1 :], points[begin + 1 : begin + stride]))
        return (points[end] - points[begin]) / 1e9, grown

    def grown_of(
        self, counters: Sequence[int], window_s: float, now_unix_ns: int
    ) -> tuple[float, float] | None:
        """(seconds, growth of these counters together); as `growth`, which takes twice as long."""
        begin = self._begin(window_s, now_unix_ns)
        if begin is None:
            return None
        points, grown = self._points, 0
        end = len(points) - self._stride
        for counter in counters:
            grown += points[end + 1 + counter] - points[begin + 1 + counter]
        return (points[end] - points[begin]) / 1e9, grown

    def _begin(self, window_s: float, now_unix_ns: int) -> int | None:
        """Where the point is with which the window begins; None as `growth` says."""
        points, stride = self._points, self._stride
        end = len(points) - stride
        if end <= 0:
            return None
        end_ns, window_ns = points[end], int(window_s * 1e9)
        if now_unix_ns - end_ns > window_ns:
            return None
        latest_ns = end_ns - window_ns
        if points[0] >= latest_ns:
            return 0
        if 2 * window_ns > end_ns - points[0]:
            # The window covers most of the points: its begin is near the first.
            begin = 0
            while begin + stride < end and points[begin + stride] <= latest_ns:
                begin += stride
            return begin
        begin = end - stride
        while begin > 0 and points[begin] > latest_ns:
            begin -= stride
        return begin


# -- Processes that may become ranks and have not reported yet, as the relays see them


CANDIDATES_MAX = 256


@dataclass
class CandidateMemory:
    """What was seen of one candidate. Times are unix ns of its relay."""

    host: str
    process: ProcessState
    first_unix_ns: int
    #: (cpu ns, I/O bytes, context switches) of the process.
    cpu: Series
    candidacy: Candidacy | None = None


class Candidates:
    """The candidates of a job, by relay and pid.

    A process that its relay no longer reports is removed.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], CandidateMemory] = {}

    def __copy__(self) -> Candidates:
        candidates = Candidates()
        candidates._found = {
            key: replace(candidate_memory, cpu=copy.copy(candidate_memory.cpu))
            for key, candidate_memory in self._found.items()
        }
        return candidates

    def apply(self, sender: str, unix_ns: int, host: HostState, policy: Policy) -> None:
        """Take in the report of a relay."""
        keep_s = max(policy.cpu_window_s, policy.of(CandidateLimits).asleep_s)
        here = {process.pid for process in host.candidates}
        for key in [key for key in self._found if key[0] == sender and key[1] not in here]:
            del self._found[key]
        why = {candidacy.pid: candidacy for candidacy in host.candidacies}
        for process in host.candidates:
            candidate_memory = self._found.get((sender, process.pid))
            if candidate_memory is None:
                if len(self._found) >= CANDIDATES_MAX:
                    continue
                candidate_memory = self._found[sender, process.pid] = CandidateMemory(
                    host.host, process, unix_ns, Series(keep_s)
                )
            candidate_memory.process, candidate_memory.candidacy = process, why.get(process.pid)
            candidate_memory.cpu.add(
                unix_ns, process.cpu_ns or 0, process.io_bytes or 0, process.switches or 0
            )

    def move(self, sender: str, by_ns: int) -> None:
        """Add `by_ns` to all times of that relay: the offset of its clock was corrected."""
        for key, memory in self._found.items():
            if key[0] == sender:
                memory.first_unix_ns += by_ns
                memory.process = shift(memory.process, by_ns)
                if memory.candidacy is not None:
                    memory.candidacy = shift(memory.candidacy, by_ns)
                memory.cpu.move(by_ns)

    def clear(self) -> None:
        """Forget everything: another attempt begins."""
        self._found.clear()

    def facts(self, now_unix_ns: int, policy: Policy) -> tuple[Candidate, ...]:
        """All candidates, by host and pid."""
        candidates = []
        for memory in self._found.values():
            grown = memory.cpu.growth(policy.cpu_window_s, now_unix_ns)
            cpu_ratio = working = woke = None
            if grown is not None:
                seconds, (cpu_ns, io_bytes, switches) = grown
                cpu_ratio = cpu_ns / (seconds * 1e9)
                working = (
                    cpu_ratio >= policy.cpu_working_ratio
                    or io_bytes / seconds >= policy.io_working_bytes_per_s
                )
                # A slow import reads a little between its pauses. A stuck process does not wake up.
                longer = memory.cpu.growth(policy.of(CandidateLimits).asleep_s, now_unix_ns)
                woke = bool(switches) or (longer is not None and bool(longer[1][2]))
            candidates.append(
                Candidate(
                    memory.host,
                    memory.process,
                    memory.first_unix_ns,
                    cpu_ratio,
                    working,
                    woke,
                    memory.candidacy,
                )
            )
        return tuple(
            sorted(candidates, key=lambda candidate: (candidate.host, candidate.process.pid))
        )


# -- The memory of one rank and of the job


Record = TypeVar("Record", bound=msgspec.Struct)

ORDERS_MAX = 64
"""Orders of people that are remembered. The recording has all of them."""
NOTES_MAX = 32
GROUPS_KEPT = 256
"""So many groups of a job are remembered, even if no rank lists them any more."""


@dataclass(frozen=True, slots=True)
class Clock:
    """A host's clock: its times plus `offset_ns` are the hub's, wrong by at most `error_ns`."""

    offset_ns: int
    error_ns: int


@dataclass(slots=True)
class RankMemory:
    """What one rank's process and its relay have reported.

    It has slots: a dict of so many attributes takes 1.6 KB for each rank.
    """

    hello: Hello
    hello_unix_ns: int
    #: Identity of the relay that reports this rank.
    sender: str
    #: The life of the job that the process belongs to (`JobMemory.generation`).
    generation: int = 0
    #: The longest window over which its counters are measured, seconds.
    keep_s: float = KEEP_S

    # Reported by the agent in the rank:
    state: RankState | None = None
    state_unix_ns: int = 0
    #: Since when every report has named the same line and the same call below it.
    line_since_unix_ns: int = 0
    #: The last place in the program's own code, before its interpreter began to exit.
    own_place: Place | None = None
    #: When the phase of `state` was first reported.
    phase_since_unix_ns: int = 0
    #: Counters of `ratios.counters`.
    counters: Series = field(init=False)
    #: (waited ns, batches, iteration, `loader_busy_ns`) of the DataLoader.
    loader: Series = field(init=False)
    #: How long its workers had batches to make, mean of all workers.
    loader_busy_ns: int = 0
    owing: progress.Owing | None = None
    not_finite: Began | None = None
    #: Since when its parameters differ from those of the first rank of their group.
    apart: Apart = field(default_factory=dict)
    #: Share of the time spent waiting over twenty seconds, as the envelope says it.
    wait_long_ratio: float | None = None
    step_best_ms: float | None = None
    #: The two longest pauses between two moments of progress, the longest first.
    longest_pauses_ns: tuple[int, int] = (0, 0)
    #: The last groups that it has made.
    made: tuple[GroupMade, ...] | None = None
    #: Its place in each of its groups whose meaning is known.
    coordinates: Coordinates = ()
    #: The names of the groups that it has listed last.
    groups: tuple[str, ...] = ()
    #: Of its collective calls, and what of them must be equal on ranks in step.
    turns: tuple[Turn, ...] = ()
    turn_numbers: Numbers = ()
    #: The newest dump of the process, and the newest of each DataLoader worker by pid.
    stacks: Stacks | None = None
    worker_stacks: dict[int, Stacks] = field(default_factory=dict)

    # Reported by the relay of its host:
    process: ProcessState | None = None
    process_unix_ns: int = 0
    #: What its standard output and its standard error are.
    outputs: tuple[str, ...] = ()
    #: The wait channel in which its main thread was last seen asleep.
    slept_in: str | None = None
    #: Since when the main thread has had its state letter (R, S, D, T) of /proc.
    process_state_since_unix_ns: int = 0
    #: Since when it has been in the same uninterruptible sleep; None: it is in none.
    stalled_since_unix_ns: int | None = None
    #: (cpu ns, I/O bytes, context switches) of the process.
    cpu: Series = field(init=False)
    #: What the host does to the process; None while the relay does not measure it.
    load: Series | None = None
    #: CPU time of the process and its children since the first look; it never falls.
    cpu_used_ns: int = 0
    rendezvous: Rendezvous | None = None
    own: Own | None = None
    exit: Exit | None = None
    exit_unix_ns: int = 0

    # Further processes that claim the same rank, by pid:
    #: When each of those that live reported first.
    other_pids: dict[int, int] = field(default_factory=dict)
    others: dict[int, Hello] = field(default_factory=dict)
    others_from: dict[int, str] = field(default_factory=dict)
    others_gone: dict[int, Exit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.counters, self.loader = Series(self.keep_s), Series(self.keep_s)
        self.cpu = Series(self.keep_s)

    def copy(self) -> RankMemory:
        """The same facts, independent of these. Only frozen records are shared."""
        memory = object.__new__(RankMemory)
        for name in RankMemory.__slots__:
            value = getattr(self, name)
            setattr(memory, name, _copy_part(value) if type(value) in _MUTABLE else value)
        return memory

    def is_from(self, envelope: Envelope) -> bool:
        """Whether this process sent the record. Pids repeat in containers and on other hosts."""
        return self.hello.pid == envelope.pid and self.sender == envelope.sender

    def successor(self, pid: int) -> RankMemory:
        """What is known of another process that claims this rank, as if it were the rank."""
        hello, at, sender = self.others[pid], self.other_pids[pid], self.others_from[pid]
        memory = RankMemory(hello, at, sender, self.generation, self.keep_s)
        memory.other_pids = {one: at for one, at in self.other_pids.items() if one != pid}
        memory.others = {one: hello for one, hello in self.others.items() if one != pid}
        memory.others_from = {one: frm for one, frm in self.others_from.items() if one != pid}
        return memory

    def move(self, by_ns: int) -> None:
        """Add `by_ns` to all times: the offset of the sender's clock was corrected."""
        self.hello = shift(self.hello, by_ns)
        self.hello_unix_ns = _shift(self.hello_unix_ns, by_ns)
        self.state = _shift_record(self.state, by_ns)
        self.state_unix_ns = _shift(self.state_unix_ns, by_ns)
        self.line_since_unix_ns = _shift(self.line_since_unix_ns, by_ns)
        self.phase_since_unix_ns = _shift(self.phase_since_unix_ns, by_ns)
        self.process = _shift_record(self.process, by_ns)
        self.process_unix_ns = _shift(self.process_unix_ns, by_ns)
        self.process_state_since_unix_ns = _shift(self.process_state_since_unix_ns, by_ns)
        if self.stalled_since_unix_ns:
            self.stalled_since_unix_ns += by_ns
        self.exit = _shift_record(self.exit, by_ns)
        self.exit_unix_ns = _shift(self.exit_unix_ns, by_ns)
        self.rendezvous = _shift_record(self.rendezvous, by_ns)
        self.stacks = _shift_record(self.stacks, by_ns)
        self.worker_stacks = {
            pid: shift(answer, by_ns) for pid, answer in self.worker_stacks.items()
        }
        self.others_gone = {pid: shift(one, by_ns) for pid, one in self.others_gone.items()}
        for series in (self.counters, self.loader, self.cpu):
            series.move(by_ns)
        if self.load is not None:
            self.load.move(by_ns)
        if self.owing is not None:
            self.owing = self.owing.moved(by_ns)
        if self.not_finite is not None:
            since = self.not_finite.since_unix_ns + by_ns
            self.not_finite = Began(since, self.not_finite.step)
        self.apart = {
            key: Began(began.since_unix_ns + by_ns, began.step) for key, began in self.apart.items()
        }


def _shift(at_unix_ns: int, by_ns: int) -> int:
    """0 stays 0: that is not reported yet."""
    return at_unix_ns + by_ns if at_unix_ns else 0


def _shift_record(record: Record | None, by_ns: int) -> Record | None:
    return shift(record, by_ns) if record is not None else None


class JobMemory:
    """What is remembered about one run of one job."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self.policy = policy
        self.run = ""
        #: The newest attempt (elastic restart) of the job.
        self.attempt = 0
        #: The life of the job that counts, and when its first process started.
        self.generation = 0
        self.generation_unix_ns = 0
        #: By host: its own attempt, and the life of the job that its ranks belong to.
        self.attempts: dict[str, tuple[int, int]] = {}
        self.world_size = 0
        self.ranks: dict[int, RankMemory] = {}
        #: The last Hello, with which the next one shares its arguments.
        self.newest_hello: Hello | None = None
        self.ranks_of: dict[str, set[int]] = {}
        self.groups: dict[str, Group] = {}
        #: Above this number, groups that no rank lists any more are forgotten.
        self.groups_most = GROUPS_KEPT
        #: The same by name; None: they have changed since they were sorted.
        self.sorted_groups: tuple[Group, ...] | None = None
        #: The generation of the rank that reported each group.
        self.groups_of: dict[str, int] = {}
        #: Groups made by hand, by name, store and generation: the rank of each member number.
        self.met: dict[tuple[str, str, int], dict[int, int]] = {}
        #: The first differences in the turns; None: turns, groups or ranks have changed.
        self.parted: tuple[Parted, ...] | None = None
        #: The grid of ranks; None: coordinates have changed since it was worked out.
        self.axes: tuple[Axis, ...] | None = None
        #: By host: when its relay reported last, and the report.
        self.hosts: dict[str, tuple[int, HostState]] = {}
        self.candidates = Candidates()
        self.gpus = JobGpus()
        #: The last answer of NCCL's RAS service, and when.
        self.ras: tuple[int, RasAnswer] | None = None
        self.rounds = Rounds()
        #: The relay whose clock is the job's.
        self.leader: str | None = None
        self.clocks: dict[str, Clock] = {}
        #: Hosts whose clock has not been measured.
        self.unmeasured: set[str] = set()
        #: By host: its first record, its last record, and its relay's last and first report.
        self.firsts: dict[str, int] = {}
        self.heard: dict[str, int] = {}
        self.stated: dict[str, int] = {}
        self.stated_first: dict[str, int] = {}
        #: By host: the first report of its relay after a silence.
        self.returned: dict[str, int] = {}
        #: By group: when a collective last completed while some host was silent.
        self.completed: dict[str, int] = {}
        self.some_quiet = False
        self.orders: deque[tuple[int, Order]] = deque(maxlen=ORDERS_MAX)
        #: What people have muted, and when the relay said so last (unix ns).
        self.mutes: tuple[int, tuple[Mute, ...]] = (0, ())
        #: Records that were refused because their numbers are absurd.
        self.garbled = 0
        self.notes: deque[str] = deque(maxlen=NOTES_MAX)
        #: How fast the last run of the same name trained at its end; set by who follows the job.
        self.last_run: Speed | None = None

    def place(self, rank: int, memory: RankMemory) -> RankMemory:
        """Make this process the rank from now on."""
        self.axes = self.parted = None
        self.remove(rank)
        self.ranks[rank] = memory
        self.ranks_of.setdefault(memory.sender, set()).add(rank)
        return memory

    def remove(self, rank: int) -> None:
        """Forget the process of that rank."""
        before = self.ranks.pop(rank, None)
        if before is not None:
            self.ranks_of[before.sender].discard(rank)

    def forget_groups(self) -> None:
        """Forget the groups that no rank lists any more: a program may make one in each round."""
        listed = {name for memory in self.ranks.values() for name in memory.groups}
        self.groups = {name: group for name, group in self.groups.items() if name in listed}
        self.groups_of = {name: since for name, since in self.groups_of.items() if name in listed}
        self.met = {key: ranks for key, ranks in self.met.items() if key[0] in listed}
        self.groups_most = max(GROUPS_KEPT, 2 * len(self.groups))
        self.sorted_groups = self.parted = None

    def groups_by_name(self) -> tuple[Group, ...]:
        """All groups. The same tuple, until one of them changes."""
        if self.sorted_groups is None:
            self.sorted_groups = tuple(sorted(self.groups.values(), key=lambda group: group.name))
        return self.sorted_groups

    def widen(self, hello: Hello) -> None:
        """Make the world as large as the largest report says."""
        before = self.world_size
        self.world_size = max(before, hello.world_size or 0, (hello.rank or 0) + 1)
        if self.world_size != before:
            self.axes = None

    @property
    def first_unix_ns(self) -> int | None:
        """When the first record was made."""
        return min(self.firsts.values(), default=None)

    @property
    def last_unix_ns(self) -> int:
        """When the newest record was made; of hosts whose clock is known, if there are any."""
        known = [at for sender, at in self.heard.items() if sender not in self.unmeasured]
        return max(known or self.heard.values(), default=0)

    def on_hub_clock(self, envelope: Envelope) -> int:
        """When the record that was just taken in was made, as far as its host's clock is known."""
        clock = self.clocks.get(envelope.sender)
        return envelope.unix_ns + (clock.offset_ns if clock is not None else 0)


def copy_parts(memory: JobMemory, made: JobMemory) -> None:
    """Give `made` all parts of `known`, with copies of those that change."""
    own = vars(made)
    for name, value in vars(memory).items():
        own[name] = _copy_part(value) if type(value) in _MUTABLE else value


def _copy_part(value: Any) -> Any:
    if isinstance(value, RankMemory):
        return value.copy()
    if type(value) is dict:
        return {
            key: _copy_part(one) if type(one) in _MUTABLE else one for key, one in value.items()
        }
    return copy.copy(value)


_MUTABLE = frozenset((dict, deque, list, set, RankMemory, Candidates, Series, Rounds, JobGpus))
"""The types of all parts that change after they were made. Each copies what is mutable in it."""
