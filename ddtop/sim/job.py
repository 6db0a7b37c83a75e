"""A simulated job: for any stretch of time, the frames that its agents and relays would send in it.

Everything follows from the seed and the time that is asked for: the same stretch gives the same
bytes, in whatever order the stretches are asked for. Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import floor
from random import Random

from msgspec import structs

from ddtop.sim import hosts, reports
from ddtop.sim import incidents as script
from ddtop.sim.fleet import LOCAL_SIZE, SimulatedFleet
from ddtop.sim.hosts import SimulatedGpus
from ddtop.sim.incidents import ABSENT, GONE, STOPPED, Course, Era, Scenario, course_of
from ddtop.sim.reports import ReportMoment, answers_of
from ddtop.wire import frames
from ddtop.wire.records import AnyRecord, Exit, Groups, Stacks
from ddtop.wire.times import host_period_s, rank_period_s, shift

SECOND_NS = 1_000_000_000
SLOT_NS = 100_000_000
"""The ranks report in turn, a tenth of a second apart, as agents that know nothing of each other
do.
"""
SLOT_S = SLOT_NS / SECOND_NS
OFTEN_TO = 1024
"""Up to this many ranks, each reports twice a second, as agents of ranks without progress do; above
it, once."""
STUCK_AFTER_S = 1.0
"""The time after which agents report that they are stuck."""
UNSTUCK_AFTER_S = 3.0
"""The time after which the hub has asked the hosts of all other ranks for every report, in jobs so
large that most reports are left out (`wire.pace`)."""
DUMPED_AFTER_S = 4.0
"""The time without progress after which relays take stacks automatically."""
OOM_GROWTH_S = 25.0
"""How long before it is killed the memory of a rank begins to grow, in the end by OOM_BYTES."""
OOM_BYTES = 700 << 30
AUTOMATIC = "auto-simulated"


class SimulatedJob:
    """A job of `world_size` ranks to which a scenario happens, from `began_unix_ns` on.
    `reports_per_s`: how often each rank reports, 1 or 2; None: twice a second up to `OFTEN_TO`
    ranks.

    Raises:
        ValueError: there can be no such job; the text says why.
    """

    def __init__(
        self,
        world_size: int,
        seed: int = 0,
        scenario: Scenario = script.SCENARIOS[script.TOUR],
        *,
        began_unix_ns: int,
        reports_per_s: int | None = None,
    ) -> None:
        if reports_per_s not in (None, 1, 2):
            raise ValueError(f"{reports_per_s} reports a second: 1 or 2 can be simulated")
        self.fleet = SimulatedFleet(world_size, seed)
        script.check(scenario.incidents, world_size)
        self._seed, self._scenario, self.began_unix_ns = seed, scenario, began_unix_ns
        often = reports_per_s == 2 if reports_per_s else world_size <= OFTEN_TO
        self._turns = 5 if often else 10 * round(rank_period_s(world_size))
        self._in_flight = often
        self._offsets_ns = _offsets_ns(self.fleet, scenario.skew_s, seed)
        self._attempts: dict[int, _Attempt] = {}
        host_turns = 10 * round(host_period_s(world_size))
        self._in_turn: list[list[int]] = [[] for _ in range(self._turns)]
        self._hosts_in_turn: list[list[int]] = [[] for _ in range(host_turns)]
        for host in range(self.fleet.hosts):
            self._hosts_in_turn[(host + 3) % host_turns].append(host)
            for rank in self.fleet.ranks_of(host):
                self._in_turn[(rank if self.fleet.spread_by_rank else host) % self._turns].append(
                    rank
                )

    @property
    def name(self) -> str:
        """`sim-4096`."""
        return self.fleet.name

    def frames(self, after_unix_ns: int, until_unix_ns: int) -> Iterator[bytes]:
        """All frames made after one moment and up to another, in the order of their time (to a
        tenth of a second).
        """
        first = (after_unix_ns - self.began_unix_ns) // SLOT_NS
        last = (until_unix_ns - self.began_unix_ns) // SLOT_NS
        for slot in range(first, last):
            yield from self._on_host_clocks(self._slot(slot))

    def joining(self, at_unix_ns: int, history_s: float = 2.0) -> Iterator[bytes]:
        """What a viewer gets if it joins at this moment: the Hello of each rank, the last reports
        of silent ranks, and this much history, at least the last report of each."""
        history_s = max(history_s, self._turns * SLOT_S)
        yield from self._on_host_clocks(self._before(at_unix_ns, history_s))
        attempt, at_s = self._when((at_unix_ns - self.began_unix_ns) // SLOT_NS * SLOT_NS)
        begin_s = max(at_s - history_s, attempt.eras[0].begin_s)
        yield from self.frames(attempt.unix_ns(begin_s), at_unix_ns)

    def _before(self, at_unix_ns: int, history_s: float) -> Iterator[bytes]:
        attempt, at_s = self._when((at_unix_ns - self.began_unix_ns) // SLOT_NS * SLOT_NS)
        begin_s = max(at_s - history_s, attempt.eras[0].begin_s)
        era = attempt.era(at_s)
        for rank in range(self.fleet.world_size):
            born_s, joined_s = attempt.born_s(rank), attempt.joined_s(rank)
            if at_s >= born_s:
                yield self._hello(attempt, rank, born_s, joined_s if at_s >= joined_s else None)
        for rank in range(self.fleet.world_size):
            if (groups := self.fleet.reported_groups(rank)) and at_s >= attempt.met_s:
                yield self._seal(Groups(groups), attempt, rank, begin_s)
        if era.rank is not None and era.role(era.rank) in (STOPPED, GONE) and begin_s > era.begin_s:
            yield from self._left_behind(attempt, era)
        if era.silent_host is not None and begin_s > era.begin_s:
            yield from self._last_of_host(attempt, era)

    def stacks(self, at_unix_ns: int, request: str, ranks: Collection[int] = ()) -> Iterator[bytes]:
        """The answers of these ranks (empty: all) to a request for stacks; ranks that are not there
        do not answer."""
        attempt, at_s = self._when(at_unix_ns - self.began_unix_ns)
        for rank in ranks or range(self.fleet.world_size):
            if 0 <= rank < self.fleet.world_size and self._there(
                attempt, attempt.era(at_s), rank, at_s
            ):
                yield from self._on_host_clocks(
                    self._answers(attempt, rank, at_s, request, automatic=False)
                )

    # -- one tenth of a second

    def _slot(self, slot: int) -> Iterator[bytes]:
        attempt, at_s = self._when(slot * SLOT_NS)
        era = attempt.era(at_s)
        end_s = at_s + SLOT_S
        if at_s < attempt.met_s + SLOT_S:
            yield from self._arrivals(attempt, at_s, end_s)
        moment = self._moment(attempt, era, at_s)
        common = _Courses(attempt, at_s)
        for rank in self._reporting(slot, era, at_s - era.begin_s):
            course = common.of(rank)
            unheard = course.role in (STOPPED, GONE) or rank // LOCAL_SIZE == era.silent_host
            if unheard or at_s < attempt.born_s(rank):
                continue
            later_s = self._later_s(rank)
            phase = attempt.phase(rank, at_s)
            record = moment.state(rank, course, later_s, phase, attempt.joined_s(rank))
            key = f"{moment.waits_in(rank)}" if course.role == script.WAITS else None
            yield self._seal(
                record, attempt, rank, at_s + later_s, key, script.PACES[course.role].wait_ratio
            )
        for host in self._hosts_in_turn[slot % len(self._hosts_in_turn)]:
            if host != era.silent_host:
                yield self._host(attempt, host, at_s, common)
        if (
            era.rank is not None
            and at_s < era.begin_s + SLOT_S <= end_s
            and era.role(era.rank) == GONE
        ):
            yield self._exit(attempt, era.rank, era)
        if era.kind == script.STRAGGLER and reports.is_asked(era, at_s, end_s):
            yield from self._lateness(attempt, era, at_s)
        if era.kind in script.STANDS and at_s < era.begin_s + DUMPED_AFTER_S <= end_s:
            yield from self._automatic(attempt, era, at_s)

    def _reporting(self, slot: int, era: Era, since_s: float) -> Iterator[int]:
        """The ranks that report in this slot, `since_s` after something has changed for all.

        Where most reports are left out, all ranks report once when they have got stuck or go on.
        Then the rank that the others wait for reports each second.
        """
        if self._turns > 10 and STUCK_AFTER_S <= since_s < STUCK_AFTER_S + 1.0:
            for turn in range(slot % 10, self._turns, 10):
                yield from self._in_turn[turn]
            return
        yield from self._in_turn[slot % self._turns]
        if self._turns > 10 and era.kind in script.STANDS and since_s >= UNSTUCK_AFTER_S:
            assert era.rank is not None
            turn = era.rank // LOCAL_SIZE % self._turns
            if turn != slot % self._turns and turn % 10 == slot % 10:
                yield era.rank

    def _moment(self, attempt: _Attempt, era: Era, at_s: float) -> ReportMoment:
        began, base = attempt.began_unix_ns, attempt.base_step
        return ReportMoment(
            self.fleet, era, at_s, began, attempt.number, base, self._in_flight, attempt.gpus
        )

    def _later_s(self, rank: int) -> float:
        """So long after the beginning of its slot it reports: one of 16 moments in it."""
        turn = rank if self.fleet.spread_by_rank else rank // LOCAL_SIZE
        return turn * 7 % 16 * SLOT_S / 16

    def _when(self, after_ns: int) -> tuple[_Attempt, float]:
        """The attempt that runs so long after the beginning, and the seconds since its own
        beginning.
        """
        restarts_s, at_s = self._scenario.restarts_s, after_ns / SECOND_NS
        number = max(floor(at_s / restarts_s), 0) if restarts_s else 0
        attempt = self._attempts.get(number)
        if attempt is None:
            attempt = self._attempts[number] = self._make_attempt(number)
        # To a microsecond: 0.30000000000000004 s would be another slot than 0.3 s.
        return attempt, round(at_s - number * (restarts_s or 0.0), 6)

    def _make_attempt(self, number: int) -> _Attempt:
        incidents = self._scenario.incidents
        eras = script.eras_of(
            incidents,
            self.fleet.world_size,
            self._seed + number,
            self.fleet.step_s,
            starts=number > 0,
        )
        base = self.fleet.done_steps
        if number:
            before, _ = self._when(
                floor((number - 1) * (self._scenario.restarts_s or 0.0) * SECOND_NS)
            )
            # From the last checkpoint.
            base = (before.base_step + int(before.eras[-1].steps)) // 100 * 100
        began = self.began_unix_ns + round(number * (self._scenario.restarts_s or 0.0) * SECOND_NS)
        kind, bare = self._scenario.has_gpus, self._scenario.bare_hosts
        gpus = (
            SimulatedGpus(self.fleet, kind, bare, eras, number, began) if kind is not None else None
        )
        return _Attempt(number, eras, began, base, self.fleet, gpus)

    def _arrivals(self, attempt: _Attempt, at_s: float, end_s: float) -> Iterator[bytes]:
        """Who says hello in this slot, for the first time or inside init_process_group; and the
        groups once all have met.
        """
        for rank in range(self.fleet.world_size):
            born_s, joined_s = attempt.born_s(rank), attempt.joined_s(rank)
            if at_s <= born_s < end_s:
                yield self._hello(attempt, rank, born_s, None)
            if at_s <= joined_s < end_s:
                yield self._hello(attempt, rank, joined_s, joined_s)
            if at_s <= attempt.met_s < end_s and (groups := self.fleet.reported_groups(rank)):
                yield self._seal(Groups(groups), attempt, rank, attempt.met_s)

    def _there(self, attempt: _Attempt, era: Era, rank: int, at_s: float) -> bool:
        return (
            at_s >= attempt.born_s(rank)
            and era.role(rank) != GONE
            and rank // LOCAL_SIZE != era.silent_host
        )

    # -- frames

    def _seal(
        self,
        record: AnyRecord,
        attempt: _Attempt,
        rank: int | None,
        at_s: float,
        stuck_key: str | None = None,
        wait_ratio: float | None = None,
        host: int | None = None,
    ) -> bytes:
        unix_ns = attempt.unix_ns(at_s)
        return frames.seal(
            record,
            sender=self.fleet.sender(rank // LOCAL_SIZE if rank is not None else host or 0),
            unix_ns=unix_ns,
            mono_ns=unix_ns - self.began_unix_ns + 86_400 * SECOND_NS,
            attempt=attempt.number,
            rank=rank,
            pid=self.fleet.pid(rank, attempt.number) if rank is not None else None,
            stuck_key=stuck_key,
            wait_ratio=wait_ratio,
        )

    def _hello(self, attempt: _Attempt, rank: int, at_s: float, joined_s: float | None) -> bytes:
        started = attempt.unix_ns(attempt.eras[0].begin_s)
        init = None if joined_s is None else attempt.unix_ns(joined_s)
        return self._seal(
            self.fleet.hello(rank, attempt.number, started, init), attempt, rank, at_s
        )

    def _host(self, attempt: _Attempt, host: int, at_s: float, common: _Courses) -> bytes:
        tick, era = int(at_s * 10), attempt.era(at_s)
        processes, cores, roles = [], 0.0, []
        for rank in self.fleet.ranks_of(host):
            if not self._there(attempt, era, rank, at_s):
                roles.append(ABSENT)
                continue
            course = common.of(rank)
            roles.append(course.role)
            joining = attempt.phase(rank, at_s) == "joining"
            init = attempt.unix_ns(attempt.joined_s(rank)) if joining else None
            grown = attempt.grown_bytes(rank, at_s)
            processes.append(
                hosts.process_of(self.fleet, rank, attempt.number, course, tick, grown, init)
            )
            cores += script.PACES[course.role].cores
        up_s = (attempt.unix_ns(at_s) - self.began_unix_ns) / SECOND_NS + script.LIVED_S
        lost = int(era.silent_host is not None)
        state = hosts.host_state(
            self.fleet,
            host,
            tuple(processes),
            cores,
            up_s,
            tick,
            self._offsets_ns.get(self.fleet.sender(host), 0),
            lost,
        )
        if attempt.gpus is not None:
            gpus, watch = attempt.gpus.of(host, roles, at_s)
            state = structs.replace(state, gpus=gpus, gpu_watch=watch)
        return self._seal(state, attempt, None, at_s + SLOT_S / 2, host=host)

    def _exit(self, attempt: _Attempt, rank: int, era: Era) -> bytes:
        pid = self.fleet.pid(rank, attempt.number)
        line = (
            f"Out of memory: Killed process {pid} (python) total-vm:812345678kB,"
            f" anon-rss:{OOM_BYTES >> 10}kB"
        )
        record = Exit(rank, pid, None, 9, True, 0, "pidfd", oom_line=line)
        return self._seal(record, attempt, rank, era.begin_s + 0.02)

    def _left_behind(self, attempt: _Attempt, era: Era) -> Iterator[bytes]:
        """The last report of a rank that was stopped or killed, and its end."""
        assert era.rank is not None
        rank, at_s = era.rank, max(era.begin_s - SLOT_S, 0.0)
        before = attempt.era(at_s)
        if before.role(rank) not in script.TRAINING:
            return
        moment = self._moment(attempt, before, at_s)
        record = moment.state(rank, _Courses(attempt, at_s).of(rank), 0.0, "running", 0.0)
        yield self._seal(record, attempt, rank, at_s)
        if era.role(rank) == GONE:
            yield self._exit(attempt, rank, era)

    def _last_of_host(self, attempt: _Attempt, era: Era) -> Iterator[bytes]:
        """The last reports of a host that is not heard any more, and of its ranks."""
        assert era.silent_host is not None
        at_s = era.begin_s - SLOT_S
        before, common = attempt.era(at_s), _Courses(attempt, at_s)
        moment = self._moment(attempt, before, at_s)
        for rank in self.fleet.ranks_of(era.silent_host):
            yield self._seal(
                moment.state(rank, common.of(rank), 0.0, "running", 0.0), attempt, rank, at_s
            )
        yield self._host(attempt, era.silent_host, at_s, common)

    def _on_host_clocks(self, found: Iterator[bytes]) -> Iterator[bytes]:
        """The frames as their hosts send them, each on its own clock."""
        if not self._offsets_ns:
            yield from found
            return
        for data in found:
            envelope = frames.open_envelope(data)
            by_ns = -self._offsets_ns.get(envelope.sender, 0)
            record = shift(frames.open_record(envelope), by_ns)
            yield frames.seal(
                record,
                sender=envelope.sender,
                unix_ns=envelope.unix_ns + by_ns,
                mono_ns=envelope.mono_ns,
                attempt=envelope.attempt,
                rank=envelope.rank,
                pid=envelope.pid,
                stuck_key=envelope.stuck_key,
                wait_ratio=envelope.wait_ratio,
            )

    def _automatic(self, attempt: _Attempt, era: Era, at_s: float) -> Iterator[bytes]:
        """The dump that relays take by themselves; of very many ranks only on the host where
        somebody is missing.
        """
        missing = era.rank or 0
        few = self.fleet.world_size <= OFTEN_TO
        for rank in (
            range(self.fleet.world_size) if few else self.fleet.ranks_of(missing // LOCAL_SIZE)
        ):
            if self._there(attempt, era, rank, at_s):
                yield from self._answers(
                    attempt, rank, at_s, f"{AUTOMATIC}-{attempt.number}", automatic=True
                )

    def _lateness(self, attempt: _Attempt, era: Era, at_s: float) -> Iterator[bytes]:
        """The answers to the relay on whose host ranks wait unalike."""
        request = f"simulated-{attempt.number}-{at_s:.1f}"
        for rank in self.fleet.ranks_of((era.rank or 0) // LOCAL_SIZE):
            record = reports.arrivals(
                self.fleet, era, rank, at_s, attempt.unix_ns, attempt.base_step, request
            )
            yield self._seal(record, attempt, rank, at_s)

    def _answers(
        self, attempt: _Attempt, rank: int, at_s: float, request: str, automatic: bool
    ) -> Iterator[bytes]:
        era = attempt.era(at_s)
        answers: list[Stacks] = answers_of(
            request,
            rank,
            self.fleet.pid(rank, attempt.number),
            era.role(rank),
            attempt.phase(rank, at_s) == "running",
            attempt.unix_ns(at_s),
            automatic,
        )
        for answer in answers:
            yield self._seal(answer, attempt, rank, at_s)


def _offsets_ns(fleet: SimulatedFleet, skew_s: float, seed: int) -> dict[str, int]:
    """By sender, how far the hub's clock is ahead of the host's; empty where all are right."""
    random = Random(f"{seed}/clocks")
    most = round(skew_s * SECOND_NS)
    return (
        {fleet.sender(host): random.randint(-most, most) for host in range(1, fleet.hosts)}
        if most
        else {}
    )


class _Attempt:
    """One life of the job's processes; seconds are since its beginning."""

    def __init__(
        self,
        number: int,
        eras: tuple[Era, ...],
        began_unix_ns: int,
        base_step: int,
        fleet: SimulatedFleet,
        gpus: SimulatedGpus | None,
    ) -> None:
        self.number, self.eras, self.began_unix_ns, self.base_step = (
            number,
            eras,
            began_unix_ns,
            base_step,
        )
        self._fleet, self.gpus = fleet, gpus
        self.starts = eras[0].kind == script.RANK_MISSING
        self.met_s = eras[0].end_s if self.starts else eras[0].begin_s + script.JOINING_S
        self.culprits = frozenset(era.rank for era in eras if era.rank is not None)

    def unix_ns(self, at_s: float) -> int:
        return self.began_unix_ns + round(at_s * SECOND_NS)

    def era(self, at_s: float) -> Era:
        return next((era for era in reversed(self.eras) if era.begin_s <= at_s), self.eras[0])

    def born_s(self, rank: int) -> float:
        """When its agent says hello."""
        first = self.eras[0]
        late_s = (
            self.met_s - script.JOINING_S if self.starts and first.rank == rank else first.begin_s
        )
        return late_s + 0.2 + 0.65 * (self._fleet.factors[rank] - 0.97) / 0.06

    def joined_s(self, rank: int) -> float:
        """When it enters init_process_group."""
        return self.born_s(rank) + script.STARTING_S

    def phase(self, rank: int, at_s: float) -> str:
        if at_s >= self.met_s:
            return "running"
        return "joining" if at_s >= self.joined_s(rank) else "starting"

    def grown_bytes(self, rank: int, at_s: float) -> int:
        """Memory that it will be killed for."""
        ahead = [
            era.begin_s - at_s
            for era in self.eras
            if era.kind == script.RANK_KILLED and era.rank == rank
        ]
        part = max((1.0 - left_s / OOM_GROWTH_S for left_s in ahead if left_s >= 0.0), default=0.0)
        return int(OOM_BYTES * max(part, 0.0) ** 2)


class _Courses:
    """The courses of all ranks at one moment: one for nearly all of them, and one for each that
    was ever at fault.
    """

    def __init__(self, attempt: _Attempt, at_s: float) -> None:
        self._attempt, self._at_s = attempt, at_s
        self._single: dict[int, Course] = {}
        self._common = course_of(-1, attempt.eras, at_s)

    def of(self, rank: int) -> Course:
        if rank not in self._attempt.culprits:
            return self._common
        course = self._single.get(rank)
        if course is None:
            course = course_of(rank, self._attempt.eras, self._at_s)
            # It starts where others have long been waiting.
            if course.role == ABSENT and self._at_s >= self._attempt.born_s(rank):
                course = course_of(-1, self._attempt.eras, self._at_s - self._attempt.born_s(rank))
            self._single[rank] = course
        return course
