"""A job whose records are made by hand, on a clock of its own, so that a scenario reads like the incident it tells.

    job = FakeJob(4)
    job.trains(10)
    job.ranks[2].stands_at("fetch_labels", "data.py", 40)
    job.others_wait(2)
    job.passes(8)
    assert job.kinds() == [("critical", "not-in-collective", (2,))]

Ranks report twice a second and the relay once, as in life; the records are sealed and opened again on their way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ddtop.diagnosis.finding import Finding, Verdict
from ddtop.diagnosis.judge import Judge
from ddtop.model.facts import Snapshot
from ddtop.model.job import Job
from ddtop.wire import frames
from ddtop.wire.records import (
    ACTIVITIES,
    AnyRecord,
    Collective,
    Exit,
    Group,
    GroupProgress,
    Groups,
    Hello,
    HostState,
    LastException,
    Loader,
    OpenCall,
    Place,
    ProcessState,
    RankState,
)

SECOND = 1_000_000_000
BASE = 1_700_000_000 * SECOND
TICK_S = 0.5
STEPS_PER_TICK = 5
WORLD = "0"
"""Name of the default group."""

Frame = tuple[frames.Envelope, AnyRecord]
Kind = tuple[str, str, tuple[int, ...]]


def unix_ns(seconds: float) -> int:
    """A moment of the job's clock as a record has it."""
    return BASE + round(seconds * SECOND)


def place(function: str, file: str = "/home/ada/train.py", line: int = 10, **more: Any) -> Place:
    """A place in user code."""
    return Place(function, file, line, **more)


@dataclass
class Standing:
    """How far a rank is in one group."""

    enqueued: int = 0
    completed: int | None = 0
    offset: int | None = 0
    pending_since: float | None = None
    last_op: str | None = None
    open: list[Collective] = field(default_factory=list)
    retired: list[Collective] = field(default_factory=list)

    def as_record(self, name: str) -> GroupProgress:
        since = None if self.pending_since is None else unix_ns(self.pending_since)
        return GroupProgress(name, self.enqueued, self.completed, self.offset, since, self.last_op)


class FakeRank:
    """One process of the job. Its attributes are what its agent and the relay would measure."""

    def __init__(self, job: FakeJob, number: int, pid: int, claim: str = "env") -> None:
        self.job, self.number, self.pid, self.claim = job, number, pid, claim
        self.phase, self.activity = "running", "forward"
        self.trains = self.reports = self.seen = True
        self.gone = False
        self.cores, self.io_per_s, self.letter, self.children = 1.0, 0.0, "R", 0
        self.wchan: str | None = None
        self.place: Place | None = place("train_step")
        self.iteration: int | None = 0
        self.loader: Loader | None = None
        self.loader_share = 0.0
        self.exception: LastException | None = None
        self.healthy_wait_ms: float | None = 20.0
        self.progress = job.now
        self.calls: list[OpenCall] = []
        self.standings = {WORLD: Standing()}
        self._cpu_ns = self._io = self._agent_ns = self._samples = self._waited = 0
        self._activities = [0] * len(ACTIVITIES)

    # -- what it does

    def stands_at(self, function: str, file: str = "/home/ada/train.py", line: int = 40, **more: Any) -> None:
        """It sleeps in user code, without CPU or I/O."""
        self._is_at(function, file, line, more)
        self.cores, self.letter = 0.004, "S"

    def works_at(self, function: str, file: str = "/home/ada/train.py", line: int = 31, **more: Any) -> None:
        """It computes in user code."""
        self._is_at(function, file, line, more)
        self.cores, self.letter = 0.95, "R"

    def _is_at(self, function: str, file: str, line: int, more: dict[str, Any]) -> None:
        self.trains, self.activity = False, more.pop("activity", "other")
        self.place = Place(function, file, line, **more)

    def waits_in(
        self,
        op: str = "all_reduce",
        sizes: tuple[tuple[int, ...], ...] = ((1000,),),
        dtype: str = "Float",
        group: str = WORLD,
        timeout_ms: int | None = 1_800_000,
        computing: bool = False,
    ) -> None:
        """It puts in its next collective, which does not come back; `computing`: asynchronously."""
        self.trains = False
        standing = self.standings.setdefault(group, Standing())
        standing.enqueued += 1
        standing.last_op = op
        seq = standing.enqueued - (standing.offset or 0)
        standing.open.append(
            Collective(group, op, seq, standing.enqueued, sizes, (dtype,), "started", unix_ns(self.job.now), timeout_ms)
        )
        if standing.pending_since is None:
            standing.pending_since = self.job.now
        if computing:
            self.works_at("train_step", activity="forward")
        else:
            self.activity, self.cores, self.letter = "collective", 0.004, "S"
            self.place = place("train_step", callee=op, waits_on="collective")

    def passes_through(
        self,
        op: str = "all_reduce",
        sizes: tuple[tuple[int, ...], ...] = ((1000,),),
        dtype: str = "Float",
        group: str = WORLD,
    ) -> None:
        """It puts in its next collective and comes out of it."""
        standing = self.standings[group]
        standing.enqueued += 1
        standing.completed = standing.enqueued
        standing.last_op = op
        seq = standing.enqueued - (standing.offset or 0)
        standing.retired.append(Collective(group, op, seq, standing.enqueued, sizes, (dtype,), "retired"))
        self.progress = self.job.now

    def comes_back(self) -> None:
        """All that it waits in completes; it trains on."""
        for standing in self.standings.values():
            standing.completed, standing.pending_since = standing.enqueued, None
            standing.open.clear()
        self.trains, self.cores, self.letter, self.activity = True, 1.0, "R", "forward"
        self.place = place("train_step")

    def is_stopped(self) -> None:
        """SIGSTOP."""
        self.trains, self.letter, self.cores, self.reports = False, "T", 0.0, False

    def continues(self) -> None:
        """SIGCONT."""
        self.reports = True
        self.comes_back()

    def freezes(self, cores: float = 0.0) -> None:
        """C code holds its interpreter: the agent is silent, the process is there."""
        self.trains, self.reports, self.cores, self.letter = False, False, cores, "S"

    def is_in_init(self) -> None:
        """In init_process_group."""
        self.phase, self.cores, self.letter = "joining", 0.004, "S"
        self.calls = [OpenCall("init_process_group", unix_ns(self.job.now))]

    def leaves(self) -> None:
        """Its loop is over; it stands at the exit."""
        self.stands_at("main", line=99, waits_on="exit")
        self.phase = "leaving"

    def raises(self, kind: str, text: str = "", ago_s: float = 0.0, thread: str = "main") -> None:
        """Nothing catches its exception."""
        self.trains = False
        self.exception = LastException(
            kind, text, unix_ns(self.job.now - ago_s), place("load", "/home/ada/data.py", 40), thread
        )

    def ends(self, code: int | None = 0, signal: int | None = None, later_s: float = 0.0, **more: Any) -> None:
        """Its process ends; the relay tells how."""
        self.gone, self.trains, self.reports = True, False, False
        order = sum(1 for _, record in self.job.records if isinstance(record, Exit))
        given = {"oom": False, "how": "pidfd", "exiting": signal is None and not code, "exception": self.exception}
        record = Exit(self.number, self.pid, None if signal else code, signal, order=order, **(given | more))
        self.job.say(record, self, self.job.now + later_s)

    # -- what is said of it

    def hello(self) -> Hello:
        job = self.job
        return Hello(
            job.name, job.run, job.attempt, self.number, self.number, job.world_size, job.host_of(self), self.pid, 1,
            self.claim, script="train",
        )  # fmt: skip

    def state(self) -> RankState:
        return RankState(
            phase=self.phase,
            activity=self.activity,
            iteration=self.iteration,
            iteration_source="optimizer" if self.iteration is not None else None,
            step_ms=100.0 if self.iteration else None,
            groups=tuple(item.as_record(name) for name, item in self.standings.items()),
            open_collectives=tuple(one for item in self.standings.values() for one in item.open),
            retired_collectives=tuple(one for item in self.standings.values() for one in item.retired),
            open_calls=tuple(self.calls),
            wait_samples=self._waited,
            all_samples=self._samples,
            activity_samples=tuple(self._activities),
            place=self.place,
            loader=self.loader,
            exception=self.exception,
            progress_unix_ns=unix_ns(self.progress),
            healthy_wait_max_ms=self.healthy_wait_ms,
            agent_cpu_ns=self._agent_ns,
        )

    def process(self) -> ProcessState:
        return ProcessState(
            self.number, self.pid, self.letter, self.wchan, self._cpu_ns, 1 << 30, 8,
            self._io, self.children, 100,
        )  # fmt: skip

    def lives(self, seconds: float) -> None:
        """Time passes for it."""
        if self.gone:
            return
        if self.trains:
            self._step()
        self._cpu_ns += round(self.cores * seconds * SECOND)
        self._io += round(self.io_per_s * seconds)
        if self.reports:
            self._agent_ns += round(0.004 * seconds * SECOND)
            self._samples += 2
            self._waited += 2 * any(item.pending_since is not None for item in self.standings.values())
            self._activities[ACTIVITIES.index(self.activity)] += 5

    def _step(self) -> None:
        self.progress = self.job.now
        for standing in self.standings.values():
            standing.enqueued += STEPS_PER_TICK
            standing.completed = standing.enqueued if standing.completed is not None else None
            standing.last_op = "all_reduce"
        if self.iteration is not None:
            self.iteration += STEPS_PER_TICK
        if self.loader is not None:
            self.loader = replace_loader(
                self.loader,
                wait_total_ns=self.loader.wait_total_ns + round(self.loader_share * TICK_S * SECOND),
                batches=self.loader.batches + STEPS_PER_TICK,
            )


def replace_loader(loader: Loader, **changes: Any) -> Loader:
    """The same loader with other numbers."""
    import msgspec

    return msgspec.structs.replace(loader, **changes)


class FakeJob:
    """A job of `world_size` ranks on `hosts` hosts. `now`: seconds since its first record."""

    def __init__(
        self, world_size: int = 4, hosts: int = 1, absent: Iterable[int] = (), attempt: int = 0, run: str = "r1"
    ) -> None:
        self.name, self.run, self.attempt, self.world_size, self.hosts = "train-47", run, attempt, world_size, hosts
        self.now = 0.0
        self.records: list[Frame] = []
        self.frames: list[bytes] = []
        self.launcher_alive: bool | None = None
        self.groups = {WORLD: Group(WORLD, "default_pg", tuple(range(world_size)), "gloo")}
        self.ranks = [FakeRank(self, number, 4800 + number) for number in range(world_size)]
        for number in absent:
            self.ranks[number].seen = self.ranks[number].reports = self.ranks[number].trains = False
        for rank in self.ranks:
            if rank.seen:
                self.greet(rank)

    # -- what happens

    def trains(self, seconds: float) -> None:
        """All ranks train."""
        self.passes(seconds)

    def passes(self, seconds: float) -> None:
        """Time passes; ranks do what they were told last."""
        until = self.now + seconds
        while self.now + TICK_S <= until + 1e-9:
            self.now += TICK_S
            for rank in self.ranks:
                rank.lives(TICK_S)
                if rank.seen and rank.reports and not rank.gone:
                    self.say(rank.state(), rank)
            if round(self.now / TICK_S) % 2 == 0:
                self.look_at_hosts()

    def others_wait(self, *culprits: int, **more: Any) -> None:
        """All ranks but these put in their next collective and wait."""
        for rank in self.ranks:
            if rank.number not in culprits and not rank.gone:
                rank.waits_in(**more)

    def new_group(self, name: str, *members: int) -> None:
        """A further process group."""
        self.groups[name] = Group(name, f"group {name}", members, "gloo")
        for number in members:
            self.ranks[number].standings[name] = Standing()
            self.say(Groups(tuple(self.groups.values())), self.ranks[number])

    def restarts(self) -> None:
        """The launcher starts all ranks again, as the next attempt."""
        self.attempt += 1
        self.ranks = [FakeRank(self, number, rank.pid + 100) for number, rank in enumerate(self.ranks)]
        for rank in self.ranks:
            self.greet(rank)

    # -- who says what

    def host_of(self, rank: FakeRank) -> str:
        return f"node{rank.number * self.hosts // self.world_size}"

    def greet(self, rank: FakeRank) -> None:
        rank.seen = True
        self.say(rank.hello(), rank)
        self.say(Groups(tuple(self.groups.values())), rank)

    def look_at_hosts(self) -> None:
        for number in range(self.hosts):
            name = f"node{number}"
            mine = [rank for rank in self.ranks if self.host_of(rank) == name and rank.seen and not rank.gone]
            host = HostState(
                name, 4, 0.5, processes=tuple(rank.process() for rank in mine), launcher_alive=self.launcher_alive
            )
            self.say(host, sender=name)

    def say(
        self, record: AnyRecord, rank: FakeRank | None = None, at_s: float | None = None, sender: str | None = None
    ) -> None:
        at = unix_ns(self.now if at_s is None else at_s)
        data = frames.seal(
            record,
            sender=sender or (self.host_of(rank) if rank else "node0"),
            unix_ns=at,
            mono_ns=at - BASE,
            attempt=self.attempt,
            rank=rank.number if rank else None,
            pid=rank.pid if rank else None,
        )
        envelope = frames.open_envelope(data)
        self.frames.append(data)
        self.records.append((envelope, frames.open_record(envelope)))

    # -- what comes of it

    def model(self) -> Job:
        """All records so far, taken in in the order of their time."""
        job = Job(self.name)
        for envelope, record in self.in_order():
            job.apply(envelope, record)
        return job

    def in_order(self) -> list[Frame]:
        return sorted(self.records, key=lambda item: item[0].unix_ns)

    def snapshot(self) -> Snapshot:
        """What is true now."""
        return self.model().snapshot(unix_ns(self.now))

    def verdicts(self, joined_s: float = 0.0, every_s: float = TICK_S) -> list[Verdict]:
        """What a viewer saw that came at `joined_s` and looked every half second until now."""
        job, judge, found = Job(self.name), Judge(), []
        waiting = self.in_order()
        moment = joined_s
        while moment <= self.now + 1e-9:
            while waiting and waiting[0][0].unix_ns <= unix_ns(moment):
                job.apply(*waiting.pop(0))
            found.append(judge.observe(job.snapshot(unix_ns(moment))))
            moment += every_s
        return found

    def verdict(self) -> Verdict:
        """What stands now."""
        return self.verdicts()[-1]

    def finding(self) -> Finding:
        """The one finding that stands now."""
        (finding,) = self.verdict().findings
        return finding

    def kinds(self) -> list[Kind]:
        """(severity, kind, ranks) of what stands now."""
        return [brief(finding) for finding in self.verdict().findings]

    def ever(self) -> list[Kind]:
        """(severity, kind, ranks) of everything that stood at any time, in order of appearance."""
        return list(dict.fromkeys(brief(finding) for verdict in self.verdicts() for finding in verdict.findings))


def brief(finding: Finding) -> Kind:
    """A finding in three words."""
    return (finding.severity, finding.kind, finding.ranks)


def without_times(finding: Finding) -> Finding:
    """The finding as it compares between viewers that look at different moments."""
    return replace(finding, summary="", evidence=(), advice="")
