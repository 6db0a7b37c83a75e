"""What a viewer remembers of a job and of its ranks. Only `Job.apply` and what it calls change it.

Times are unix ns on the hub's clock, as far as the clock of the sender's host is known
(`ddtop.model.hosts.clocks`). None is "not reported yet".
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from ddtop.model.state import loader_progress
from ddtop.model.state.arrival_rounds import Rounds
from ddtop.model.state.candidates import Candidates
from ddtop.model.state.facts import Axis, Coordinates
from ddtop.model.state.gpu_facts import Own
from ddtop.model.state.gpu_memory import JobGpus
from ddtop.model.state.series import KEEP_S, Series
from ddtop.policy import Policy
from ddtop.wire.frames import Envelope
from ddtop.wire.gpu import RasAnswer
from ddtop.wire.progress import Speed
from ddtop.wire.records import (
    Exit,
    Group,
    Hello,
    HostState,
    Mute,
    Order,
    ProcessState,
    RankState,
    Stacks,
)
from ddtop.wire.rendezvous import Rendezvous
from ddtop.wire.times import moved

Record = TypeVar("Record", bound=msgspec.Struct)

ORDERS_MAX = 64
"""Orders of people that are remembered. The recording has all of them."""
NOTES_MAX = 32


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
    #: When the phase of `state` was first reported.
    phase_since_unix_ns: int = 0
    #: Counters of `ratios.counters`.
    counters: Series = field(init=False)
    #: (waited ns, batches, iteration) of the DataLoader.
    loader: Series = field(init=False)
    owing: loader_progress.Owing | None = None
    #: Share of the time spent waiting over twenty seconds, as the envelope says it.
    wait_long_ratio: float | None = None
    step_best_ms: float | None = None
    #: The two longest pauses between two moments of progress, the longest first.
    longest_pauses_ns: tuple[int, int] = (0, 0)
    #: Its place in each of its groups whose meaning is known.
    coordinates: Coordinates = ()
    #: The newest dump of the process, and the newest of each DataLoader worker by pid.
    stacks: Stacks | None = None
    worker_stacks: dict[int, Stacks] = field(default_factory=dict)

    # Reported by the relay of its host:
    process: ProcessState | None = None
    process_unix_ns: int = 0
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
        made = object.__new__(RankMemory)
        for name in RankMemory.__slots__:
            value = getattr(self, name)
            setattr(made, name, _copy_part(value) if type(value) in _MUTABLE else value)
        return made

    def is_from(self, envelope: Envelope) -> bool:
        """Whether this process sent the record. Pids repeat in containers and on other hosts."""
        return self.hello.pid == envelope.pid and self.sender == envelope.sender

    def successor(self, pid: int) -> RankMemory:
        """What is known of another process that claims this rank, as if it were the rank."""
        hello, at, sender = self.others[pid], self.other_pids[pid], self.others_from[pid]
        found = RankMemory(hello, at, sender, self.generation, self.keep_s)
        found.other_pids = {one: at for one, at in self.other_pids.items() if one != pid}
        found.others = {one: hello for one, hello in self.others.items() if one != pid}
        found.others_from = {one: frm for one, frm in self.others_from.items() if one != pid}
        return found

    def move(self, by_ns: int) -> None:
        """Add `by_ns` to all times: the offset of the sender's clock was corrected."""
        self.hello = moved(self.hello, by_ns)
        self.hello_unix_ns = _later(self.hello_unix_ns, by_ns)
        self.state = _moved(self.state, by_ns)
        self.state_unix_ns = _later(self.state_unix_ns, by_ns)
        self.line_since_unix_ns = _later(self.line_since_unix_ns, by_ns)
        self.phase_since_unix_ns = _later(self.phase_since_unix_ns, by_ns)
        self.process = _moved(self.process, by_ns)
        self.process_unix_ns = _later(self.process_unix_ns, by_ns)
        self.process_state_since_unix_ns = _later(self.process_state_since_unix_ns, by_ns)
        if self.stalled_since_unix_ns:
            self.stalled_since_unix_ns += by_ns
        self.exit = _moved(self.exit, by_ns)
        self.exit_unix_ns = _later(self.exit_unix_ns, by_ns)
        self.rendezvous = _moved(self.rendezvous, by_ns)
        self.stacks = _moved(self.stacks, by_ns)
        self.worker_stacks = {pid: moved(one, by_ns) for pid, one in self.worker_stacks.items()}
        self.others_gone = {pid: moved(one, by_ns) for pid, one in self.others_gone.items()}
        for series in (self.counters, self.loader, self.cpu):
            series.move(by_ns)
        if self.load is not None:
            self.load.move(by_ns)
        if self.owing is not None:
            self.owing = self.owing.moved(by_ns)


def _later(at_unix_ns: int, by_ns: int) -> int:
    """0 stays 0: that is not reported yet."""
    return at_unix_ns + by_ns if at_unix_ns else 0


def _moved(record: Record | None, by_ns: int) -> Record | None:
    return moved(record, by_ns) if record is not None else None


class JobMemory:
    """What is remembered of one run of one job."""

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
        #: The same by name; None: they have changed since they were sorted.
        self.sorted_groups: tuple[Group, ...] | None = None
        #: The generation of the rank that reported each group.
        self.groups_of: dict[str, int] = {}
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
        self.axes = None
        self.remove(rank)
        self.ranks[rank] = memory
        self.ranks_of.setdefault(memory.sender, set()).add(rank)
        return memory

    def remove(self, rank: int) -> None:
        """Forget the process of that rank."""
        before = self.ranks.pop(rank, None)
        if before is not None:
            self.ranks_of[before.sender].discard(rank)

    def groups_by_name(self) -> tuple[Group, ...]:
        """All groups. The same tuple, until one of them changes."""
        if self.sorted_groups is None:
            self.sorted_groups = tuple(sorted(self.groups.values(), key=lambda one: one.name))
        return self.sorted_groups

    def widen(self, hello: Hello) -> None:
        """The world is as large as the largest report of it."""
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


def copy_parts(known: JobMemory, made: JobMemory) -> None:
    """Give `made` all parts of `known`, with copies of those that change."""
    own = vars(made)
    for name, value in vars(known).items():
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
