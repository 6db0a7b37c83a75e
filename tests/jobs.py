"""A job whose records are made by hand, on a clock of its own, so that a test reads like the
incident that it describes.

    job = FakeJob(4).trains(10)
    job.ranks[2].stands_at("fetch_labels", "data.py", 40)
    job.others_wait(2)
    job.passes(8)
    assert job.kinds() == [("critical", "not-in-collective", (2,))]

Ranks report twice a second and the relay once, as in a real job; the records are sealed and opened
again on their way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ddtop.diagnosis.finding import Finding, Verdict
from ddtop.diagnosis.judge import Judge
from ddtop.model.facts import Snapshot
from ddtop.model.job import Job
from ddtop.policy import POLICY, Policy
from ddtop.say.told import look, tell, told
from ddtop.wire import frames
from ddtop.wire.records import AnyRecord, Group, Groups, HostState, ProcessState
from tests.ranks import (  # noqa: F401
    BASE,
    SECOND,
    STEPS_PER_TICK,
    TICK_S,
    WORLD,
    FakeRank,
    Frame,
    Kind,
    Standing,
    place,
    replace_loader,
    unix_ns,
)

if TYPE_CHECKING:
    from typing_extensions import Self

JOINED_S = 2.5
"""A viewer that looks for this long shows each finding of the moment: it appears after two looks
and disappears after three.
"""


class FakeJob:
    """A job of `world_size` ranks on `hosts` hosts. `now`: seconds since its first record."""

    policy: Policy = POLICY
    joined_s: float | None = None
    """When the viewer joined whose verdict is asked for; None: JOINED_S ago."""

    def __init__(
        self,
        world_size: int = 4,
        hosts: int = 1,
        absent: Iterable[int] = (),
        attempt: int = 0,
        run: str = "r1",
    ) -> None:
        self.name = "train-47"
        self.run = run
        self.attempt = attempt
        self.world_size = world_size
        self.hosts = hosts
        self.now = 0.0
        self.records: list[Frame] = []
        self.frames: list[bytes] = []
        self.launcher_alive: bool | None = None
        self.candidates: tuple[ProcessState, ...] = ()
        self.host_says: dict[str, Any] = {}
        self.beside: tuple[ProcessState, ...] = ()
        self.groups = {WORLD: Group(WORLD, "default_pg", tuple(range(world_size)), "gloo")}
        self.ranks = [FakeRank(self, number, 4800 + number) for number in range(world_size)]
        for number in absent:
            self.ranks[number].seen = self.ranks[number].reports = self.ranks[number].trains = False
        for rank in self.ranks:
            if rank.seen:
                self.greet(rank)

    # -- what happens

    def trains(self, seconds: float) -> Self:
        """All ranks train."""
        return self.passes(seconds)

    def passes(self, seconds: float) -> Self:
        """Time passes. Each rank goes on with its last instruction."""
        assert not 0 < seconds < TICK_S, "less than a tick: nothing would happen"
        until = self.now + seconds
        while self.now + TICK_S <= until + 1e-9:
            self.now += TICK_S
            for rank in self.ranks:
                rank.lives(TICK_S)
                if rank.seen and rank.reports and not rank.gone:
                    self.say(rank.state(), rank)
            if round(self.now / TICK_S) % 2 == 0:
                self.look_at_hosts()
        return self

    def others_wait(self, *culprits: int, **more: Any) -> None:
        """All ranks but these enqueue their next collective and wait."""
        for rank in self.ranks:
            if rank.number not in culprits and not rank.gone:
                rank.waits_in(**more)

    def goes_on(self) -> None:
        """All ranks come back from what they wait for, and train."""
        for rank in self.ranks:
            rank.comes_back()

    def new_group(self, name: str, *members: int) -> None:
        """A further process group."""
        self.groups[name] = Group(name, f"group {name}", members, "gloo")
        for number in members:
            self.ranks[number].standings[name] = Standing()
            self.say(Groups(tuple(self.groups.values())), self.ranks[number])

    def restarts(self) -> None:
        """The launcher restarts all ranks as the next attempt."""
        self.attempt += 1
        self.ranks = [
            FakeRank(self, number, rank.pid + 100) for number, rank in enumerate(self.ranks)
        ]
        for rank in self.ranks:
            self.greet(rank)

    # -- which process reports what

    def host_of(self, rank: FakeRank) -> str:
        return f"node{rank.number * self.hosts // self.world_size}"

    def greet(self, rank: FakeRank) -> None:
        rank.seen = True
        self.say(rank.hello(), rank)
        self.say(Groups(tuple(self.groups.values())), rank)

    def look_at_hosts(self) -> None:
        for number in range(self.hosts):
            name = f"node{number}"
            mine = [
                rank
                for rank in self.ranks
                if self.host_of(rank) == name and rank.seen and not rank.gone
            ]
            host = HostState(
                name,
                4,
                0.5,
                processes=(*(rank.process() for rank in mine), *self.beside),
                launcher_alive=self.launcher_alive,
                rendezvous=tuple(rank.way for rank in mine if rank.way is not None and rank.calls),
                candidates=self.candidates,
                **self.host_says,
            )
            self.say(host, sender=name)

    def say(
        self,
        record: AnyRecord,
        rank: FakeRank | None = None,
        at_s: float | None = None,
        sender: str | None = None,
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

    # -- the results

    def model(self) -> Job:
        """Apply all records so far, in the order of their time."""
        job = Job(self.name, self.policy)
        for envelope, record in self.in_order():
            job.apply(envelope, record)
        return job

    def in_order(self) -> list[Frame]:
        return sorted(self.records, key=lambda item: item[0].unix_ns)

    def snapshot(self) -> Snapshot:
        """The snapshot of this moment."""
        return self.model().snapshot(unix_ns(self.now))

    def moments(
        self, joined_s: float = 0.0, every_s: float = TICK_S
    ) -> Iterator[tuple[Judge, Snapshot]]:
        """The judge of a viewer that joined at `joined_s`, and what it looks at every half second
        until now.
        """
        job, judge = Job(self.name, self.policy), Judge(self.policy)
        waiting = deque(self.in_order())
        moment = joined_s
        while moment <= self.now + 1e-9:
            while waiting and waiting[0][0].unix_ns <= unix_ns(moment):
                job.apply(*waiting.popleft())
            yield judge, job.snapshot(unix_ns(moment))
            moment += every_s

    def looks(
        self, joined_s: float = 0.0, every_s: float = TICK_S
    ) -> Iterator[tuple[Snapshot, Verdict]]:
        """What such a viewer sees."""
        return (look(judge, snapshot) for judge, snapshot in self.moments(joined_s, every_s))

    def verdicts(self, joined_s: float = 0.0, every_s: float = TICK_S) -> list[Verdict]:
        """The verdicts of such a viewer."""
        return [verdict for _, verdict in self.looks(joined_s, every_s)]

    def verdict(self) -> Verdict:
        """The findings of this moment.

        A viewer that joins at any second reads the same, so this one has just joined. What a judge
        remembers (the findings until the end, a finding that comes back) needs `joined_s` 0.
        """
        joined_s = self.now - JOINED_S if self.joined_s is None else self.joined_s
        # Words take as long as the rules, and only the last ones are read.
        for judge, snapshot in self.moments(max(0.0, joined_s)):
            verdict = judge.observe(snapshot)
        return told(verdict, snapshot, self.policy)

    def finding(self) -> Finding:
        """The only finding of this moment."""
        (finding,) = self.verdict().findings
        return finding

    def finds(self, severity: str, kind: str, *ranks: int) -> Finding:
        """The only finding of this moment, which must be this one."""
        finding = self.finding()
        assert brief(finding) == (severity, kind, ranks), brief(finding)
        return finding

    def kinds(self) -> list[Kind]:
        """(severity, kind, ranks) of the findings of this moment."""
        return [brief(finding) for finding in self.verdict().findings]

    def ever(self) -> list[Kind]:
        """(severity, kind, ranks) of the findings of any time, in order of appearance. Each can be
        put into words when it appears.
        """
        found: dict[Kind, Finding] = {}
        for judge, snapshot in self.moments():
            for finding in judge.observe(snapshot).findings:
                if brief(finding) not in found:
                    found[brief(finding)] = tell(finding)
        return list(found)


def trained(world_size: int = 4) -> FakeJob:
    """A job in its tenth second of healthy steps."""
    return FakeJob(world_size).trains(10)


def hung(seconds: float = 8.0, joined_s: float | None = None) -> FakeJob:
    """Rank 2 is stuck elsewhere, and the others have waited for it for so long."""
    job = trained()
    job.joined_s = joined_s
    job.ranks[2].stands_at("fetch_labels", "data.py", 40)
    job.others_wait(2)
    return job.passes(seconds)


def brief(finding: Finding) -> Kind:
    """Severity, kind and ranks of a finding."""
    return (finding.severity, finding.kind, finding.ranks)


def without_times(finding: Finding) -> Finding:
    """A form of the finding that is equal for viewers that look at different moments."""
    return replace(finding, summary="", evidence=(), advice="")
