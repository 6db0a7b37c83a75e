"""The one mutator: `Job.apply` takes records in any order, `Job.snapshot` says what they add up to at a moment."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from msgspec import structs

from ddtop.model import build, loading
from ddtop.model.candidates import Candidates
from ddtop.model.devices import Cards, Device, Own, again, own_card, unheard
from ddtop.model.facts import Snapshot
from ddtop.model.lateness import Answer, Rounds
from ddtop.model.policy import POLICY, Policy
from ddtop.model.series import Series
from ddtop.wire.frames import Envelope
from ddtop.wire.gpu import RasAnswer
from ddtop.wire.records import (
    ACTIVITIES,
    AnyRecord,
    Arrivals,
    CommStatus,
    Exit,
    Group,
    Groups,
    Hello,
    HostState,
    Place,
    ProcessState,
    RankState,
    Stacks,
)
from ddtop.wire.rendezvous import Rendezvous

WORLD_MAX = 1 << 17
"""Ranks beyond this are not believed: a single damaged Hello must not cost gigabytes."""
HOSTS_MAX = 1 << 16
OTHERS_MAX = 64
"""Further processes kept that claim the number of one rank."""
WORKERS_MAX = 256
"""Stacks of DataLoader workers kept a rank."""
_BACKWARD, _COLLECTIVE = ACTIVITIES.index("backward"), ACTIVITIES.index("collective")


@dataclass
class RankMemory:
    """What was heard of one rank's process; times unix ns of the sender."""

    hello: Hello
    hello_unix_ns: int
    sender: str
    state: RankState | None = None
    state_unix_ns: int = 0
    process: ProcessState | None = None
    letter_since_unix_ns: int = 0
    process_unix_ns: int = 0
    stalled_since_unix_ns: int | None = None
    line_since_unix_ns: int = 0
    phase_since_unix_ns: int = 0
    exit: Exit | None = None
    exit_unix_ns: int = 0
    waits: Series = field(default_factory=Series)
    activities: Series = field(default_factory=Series)
    loader: Series = field(default_factory=Series)
    cpu: Series = field(default_factory=Series)
    agent: Series = field(default_factory=Series)
    other_pids: dict[int, int] = field(default_factory=dict)
    others: dict[int, Hello] = field(default_factory=dict)
    others_gone: dict[int, Exit] = field(default_factory=dict)
    rendezvous: Rendezvous | None = None
    stacks: Stacks | None = None
    worker_stacks: dict[int, Stacks] = field(default_factory=dict)
    owing: loading.Owing | None = None
    load: Series | None = None
    own: Own | None = None
    wait_long_ratio: float | None = None
    step_best_ms: float | None = None


class Job:
    """One run of one job. Attempts (elastic restarts) follow each other: the newest is the one that counts."""

    def __init__(self, name: str, policy: Policy = POLICY) -> None:
        self.name = name
        self.run = ""
        self.attempt = 0
        self.policy = policy
        self.ranks: dict[int, RankMemory] = {}
        self.groups: dict[str, Group] = {}
        self.hosts: dict[str, tuple[int, HostState]] = {}
        self.candidates = Candidates()
        self.devices: dict[str, tuple[Device, ...]] = {}
        self.cards = Cards()
        self.ras: tuple[int, RasAnswer] | None = None
        self.rounds = Rounds()
        self.world_size = 0
        self.first_unix_ns: int | None = None
        self.last_unix_ns = 0
        self.garbled = 0
        self.notes: deque[str] = deque(maxlen=32)

    def apply(self, envelope: Envelope, record: AnyRecord) -> None:
        """Take one record in. A record that is older than what is known of its rank changes nothing."""
        if isinstance(record, HostState):
            self._on_host(envelope, record)
            return
        if isinstance(record, CommStatus):
            if self.ras is None or envelope.unix_ns >= self.ras[0]:
                self.ras = (envelope.unix_ns, record.answer)
            return
        if not isinstance(record, (Hello, RankState, Groups, Exit, Stacks, Arrivals)):
            return
        if envelope.attempt < self.attempt:
            return
        if envelope.attempt > self.attempt:
            if not isinstance(record, Hello):
                return
            self.notes.append(f"restarted: attempt {envelope.attempt}")
            self.attempt = envelope.attempt
            self.ranks.clear()
            self.groups.clear()
            self.candidates.clear()
            self.rounds.clear()
            self.world_size = 0
        self._note_time(envelope.unix_ns)
        if isinstance(record, Hello):
            self._on_hello(envelope, record)
        else:
            self._on_rank(envelope, record)

    def _on_rank(self, envelope: Envelope, record: RankState | Groups | Exit | Stacks | Arrivals) -> None:
        memory = self.ranks.get(envelope.rank) if envelope.rank is not None else None
        if memory is None:
            return
        if memory.hello.pid != envelope.pid:
            if isinstance(record, Exit) and memory.other_pids.pop(record.pid, None) is not None:
                memory.others_gone[record.pid] = record
            return
        if isinstance(record, RankState):
            self._on_state(memory, envelope, record)
        elif isinstance(record, Groups):
            self._on_groups(record)
        elif isinstance(record, Stacks):
            _on_stacks(memory, record)
        elif isinstance(record, Arrivals):
            self._on_arrivals(memory, envelope, record)
        elif memory.exit is None:
            memory.exit, memory.exit_unix_ns = record, envelope.unix_ns
            self._give_way(memory, record, envelope)

    def _give_way(self, memory: RankMemory, ended: Exit, envelope: Envelope) -> None:
        """Of two processes that claim one number one has ended: the other is the rank from now on."""
        living = [memory.others[pid] for pid in memory.other_pids if pid in memory.others]
        # Not where it is the parent that waits for the real one.
        heir = next((hello for hello in living if hello.claim == memory.hello.claim), None)
        if heir is None or heir.rank is None:
            return
        new = RankMemory(heir, envelope.unix_ns, envelope.sender)
        new.other_pids = {pid: at for pid, at in memory.other_pids.items() if pid != heir.pid}
        new.others = {pid: hello for pid, hello in memory.others.items() if pid != heir.pid}
        new.others_gone = memory.others_gone | {ended.pid: ended}
        self.ranks[heir.rank] = new

    def snapshot(self, now_unix_ns: int) -> Snapshot:
        """What is true at this moment (the clock of the hub's host)."""
        return build.snapshot(self, now_unix_ns)

    def _note_time(self, unix_ns: int) -> None:
        self.last_unix_ns = max(self.last_unix_ns, unix_ns)
        if self.first_unix_ns is None or unix_ns < self.first_unix_ns:
            self.first_unix_ns = unix_ns

    def _on_hello(self, envelope: Envelope, hello: Hello) -> None:
        if hello.rank is None or not 0 <= hello.rank < WORLD_MAX or (hello.world_size or 0) > WORLD_MAX:
            self.garbled += 1
            return
        self.name, self.run = hello.job, hello.run
        self.world_size = max(self.world_size, hello.world_size or 0, hello.rank + 1)
        memory = self.ranks.get(hello.rank)
        if memory is not None and memory.hello.pid == hello.pid:
            memory.hello = hello
            return
        if memory is not None and memory.exit is None and not (hello.claim == "init" and memory.hello.claim == "env"):
            if hello.pid in memory.others or len(memory.others) < OTHERS_MAX:
                memory.other_pids[hello.pid] = envelope.unix_ns
                memory.others[hello.pid] = hello
            return
        new = self.ranks[hello.rank] = RankMemory(hello, envelope.unix_ns, envelope.sender)
        if memory is not None and memory.exit is not None:
            new.others_gone = memory.others_gone | {memory.hello.pid: memory.exit}

    def _on_state(self, memory: RankMemory, envelope: Envelope, state: RankState) -> None:
        at = envelope.unix_ns
        memory.waits.add(at, state.wait_samples, state.all_samples)
        memory.activities.add(at, *state.activity_samples)
        memory.agent.add(at, state.agent_cpu_ns, state.held_samples, state.gc_total_ns)
        if state.loader is not None:
            memory.loader.add(at, state.loader.wait_total_ns, state.loader.batches, state.iteration or 0)
        if at >= memory.state_unix_ns:
            if memory.state is None or not _same_line(memory.state.place, state.place):
                memory.line_since_unix_ns = at
            if memory.state is None or memory.state.phase != state.phase:
                memory.phase_since_unix_ns = at
            before = memory.state.loader if memory.state is not None else None
            seconds = (at - memory.state_unix_ns) / 1e9
            memory.owing = loading.follow(memory.owing, before, state.loader, at, seconds, self.policy)
            memory.state, memory.state_unix_ns = state, at
            memory.wait_long_ratio = envelope.wait_ratio
            if state.step_ms is not None and (memory.step_best_ms is None or state.step_ms < memory.step_best_ms):
                memory.step_best_ms = state.step_ms

    def _on_arrivals(self, memory: RankMemory, envelope: Envelope, record: Arrivals) -> None:
        if envelope.rank is None:
            return
        grown = memory.activities.grown(self.policy.window_s, envelope.unix_ns)
        overlaps = grown is not None and grown[1][_BACKWARD] > grown[1][_COLLECTIVE]
        self.rounds.add(Answer(envelope.rank, envelope.sender, envelope.unix_ns, record, overlaps))

    def _on_groups(self, record: Groups) -> None:
        for group in record.groups:
            known = self.groups.get(group.name)
            # A rank that cannot tell the members must not hide them from those who can.
            if known is None or len(group.ranks) >= len(known.ranks):
                self.groups[group.name] = group

    def _on_host(self, envelope: Envelope, host: HostState) -> None:
        self._note_time(envelope.unix_ns)
        known = self.hosts.get(envelope.sender)
        if (known is not None and envelope.unix_ns < known[0]) or (known is None and len(self.hosts) >= HOSTS_MAX):
            return
        self.hosts[envelope.sender] = (envelope.unix_ns, host)
        self.candidates.apply(envelope.sender, envelope.unix_ns, host)
        ways = {way.pid: way for way in host.rendezvous}
        for process in host.processes:
            memory = self.ranks.get(process.rank) if process.rank is not None else None
            if memory is None or memory.hello.pid != process.pid:
                continue
            self._on_process(memory, process, envelope.unix_ns)
            memory.rendezvous = ways.get(process.pid)
        if host.gpus or envelope.sender in self.devices:
            self._on_gpus(envelope.sender, host, envelope.unix_ns)

    def _on_gpus(self, sender: str, host: HostState, at: int) -> None:
        owns: dict[int, Own] = {}
        watch = host.gpu_watch
        if watch is not None and (watch.age_ms or 0) > self.policy.gpu_silent_s * 1000:
            host = structs.replace(host, gpus=tuple(unheard(gpu) for gpu in host.gpus))
        for process in host.processes:
            memory = self.ranks.get(process.rank) if process.rank is not None else None
            if memory is None or memory.hello.pid != process.pid:
                continue
            cuda = memory.state.cuda if memory.state is not None else None
            memory.own = own_card(memory.hello, cuda, host.gpus) or again(memory.own, host.gpus)
            if memory.own is not None and process.rank is not None:
                owns[process.rank] = memory.own
        self.devices[sender] = self.cards.of(host, owns, at)

    def _on_process(self, memory: RankMemory, process: ProcessState, at: int) -> None:
        before, seconds = memory.process, (at - memory.process_unix_ns) / 1e9
        if before is None or (before.state, bool(before.frozen)) != (process.state, bool(process.frozen)):
            memory.letter_since_unix_ns = at
        if process.state != "D" or process.frozen:
            memory.stalled_since_unix_ns = None
        elif before is None or not _same_sleep(before, process, seconds, self.policy):
            memory.stalled_since_unix_ns = at
        memory.process, memory.process_unix_ns = process, at
        memory.cpu.add(at, process.cpu_ns or 0, process.io_bytes or 0, process.switches or 0)
        if (load := process.load) is not None:
            if memory.load is None:
                memory.load = Series(self.policy.oversubscribed_window_s)
            memory.load.add(at, load.run_delay_ns or 0, load.major_faults or 0, load.throttled_ns or 0)


def _same_line(before: Place | None, now: Place | None) -> bool:
    if before is None or now is None:
        return False
    return (before.file, before.line, before.callee) == (now.file, now.line, now.callee)


def _same_sleep(before: ProcessState, now: ProcessState, seconds: float, policy: Policy) -> bool:
    """Two looks found the main thread in one and the same sleep: it has not woken in between, and no bytes have moved.

    The agent's own reports move some bytes.
    """
    if (before.state, before.wchan, before.switches) != (now.state, now.wchan, now.switches):
        return False
    grown = (now.io_bytes or 0) - (before.io_bytes or 0)
    return grown <= policy.io_working_bytes_per_s * max(seconds, 0.0)


def _on_stacks(memory: RankMemory, stacks: Stacks) -> None:
    if not stacks.worker:
        if memory.stacks is None or stacks.taken_unix_ns >= memory.stacks.taken_unix_ns:
            memory.stacks = stacks
    elif len(memory.worker_stacks) < WORKERS_MAX or stacks.pid in memory.worker_stacks:
        memory.worker_stacks[stacks.pid] = stacks
