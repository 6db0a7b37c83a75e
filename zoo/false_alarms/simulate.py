"""One simulated healthy job, through the real model and the real judge."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from ddtop.diagnosis.judge import Judge
from ddtop.follow.engine import NEWEST_FROM
from ddtop.model.job import Job
from ddtop.policy import POLICY
from ddtop.say.told import look
from ddtop.wire.frames import Envelope
from ddtop.wire.records import Exit, Groups, Hello, HostState, ProcessState, RankState
from zoo.false_alarms.alarms import Alarms
from zoo.false_alarms.recording import SECOND_NS, Recording
from zoo.false_alarms.retelling import LOCAL_SIZE, Retold

LOOK_S = 0.5
"""An agent reports twice a second, and so often the judge takes a look for another one."""
LATE_RATIO, LOST_RATIO = 0.02, 0.003
"""Of the reports: those that come half a second late, and those that never come."""
RELAY_KILLED_S, RELAY_AWAY_S = 4 * 3600.0, (3.0, 7.0)
"""How rarely a host's relay is killed, on average, and how long until its successor is heard."""
STALLS_EVERY_S, STALL_S = 1800.0, (0.5, 2.4)
"""The same for all reports of a host that come late together, as when its network pauses."""
LOOK_COST_S, LOOK_SHARE, LOOK_MOST_S = 45e-6, 0.15, 3.0
"""What a look costs a viewer for each rank, the share of a core that looks may take, and the most
that lies between two (`ddtop.follow.engine`): 10,000 ranks are looked at every three seconds.
"""
_RAW = msgspec.Raw(b"")


@dataclass(frozen=True)
class Result:
    """The result of one job."""

    name: str
    world: int
    seconds: float
    rank_s: float
    looks: int
    alarms: Alarms


@dataclass
class Host:
    """One host of the job. Until `quiet_until_s` none of its records arrive; `lost`: nor later."""

    sender: str
    ranks: range
    quiet_until_s: float = 0.0
    lost: bool = False


class Simulation:
    """One job. It is healthy: whatever stands is a false alarm, or true and harmless."""

    def __init__(self, recording: Recording, seed: int, world: int, seconds: float) -> None:
        self._retold = Retold(recording, seed, world, seconds)
        self._random = Random(f"{seed}/reports")
        self._job = Job(self._retold.name, POLICY)
        self._judge = Judge(POLICY)
        self._alarms = Alarms()
        self._phases = sorted((self._random.uniform(0.02, 0.4), rank) for rank in range(world))
        self._hosts = [
            Host(self._retold.sender(first), range(first, min(first + LOCAL_SIZE, world)))
            for first in range(0, world, LOCAL_SIZE)
        ]
        self._host_of = [self._hosts[rank // LOCAL_SIZE] for rank in range(world)]
        self._late: list[tuple[Host, Envelope, Any]] = []
        self._known: dict[tuple[int, type], Any] = {}
        """The last Hello and Groups of each rank: a new relay gets them again."""
        self._gone: set[int] = set()
        self._now_s = self._look_s = 0.0
        self._newest_only = world > NEWEST_FROM
        self._stuck: dict[int, bool] = {}

    def run(self) -> Result:
        """All of it."""
        retold, rank_s, tick, recorded_s = self._retold, 0.0, 0, 0.0
        part, looks, reporting = -1, 0, 0
        while self._now_s < retold.seconds:
            self._now_s = tick * LOOK_S
            retold.go_to(self._now_s)
            self._disturb()
            if part != retold.part:
                part, recorded_s = retold.part, retold.begin_s
            self._once(recorded_s, retold.now_s)
            recorded_s = retold.now_s
            looks_now = self._now_s >= self._look_s
            self._reports(looks_now)
            if tick % 2 == 0 or (looks_now and self._newest_only):
                self._relays()
            if looks_now:
                snapshot = self._job.snapshot(retold.unix_ns(self._now_s + LOOK_S))
                _, verdict = look(self._judge, snapshot)
                self._alarms.note(verdict, self._now_s)
                reporting = snapshot.reporting
                self._look_s = self._now_s + self._pause_s()
                looks += 1
            rank_s += LOOK_S * reporting
            tick += 1
        return Result(retold.name, retold.world, self._now_s, rank_s, looks, self._alarms)

    def _pause_s(self) -> float:
        """Until the next look: a finding that wavers brings it forward, a large job puts it off."""
        cost_s = LOOK_COST_S * self._retold.world
        pause_s = min(cost_s / LOOK_SHARE, LOOK_MOST_S)
        if self._judge.wavers:
            pause_s = min(pause_s, 2 * cost_s)
        return max(pause_s, LOOK_S)

    # -- disturbances

    def _disturb(self) -> None:
        """A relay is killed, or all reports of a host come late together."""
        for host in self._hosts:
            if host.lost and self._now_s >= host.quiet_until_s:
                host.lost = False
                self._greet_again(host)
            chance = self._random.random()
            if chance < LOOK_S / RELAY_KILLED_S:
                host.lost = True
                host.quiet_until_s = self._now_s + self._random.uniform(*RELAY_AWAY_S)
            elif chance < LOOK_S / STALLS_EVERY_S:
                host.quiet_until_s = self._now_s + self._random.uniform(*STALL_S)

    def _greet_again(self, host: Host) -> None:
        for rank in host.ranks:
            for kind in (Hello, Groups):
                if (rank, kind) in self._known and rank not in self._gone:
                    self._job.apply(
                        self._envelope(rank, self._known[rank, kind]), self._known[rank, kind]
                    )

    def _envelope(self, rank: int | None, record: Any, after_s: float = 0.01) -> Envelope:
        unix_ns = self._retold.unix_ns(self._now_s + after_s)
        pid = None if rank is None else self._retold.pid(rank)
        sender = self._host_of[rank or 0].sender
        kind = type(record).__name__
        return Envelope(1, 0, kind, sender, 0, rank, pid, unix_ns, unix_ns, None, _RAW)

    # -- reports

    def _once(self, from_s: float, until_s: float) -> None:
        for rank, record in self._retold.once(from_s, until_s):
            if isinstance(record, (Hello, Groups)):
                self._known[rank, type(record)] = record
            if isinstance(record, Exit):
                self._gone.add(rank)
            self._job.apply(self._envelope(rank, record), record)

    def _due(self, states: dict[int, tuple[RankState, float | None]], looks_now: bool) -> set[int]:
        """The recorded ranks whose reports are taken in now: as a viewer does, of a large job only
        the newest before a look and the first that says that a rank has got stuck, or goes on.
        """
        if looks_now or not self._newest_only:
            return set(states)
        stuck = {
            rank: any(one.pending_since_unix_ns is not None for one in state.groups)
            for rank, (state, _) in states.items()
        }
        due = {rank for rank, is_stuck in stuck.items() if self._stuck.get(rank) != is_stuck}
        self._stuck = stuck
        return due

    def _reports(self, looks_now: bool) -> None:
        """One report of each rank, some of which come at the next look or never."""
        late, self._late = self._late, []
        for host, envelope, record in late:
            if self._now_s < host.quiet_until_s:
                self._late.append((host, envelope, record))
            else:
                self._job.apply(envelope, record)
        states = self._retold.states()
        due = self._due(states, looks_now)
        states = {rank: said for rank, said in states.items() if rank in due}
        if not states:
            return
        retold, chance, now_s = self._retold, self._random.random, self._now_s
        began_ns = retold.unix_ns(now_s)
        for phase_s, rank in self._phases:
            said = states.get(retold.models[rank])
            if said is None or rank in self._gone:
                continue
            state, ratio = said
            host = self._host_of[rank]
            at_ns = began_ns + int(phase_s * SECOND_NS)
            envelope = Envelope(
                1, 0, "RankState", host.sender, 0, rank, retold.pid(rank), at_ns, at_ns, None, _RAW,
                ratio,
            )  # fmt: skip
            drawn = chance()
            if now_s < host.quiet_until_s:
                if not host.lost:
                    self._late.append((host, envelope, state))
            elif drawn > LATE_RATIO + LOST_RATIO:
                self._job.apply(envelope, state)
            elif drawn > LOST_RATIO:
                self._late.append((host, envelope, state))

    def _relays(self) -> None:
        """What each host's relay says once a second."""
        processes = self._retold.processes()
        recorded = self._retold.host()
        for host in self._hosts:
            if self._now_s < host.quiet_until_s:
                continue
            here: list[ProcessState] = []
            for rank in host.ranks:
                process = processes.get(self._retold.models[rank])
                if process is not None and rank not in self._gone:
                    here.append(replace(process, rank=rank, pid=self._retold.pid(rank)))
            self._job.apply(*self._host_state(host, recorded, tuple(here)))

    def _host_state(
        self, host: Host, recorded: HostState, here: tuple[ProcessState, ...]
    ) -> tuple[Envelope, HostState]:
        record = replace(
            recorded,
            host=f"node{host.ranks.start // LOCAL_SIZE}",
            cores=8 * LOCAL_SIZE,
            cpu_ratio=0.3,
            processes=here,
            load=None,
            rendezvous=(),
            candidates=(),
            candidacies=(),
            launching=None,
        )
        envelope = self._envelope(host.ranks.start, record)
        return replace(envelope, rank=None, pid=None), record
