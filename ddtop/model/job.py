"""The state of one job: `Job.apply` updates it with a record, `Job.snapshot` returns it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import msgspec

from ddtop.model import gpus, hosts, progress, ratios
from ddtop.model import snapshot as build
from ddtop.model.call_order import numbers_of
from ddtop.model.facts import Apart, Snapshot
from ddtop.model.memory import Answer, JobMemory, RankMemory, Series, copy_parts, share_text
from ddtop.model.parallel import coordinates_of
from ddtop.model.stacks import is_own
from ddtop.policy import Limits, Policy
from ddtop.wire.frames import Envelope
from ddtop.wire.records import (
    ACTIVITIES,
    CONNECTION,
    AnyRecord,
    Arrivals,
    CommStatus,
    Exit,
    Group,
    GroupMade,
    Groups,
    Hello,
    HostState,
    Link,
    Order,
    Place,
    ProcessState,
    RankState,
    Replica,
    Stacks,
    size_of,
    unpack,
)


@dataclass(frozen=True)
class Reports(Limits, of="reports"):
    """Which reports follow each other."""

    apart_s: float = 1.5
    """Agents report once or twice a second. In a longer gap some reports were left out."""


WORLD_MAX = 1 << 17
"""Ranks beyond this are refused: a single damaged Hello must not cost gigabytes."""
HOSTS_MAX = 1 << 16
OTHERS_MAX = 64
"""Further processes that are remembered for one rank that they all claim."""
WORKERS_MAX = 256
"""Stacks of DataLoader workers that are remembered for one rank."""
ALL_MEMBERS_MAX = 1 << 20
"""Members of all groups that one rank lists; groups with the same members count once. A record of a
mebibyte could list a hundred thousand groups of all ranks."""
_BACKWARD, _COLLECTIVE = ACTIVITIES.index("backward"), ACTIVITIES.index("collective")


class Job(JobMemory):
    """One run of one job.

    Attempts (elastic restarts) follow each other, and the newest one counts. `JobMemory` says what
    the attributes are.
    """

    def apply(self, envelope: Envelope, record: AnyRecord) -> None:
        """Take one record in.

        A record that is older than the last one of its rank changes nothing.
        """
        if isinstance(record, HostState) and len(self.clocks) < HOSTS_MAX:
            hosts.learn(self, envelope.sender, record.clock)
        clock = self.clocks.get(envelope.sender)
        if clock is not None and clock.offset_ns:
            envelope, record = hosts.on_hub_clock(envelope, record, clock, self.policy)
        if isinstance(record, HostState):
            self._on_host(envelope, record)
        elif isinstance(record, (RankState, Groups, Exit, Stacks, Arrivals)):
            if hosts.is_current(self, envelope):
                self._note_time(envelope)
                self._on_rank(envelope, record)
        elif isinstance(record, Hello):
            self._on_hello(envelope, record)
        elif isinstance(record, Order):
            self._on_order(envelope.unix_ns, record)
        elif isinstance(record, CommStatus) and (
            self.ras is None or envelope.unix_ns >= self.ras[0]
        ):
            self.ras = (envelope.unix_ns, record.answer)

    def note_host(self, envelope: Envelope) -> None:
        """Note that the host is not silent: one of its reports has arrived and will be applied
        later."""
        if envelope.sender in self.stated:
            hosts.note_heard(self, envelope.sender, self.on_hub_clock(envelope))

    def _on_order(self, unix_ns: int, order: Order) -> None:
        # A viewer that joins again gets the history again.
        if (unix_ns, order) not in self.orders:
            self.orders.append((unix_ns, order))
        if order.mutes is not None and unix_ns >= self.mutes[0]:
            self.mutes = (unix_ns, order.mutes)

    def _on_rank(
        self, envelope: Envelope, record: RankState | Groups | Exit | Stacks | Arrivals
    ) -> None:
        memory = self.ranks.get(envelope.rank) if envelope.rank is not None else None
        if memory is None:
            return
        if not memory.is_from(envelope):
            known = self._claimant(memory, envelope, record)
            if known is None:
                return
            memory = known
        if isinstance(record, RankState):
            self._on_state(memory, envelope, record)
        elif isinstance(record, Groups):
            self._on_groups(memory, envelope, record)
        elif isinstance(record, Stacks):
            _on_stacks(memory, record)
        elif isinstance(record, Arrivals):
            self._on_arrivals(memory, envelope, record)
        elif memory.exit is None:
            memory.exit, memory.exit_unix_ns = record, envelope.unix_ns
            if memory.generation < self.generation and memory.hello.rank is not None:
                self.remove(memory.hello.rank)
            else:
                self._replace_ended(memory, record)

    def _claimant(
        self, memory: RankMemory, envelope: Envelope, record: AnyRecord
    ) -> RankMemory | None:
        """What is known of another process that claims the rank and sent this record.

        None if that process has become the rank.
        """
        pid = envelope.pid
        if pid is None or memory.others_from.get(pid) != envelope.sender or envelope.rank is None:
            return None
        if isinstance(record, Exit):
            if memory.other_pids.pop(record.pid, None) is not None:
                memory.others_gone[record.pid] = record
            return None
        if (
            pid not in memory.other_pids
            or memory.sender == envelope.sender
            or not hosts.is_quiet(self, memory.sender)
        ):
            return None
        # The rank has moved to another host: the host that it was on is silent.
        return self.place(envelope.rank, memory.successor(pid))

    def _replace_ended(self, memory: RankMemory, ended: Exit) -> None:
        """One of two processes that claim a rank has ended: the other is the rank from now on."""
        living = [memory.others[pid] for pid in memory.other_pids if pid in memory.others]
        # ... unless the other is the parent, which waits for the real rank.
        own = memory.hello
        heirs = (hello for hello in living if hello.claim == own.claim and hello.above != own.pid)
        successor = next(heirs, None)
        if successor is None or successor.rank is None:
            return
        new = memory.successor(successor.pid)
        new.others_gone = memory.others_gone | {ended.pid: ended}
        self.place(successor.rank, new)

    def copy(self) -> Job:
        """An independent copy of this model: records that are applied to one do not change the
        other.

        Frozen records, numbers and text are shared. It takes about 20 us for each rank.
        """
        job = object.__new__(Job)
        copy_parts(self, job)
        return job

    def snapshot(self, now_unix_ns: int) -> Snapshot:
        """What is true at this moment (unix ns on the clock of the hub's host)."""
        return build.snapshot(self, now_unix_ns)

    def _note_time(self, envelope: Envelope) -> None:
        sender, at = envelope.sender, envelope.unix_ns
        first = self.firsts.get(sender)
        if first is None and len(self.firsts) >= HOSTS_MAX:
            return
        if first is None or at < first:
            self.firsts[sender] = at
        at = hosts.arrival_unix_ns(self, sender, at) if self.unmeasured else at
        self.heard[sender] = max(self.heard.get(sender, at), at)

    def _on_hello(self, envelope: Envelope, hello: Hello) -> None:
        if (
            hello.rank is None
            or not 0 <= hello.rank < WORLD_MAX
            or (hello.world_size or 0) > WORLD_MAX
        ):
            self.garbled += 1
            return
        if len(self.attempts) >= HOSTS_MAX or not hosts.admit(self, envelope, hello):
            return
        self._note_time(envelope)
        share_text(hello, self.newest_hello)
        self.newest_hello = hello
        generation = self.attempts[envelope.sender][1]
        memory = self.ranks.get(hello.rank)
        if memory is not None and generation < memory.generation:
            return
        if not self.run or envelope.sender == self.leader:
            # Each launcher names its part of the run by its own pid. The name of the hub counts.
            self.name, self.run = hello.job, hello.run
        if generation == self.generation:
            self.widen(hello)
        if (
            memory is not None
            and memory.hello.pid == hello.pid
            and memory.sender == envelope.sender
        ):
            memory.hello = hello
            return
        same = memory is not None and memory.generation == generation
        if (
            memory is not None
            and same
            and memory.exit is None
            and not self._is_replaced(memory, envelope, hello)
        ):
            if hello.pid in memory.others or len(memory.others) < OTHERS_MAX:
                memory.other_pids[hello.pid] = envelope.unix_ns
                memory.others[hello.pid] = hello
                memory.others_from[hello.pid] = envelope.sender
            return
        keep_s = max(self.policy.window_s, self.policy.cpu_window_s)
        new = self.place(
            hello.rank, RankMemory(hello, envelope.unix_ns, envelope.sender, generation, keep_s)
        )
        if memory is not None and same and memory.exit is not None:
            new.others_gone = memory.others_gone | {memory.hello.pid: memory.exit}

    def _is_replaced(self, memory: RankMemory, envelope: Envelope, hello: Hello) -> bool:
        """Whether the new process replaces the one that has this rank now."""
        if memory.sender != envelope.sender:
            return hosts.is_quiet(self, memory.sender)
        before = memory.hello
        if hello.above == before.pid and before.joined:
            # A child of the rank.
            return False
        if before.above == hello.pid and hello.joined:
            # The child had a group before the rank, its parent, had one.
            return True
        return hello.claim == "init" and before.claim == "env"

    def _on_state(self, memory: RankMemory, envelope: Envelope, state: RankState) -> None:
        at = envelope.unix_ns
        if self.some_quiet:
            hosts.note_progress(self, memory.state, state, at)
        memory.counters.add(at, *ratios.counters(state))
        if (loader := state.loader) is not None:
            busy = min((loader.capacity or 0) - (loader.depth or 0), loader.workers)
            for_ns = max(at - (memory.state_unix_ns or at), 0)
            memory.loader_busy_ns += busy * for_ns // max(loader.workers, 1)
            memory.loader.add(
                at,
                loader.wait_total_ns,
                loader.batches,
                state.iteration or 0,
                memory.loader_busy_ns,
            )
        if at >= memory.state_unix_ns:
            if memory.state is None or not _same_line(memory.state.place, state.place):
                memory.line_since_unix_ns = at
            if memory.state is None or memory.state.phase != state.phase:
                memory.phase_since_unix_ns = at
            before = memory.state.loader if memory.state is not None else None
            seconds = (at - memory.state_unix_ns) / 1e9
            _note_pause(memory, state, seconds > self.policy.of(Reports).apart_s)
            memory.owing = progress.follow(
                memory.owing, before, state.loader, at, seconds, self.policy
            )
            memory.not_finite = progress.not_finite(memory.not_finite, state, at)
            if is_own(state.place) and not _main_has_ended(state):
                memory.own_place = state.place
            memory.state, memory.state_unix_ns = state, at
            if state.replicas or memory.apart:
                memory.apart = self._apart(memory, state, at)
            memory.wait_long_ratio = envelope.wait_ratio
            if state.step_ms is not None and (
                memory.step_best_ms is None or state.step_ms < memory.step_best_ms
            ):
                memory.step_best_ms = state.step_ms

    def _apart(self, memory: RankMemory, state: RankState, at: int) -> Apart:
        """Compares its parameters with those of the first rank of their group."""
        found = {}
        firsts: dict[int, dict[object, Replica]] = {}
        for own in state.replicas:
            group = self.groups.get(own.key[0])
            first = self.ranks.get(group.ranks[0]) if group is not None and group.ranks else None
            if first is None or first.state is None or first.generation != memory.generation:
                continue
            if id(first) not in firsts:
                firsts[id(first)] = {one.key: one for one in first.state.replicas}
            other = firsts[id(first)].get(own.key)
            since = progress.apart(memory.apart.get(own.key), own, other, at, self.policy)
            if since is not None:
                found[own.key] = since
        return found

    def _on_arrivals(self, memory: RankMemory, envelope: Envelope, record: Arrivals) -> None:
        if envelope.rank is None:
            return
        looks = ratios.part(
            memory.counters.growth(self.policy.window_s, envelope.unix_ns), ratios.ACTIVITIES
        )
        overlaps = (
            looks is not None
            and len(looks[1]) > _COLLECTIVE
            and looks[1][_BACKWARD] > looks[1][_COLLECTIVE]
        )
        clock, sender = self.clocks.get(envelope.sender), envelope.sender
        error_ns = clock.error_ns if clock is not None else 0 if sender == self.leader else None
        self.rounds.add(
            Answer(envelope.rank, sender, envelope.unix_ns, record, overlaps, error_ns=error_ns)
        )

    def _on_groups(self, memory: RankMemory, envelope: Envelope, record: Groups) -> None:
        memory.made = _shared(record.made)
        listed = {group.runs: group for group in record.groups}
        if sum(map(size_of, listed.values())) > ALL_MEMBERS_MAX:
            self.garbled += 1
            return
        coordinates = coordinates_of(record.groups, envelope.rank or 0)
        if coordinates != memory.coordinates:
            memory.coordinates, self.axes = coordinates, None
        if record.turns != memory.turns:
            memory.turns, memory.turn_numbers = record.turns, numbers_of(record.turns)
            self.parted = None
        for group in map(unpack, record.groups):
            known, since = self.groups.get(group.name), self.groups_of.get(group.name, 0)
            if known is not None and memory.generation < since:
                continue
            if group.foreign is not None:
                group = self._own_if_whole(group, envelope.rank or 0, memory.generation)
            # A rank that does not know the members must not hide them from ranks that do. But the
            # group is foreign if one member says so: for the others the map may fit by chance.
            if (
                known is None
                or memory.generation > since
                or group.foreign is not None
                or group.size
                or (known.foreign is None and len(group.ranks) >= len(known.ranks))
            ):
                self.groups[group.name], self.groups_of[group.name] = group, memory.generation
                self.sorted_groups = self.parted = None
        memory.groups = tuple([group.name for group in record.groups])
        if len(self.groups) > self.groups_most:
            self.forget_groups()

    def _own_if_whole(self, group: Group, rank: int, generation: int) -> Group:
        """A group that a program has made by hand is of this job if all its members are ranks."""
        met = self.met.setdefault((group.name, group.foreign or "", generation), {})
        met[group.number] = rank
        if len(set(met.values())) < group.size or set(met) != set(range(group.size)):
            return group
        return msgspec.structs.replace(group, ranks=tuple(sorted(met.values())), foreign=None)

    def _on_host(self, envelope: Envelope, host: HostState) -> None:
        known = self.hosts.get(envelope.sender)
        if (known is not None and envelope.unix_ns < known[0]) or (
            known is None and len(self.hosts) >= HOSTS_MAX
        ):
            return
        hosts.settle_leader(self, envelope.sender, host)
        self._note_time(envelope)
        hosts.note_report(self, envelope.sender, envelope.unix_ns, host)
        self.hosts[envelope.sender] = (envelope.unix_ns, host)
        self.candidates.apply(envelope.sender, envelope.unix_ns, host, self.policy)
        routes = {route.pid: route for route in host.rendezvous}
        here: dict[int, RankMemory] = {}
        for process in host.processes:
            memory = self.ranks.get(process.rank) if process.rank is not None else None
            if process.rank is None or memory is None:
                continue
            if memory.hello.pid != process.pid or memory.sender != envelope.sender:
                continue
            here[process.rank] = memory
            chain = self._on_other_hosts(process.chain)
            known_process = msgspec.structs.replace(process, chain=chain) if chain else process
            self._on_process(memory, known_process, envelope.unix_ns)
            memory.rendezvous = routes.get(process.pid)
        if host.gpus or envelope.sender in self.gpus:
            gpus.take_in(self, envelope.sender, host, envelope.unix_ns, here)

    def _on_other_hosts(self, links: tuple[Link, ...]) -> tuple[Link, ...]:
        """The chain, continued by the process of another host at the address where it ends."""
        end = links[-1] if links else None
        if end is None or end.resource != CONNECTION or end.pid is not None:
            return links
        for _, host in self.hosts.values():
            for first, *more in filter(None, host.served):
                if first.named == end.named:
                    return (*links[:-1], msgspec.structs.replace(first, does=end.does), *more)
        return links

    def _on_process(self, memory: RankMemory, process: ProcessState, at: int) -> None:
        before, seconds = memory.process, (at - memory.process_unix_ns) / 1e9
        if before is None or _state_left(before, process):
            memory.process_state_since_unix_ns = at
        if process.state != "D" or process.frozen:
            memory.stalled_since_unix_ns = None
        elif before is None or not _same_sleep(before, process, seconds, self.policy):
            memory.stalled_since_unix_ns = at
        memory.process, memory.process_unix_ns = process, at
        memory.outputs = process.outputs or memory.outputs
        memory.slept_in = process.wchan or memory.slept_in
        memory.cpu.add(at, process.cpu_ns or 0, process.io_bytes or 0, process.switches or 0)
        if (load := process.load) is not None:
            if memory.load is None:
                memory.load = Series(max(self.policy.oversubscribed_window_s, memory.keep_s))
            # The sum of a process and its living children falls when one of these ends.
            if before is not None and None not in (before.cpu_ns, process.cpu_ns):
                memory.cpu_used_ns += max((process.cpu_ns or 0) - (before.cpu_ns or 0), 0)
            memory.load.add(
                at,
                load.run_delay_ns or 0,
                load.major_faults or 0,
                load.throttled_ns or 0,
                load.threads_delay_ns or 0,
                memory.cpu_used_ns,
                process.rss_bytes or 0,
            )


def _note_pause(memory: RankMemory, state: RankState, skipped: bool) -> None:
    """Remember the two longest pauses between two moments of progress, the longest first.

    `skipped`: reports between the last one and this one were left out.
    """
    before = memory.state.progress_unix_ns if memory.state is not None else None
    if before is None or state.progress_unix_ns is None:
        return
    longest, second = memory.longest_pauses_ns
    # After skipped reports only the last one is known: the rank may have made progress in between.
    until = memory.state_unix_ns if skipped else state.progress_unix_ns
    pause_ns = min(until, state.progress_unix_ns) - before
    if pause_ns > second:
        memory.longest_pauses_ns = (
            (pause_ns, longest) if pause_ns > longest else (longest, pause_ns)
        )


def _main_has_ended(state: RankState) -> bool:
    """Whether only handlers of the exit run in its main thread."""
    return state.exception is not None and state.exception.thread == "main"


def _same_line(before: Place | None, now: Place | None) -> bool:
    if before is None or now is None:
        return False
    return (before.file, before.line, before.callee) == (now.file, now.line, now.callee)


@lru_cache(maxsize=1024)
def _shared(made: tuple[GroupMade, ...] | None) -> tuple[GroupMade, ...] | None:
    """Most ranks have made the same groups: one tuple is kept for all of them."""
    return made


def _state_left(before: ProcessState, now: ProcessState) -> bool:
    """Whether the main thread has left its state between two looks.

    Most looks at a training find it asleep, each time in another sleep.
    """
    return (
        before.state != now.state
        or bool(before.frozen) != bool(now.frozen)
        or (now.state == "S" and before.switches != now.switches)
    )


def _same_sleep(before: ProcessState, now: ProcessState, seconds: float, policy: Policy) -> bool:
    """Whether the main thread has slept without a break between two samples.

    It has not woken in between, and no bytes have moved except those of the agent's own reports.
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
