"""Records of a job that goes on for hours, made of the recording of one that took minutes.

Parts of the recording follow each other in any order. Steps are slower or faster than they were,
and each pause (an evaluation, a checkpoint) has a length of its own. What counts up goes on
counting, times of day are moved, and lengths of time are stretched like the part that they are in.
Each rank of a large job does what one of the recorded ranks did.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from msgspec.structs import replace

from ddtop.wire.records import (
    Arrivals,
    Collective,
    Exit,
    Group,
    Groups,
    Hello,
    HostState,
    OpenCall,
    Place,
    ProcessLoad,
    ProcessState,
    RankState,
    TrainingProgress,
    arrivals_of,
)
from zoo.false_alarms.recording import SECOND_NS, Part, Recording

STEP_FACTORS = (0.7, 1.6)
PAUSE_MEDIAN, PAUSE_SPREAD, PAUSE_MOST_S = 1.2, 0.7, 120.0
"""Pauses are so many times as long as recorded: a lognormal distribution, cut off at its end."""
WAITS_MS, WAITS_STEPS = 1000.0, 100
"""An agent remembers the longest waits of so many steps."""
LOCAL_SIZE = 8
UNLOADED = ProcessLoad(run_delay_ns=0, major_faults=0, cpus="0-7", cpus_count=8, threads_delay_ns=0)
"""The machine that recorded was crowded, and that of the job is not."""
FIRST_PID = 20_000


@dataclass(slots=True)
class Piece:
    """A stretch of a recording, replayed `factor` times as slowly, from `at_s` of the job on
    (s).
    """

    part: int
    begin_s: float
    end_s: float
    factor: float
    at_s: float
    pause: bool = False

    @property
    def over_s(self) -> float:
        """When it is over, in seconds of the job."""
        return self.at_s + (self.end_s - self.begin_s) * self.factor


class Plan:
    """Which stretch of the recording is replayed when."""

    def __init__(self, recording: Recording, random: Random, seconds: float) -> None:
        self._recording, self._random = recording, random
        self.pieces: list[Piece] = []
        self._parts = 0
        steps = random.uniform(*STEP_FACTORS)
        parts = recording.parts
        first, last = parts[0], parts[-1]
        self._add(Part(0.0, first.begin_s), 1.0, stretch=False)
        while self.end_s < seconds:
            part = random.choice(parts)
            self._add(part, steps, stretch=True)
        end_s = max(track.at_s[-1] for track in recording.states.values())
        self._add(Part(last.end_s, max(end_s, recording.hosts.at_s[-1])), 1.0, stretch=False)
        self.begins_s = [piece.at_s for piece in self.pieces]

    @property
    def end_s(self) -> float:
        """When the last piece is over."""
        return self.pieces[-1].over_s if self.pieces else 0.0

    def _add(self, part: Part, steps: float, stretch: bool) -> None:
        number = self._parts
        self._parts += 1
        at_s = part.begin_s
        pauses = [(a, b) for a, b in self._recording.pauses_s if a >= at_s and b <= part.end_s]
        for begin_s, end_s in pauses if stretch else []:
            self._put(number, at_s, begin_s, steps)
            longest = PAUSE_MOST_S / (end_s - begin_s)
            factor = self._random.lognormvariate(math.log(PAUSE_MEDIAN), PAUSE_SPREAD)
            self._put(number, begin_s, end_s, min(factor, longest), pause=True)
            at_s = end_s
        self._put(number, at_s, part.end_s, steps)

    def _put(
        self, part: int, begin_s: float, end_s: float, factor: float, pause: bool = False
    ) -> None:
        if end_s > begin_s:
            self.pieces.append(Piece(part, begin_s, end_s, factor, self.end_s, pause))

    def index(self, at_s: float) -> int:
        """Which piece is replayed at a time of the job."""
        return max(bisect_right(self.begins_s, at_s) - 1, 0)


class Retold:
    """The records of one job. Ask for `states` and `processes` with times that only grow."""

    def __init__(self, recording: Recording, seed: int, world: int, seconds: float) -> None:
        self.recording, self.world = recording, world
        self.random = Random(f"{seed}/{recording.name}")
        self.plan = Plan(recording, self.random, seconds)
        self.seconds = self.plan.end_s
        self.began_unix_ns = recording.began_unix_ns
        ranks = recording.ranks
        self.models = [ranks[0], *(self.random.choice(ranks[1:]) for _ in range(1, world))]
        if world == len(ranks):
            self.models = list(ranks)
        self.name = f"{recording.name}-{seed}"
        self._at = 0
        self._told_part = -1
        self._first = 0
        """Of the pieces of the part that is told."""
        self._shift: dict[str, int] = {}
        self._most: dict[str, int] = {}
        self._iterations: dict[int, int] = {}
        self._paused: deque[tuple[int, float]] = deque()
        """Pauses of the last steps: (iteration, milliseconds)."""
        self._sums: dict[tuple[int, str], list[float]] = {}

    def pid(self, rank: int) -> int:
        """Of that rank."""
        return FIRST_PID + rank

    def sender(self, rank: int) -> str:
        """The relay of its host."""
        return f"{rank // LOCAL_SIZE:012x}.1"

    # -- time

    @property
    def part(self) -> int:
        """The number of the part that is replayed."""
        return self._told_part

    @property
    def begin_s(self) -> float:
        """Where that part begins in the recording."""
        return self.plan.pieces[self._first].begin_s

    def go_to(self, at_s: float) -> None:
        """Set the time of the job, in seconds."""
        before, self._at = self._at, self.plan.index(at_s)
        for number in range(before, self._at):
            self._note_pause(self.plan.pieces[number])
        piece = self.plan.pieces[self._at]
        self.now_s = min(piece.begin_s + (at_s - piece.at_s) / piece.factor, piece.end_s)
        if piece.part != self._told_part:
            self._told_part, self._first = piece.part, self._at
            self._join(piece.begin_s)

    def unix_ns(self, at_s: float) -> int:
        """A time of the job as a time of day."""
        return self.began_unix_ns + int(at_s * SECOND_NS)

    def moved(self, unix_ns: int | None) -> int | None:
        """A time of day of the recording as one of the job."""
        if unix_ns is None:
            return None
        at_s = (unix_ns - self.began_unix_ns) / SECOND_NS
        pieces = self.plan.pieces
        first = pieces[self._first]
        if at_s < first.begin_s:
            return self.unix_ns(first.at_s - (first.begin_s - at_s))
        number = self._at
        while number > self._first and pieces[number].begin_s > at_s:
            number -= 1
        piece = pieces[number]
        return self.unix_ns(piece.at_s + (at_s - piece.begin_s) * piece.factor)

    def _longest_waits_ms(self, state: RankState) -> tuple[float | None, float | None]:
        """The two longest waits of the last steps, as the rank would have measured them here.

        A rank that waits in pauses (its recorded value says so) has waited in those of this job.
        """
        recorded = state.healthy_wait_max_ms, state.usual_wait_ms
        if (recorded[0] or 0.0) < WAITS_MS:
            return recorded
        now = self._most.get("iteration", 0)
        while self._paused and self._paused[0][0] < now - WAITS_STEPS:
            self._paused.popleft()
        lengths = sorted((length_ms for _, length_ms in self._paused), reverse=True)
        lengths += [value for value in recorded if value is not None][len(lengths) :]
        return lengths[0], lengths[1] if len(lengths) > 1 else recorded[1]

    def _note_pause(self, piece: Piece) -> None:
        """A pause is over: ranks have waited so long."""
        if piece.pause:
            length_ms = (piece.end_s - piece.begin_s) * piece.factor * 1000
            self._paused.append((self._most.get("iteration", 0), length_ms))

    # -- what counts

    def _join(self, begin_s: float) -> None:
        """Count on where the part before has ended: all ranks are ahead of what they said last."""
        least: dict[str, int] = {}
        for rank in self.recording.ranks:
            track = self.recording.states[rank]
            begin = track.index(begin_s)
            for name, value in _counts(track.records[begin][0]):
                least[name] = min(least.get(name, value), value)
            # The first step may end within the part.
            later = (state.iteration for state, _ in track.records[begin:])
            first = next((value for value in later if value is not None), None)
            if first is not None:
                least["iteration"] = min(least.get("iteration", first), first)
        for name, value in least.items():
            self._shift[name] = self._most.get(name, value - 1) + 1 - value

    def _counted(self, name: str, value: int) -> int:
        """A number that counts steps or calls: alike on all ranks, so the shift is too."""
        found = value + self._shift.get(name, 0)
        if found > self._most.get(name, 0):
            self._most[name] = found
        return found

    def _iteration(self, rank: int, recorded: int | None) -> int | None:
        """A part may begin before its rank had counted a step. The job had counted steps long
        before.
        """
        if recorded is not None:
            self._iterations[rank] = self._counted("iteration", recorded)
        return self._iterations.get(rank)

    def _summed(self, rank: int, name: str, value: float) -> int:
        """A number that grows with time, so it is larger in a slow part."""
        known = self._sums.get((rank, name))
        if known is None:
            known = self._sums[rank, name] = [value, value, self._at]
        total, before, piece = known
        if self._at != piece and value < before:
            before = value
        total += max(value - before, 0) * self.plan.pieces[self._at].factor
        known[:] = total, value, self._at
        return int(total)

    # -- records

    def states(self) -> dict[int, tuple[RankState, float | None]]:
        """For each recorded rank: what it reports now, and its share of waiting."""
        found = {}
        for rank in self.recording.ranks:
            track = self.recording.states[rank]
            if track.at_s[0] > self.now_s:
                continue
            piece = self.plan.pieces[self._first]
            number = max(track.index(self.now_s), track.index(piece.begin_s))
            state, ratio = track.records[number]
            found[rank] = (self._state(rank, state), ratio)
        return found

    def _state(self, rank: int, state: RankState) -> RankState:
        loader = state.loader
        if loader is not None:
            loader = replace(
                loader,
                waiting_since_unix_ns=self.moved(loader.waiting_since_unix_ns),
                exhausted_unix_ns=self.moved(loader.exhausted_unix_ns),
                wait_total_ns=self._summed(rank, "loader", loader.wait_total_ns),
                batches=self._counted("batches", loader.batches),
                exhausted=self._counted("exhausted", loader.exhausted),
            )
        factor = self.plan.pieces[self._first].factor
        longest_ms, usual_ms = self._longest_waits_ms(state)
        return replace(
            state,
            iteration=self._iteration(rank, state.iteration),
            step_ms=None if state.step_ms is None else state.step_ms * factor,
            groups=tuple(self._group(one) for one in state.groups),
            open_collectives=tuple(self._collective(one) for one in state.open_collectives),
            retired_collectives=tuple(self._collective(one) for one in state.retired_collectives),
            open_calls=tuple(self._call(one) for one in state.open_calls),
            wait_samples=self._summed(rank, "wait", state.wait_samples),
            all_samples=self._summed(rank, "all", state.all_samples),
            activity_samples=tuple(
                self._summed(rank, f"activity{number}", value)
                for number, value in enumerate(state.activity_samples)
            ),
            gc_total_ns=self._summed(rank, "gc", state.gc_total_ns),
            held_samples=self._summed(rank, "held", state.held_samples),
            agent_cpu_ns=self._summed(rank, "agent", state.agent_cpu_ns),
            place=None if state.place is None else self._place(state.place),
            loader=loader,
            progress_unix_ns=self.moved(state.progress_unix_ns),
            healthy_wait_max_ms=longest_ms,
            usual_wait_ms=usual_ms,
            progress=None if state.progress is None else self._progress(state.progress),
            pace=None,
        )

    def _group(self, group: Any) -> Any:
        name = f"group {group.group}"
        return replace(
            group,
            enqueued=self._counted(name, group.enqueued),
            completed=None
            if group.completed is None
            else group.completed + self._shift.get(name, 0),
            pending_since_unix_ns=self.moved(group.pending_since_unix_ns),
            p2p_calls=self._counted(f"p2p {group.group}", group.p2p_calls),
        )

    def _collective(self, one: Collective) -> Collective:
        shift = self._shift.get(f"group {one.group}", 0)
        return replace(
            one,
            seq=one.seq + shift,
            op_id=one.op_id + shift,
            created_unix_ns=self.moved(one.created_unix_ns),
        )

    def _call(self, one: OpenCall) -> OpenCall:
        return replace(one, since_unix_ns=self.moved(one.since_unix_ns) or 0)

    def _place(self, place: Place) -> Place:
        return replace(
            place,
            since_unix_ns=self.moved(place.since_unix_ns),
            line_since_unix_ns=self.moved(place.line_since_unix_ns),
        )

    def _progress(self, one: TrainingProgress) -> TrainingProgress:
        return replace(one, since_unix_ns=self.moved(one.since_unix_ns))

    def processes(self) -> dict[int, ProcessState]:
        """For each recorded rank: its process now, as its host's relay reports it."""
        found = {}
        for rank in self.recording.ranks:
            track = self.recording.processes.get(rank)
            if track is None or not track.at_s[0] <= self.now_s <= track.at_s[-1] + 1.5:
                continue
            found[rank] = self._process(rank, track)
        return found

    def host(self) -> HostState:
        """The relay's report of its host now."""
        hosts = self.recording.hosts
        record: HostState = hosts.records[hosts.index(self.now_s)]
        return record

    def _process(self, rank: int, track: Any) -> ProcessState:
        piece = self.plan.pieces[self._first]
        number = max(track.index(self.now_s), track.index(piece.begin_s))
        now = track.records[number]
        after = track.records[min(number + 1, len(track.records) - 1)]
        gap_s = track.at_s[min(number + 1, len(track.records) - 1)] - track.at_s[number]
        share = min(max((self.now_s - track.at_s[number]) / gap_s, 0.0), 1.0) if gap_s else 0.0

        def between(name: str, more: str | None = None) -> int | None:
            values = []
            for one in (now, after):
                value = getattr(one, name)
                # If the rank was ready and had no CPU, it would have computed.
                waited = getattr(one.load, more) if more and one.load is not None else 0
                values.append(None if value is None else value + (waited or 0))
            one, two = values
            if one is None:
                return None
            value = one if two is None or two < one else one + (two - one) * share
            return self._summed(rank, name, value)

        return replace(
            now,
            cpu_ns=between("cpu_ns", "run_delay_ns"),
            io_bytes=between("io_bytes"),
            switches=between("switches"),
            load=UNLOADED,
            gc_since_unix_ns=self.moved(now.gc_since_unix_ns),
            init_since_unix_ns=self.moved(now.init_since_unix_ns),
            iteration=None if now.iteration is None else self._counted("iteration", now.iteration),
        )

    # -- what comes once

    def once(self, from_s: float, until_s: float) -> Iterator[tuple[int, Any]]:
        """(rank of the job, record) of what was recorded in this stretch of the recording."""
        said = self.recording.said
        first = bisect_right(said, from_s, key=lambda one: one[0])
        while first < len(said) and said[first][0] <= until_s:
            _, model, record = said[first]
            first += 1
            told = _MADE[type(record)](self, record)
            for rank, of in enumerate(self.models):
                if of == model:
                    yield rank, self._own(told, rank)

    def _own(self, record: Any, rank: int) -> Any:
        if isinstance(record, Hello):
            return replace(
                record, rank=rank, local_rank=rank % LOCAL_SIZE, pid=self.pid(rank),
                host=f"node{rank // LOCAL_SIZE}",
            )  # fmt: skip
        if isinstance(record, Exit):
            return replace(record, rank=rank, pid=self.pid(rank), order=rank % LOCAL_SIZE)
        return record

    def _hello(self, hello: Hello) -> Hello:
        return replace(
            hello,
            job=self.name,
            run=self.name,
            world_size=self.world,
            init_unix_ns=self.moved(hello.init_unix_ns),
            started_unix_ns=self.moved(hello.started_unix_ns) or 0,
        )

    def _groups(self, record: Groups) -> Groups:
        whole = tuple(self.recording.ranks)
        made: list[Group] = []
        for group in record.groups:
            wide = group.ranks == whole
            made.append(replace(group, ranks=tuple(range(self.world))) if wide else group)
        return Groups(tuple(made))

    def _arrivals(self, record: Arrivals) -> Arrivals:
        begin_s = self.plan.pieces[self._first].begin_s
        least_us = (self.began_unix_ns + begin_s * SECOND_NS) / 1000
        groups = []
        for group in record.groups:
            shift = self._shift.get(f"group {group.group}", 0)
            entered = {
                seq + shift: ((self.moved(us * 1000) or 0), kind)
                for seq, (us, kind) in group.times().items()
                if us > least_us
            }
            made = arrivals_of(group.group, entered) if entered else None
            if made is not None:
                groups.append(made)
        iteration = record.iteration
        if iteration is not None:
            iteration += self._shift.get("iteration", 0)
        return replace(record, groups=tuple(groups), iteration=iteration)

    def _exit(self, record: Exit) -> Exit:
        return replace(record, exiting_unix_ns=self.moved(record.exiting_unix_ns))


_MADE: dict[type, Callable[[Retold, Any], Any]] = {
    Hello: Retold._hello,
    Groups: Retold._groups,
    Arrivals: Retold._arrivals,
    Exit: Retold._exit,
}


def _counts(state: RankState) -> Iterator[tuple[str, int]]:
    """What is counted in steps and calls."""
    if state.iteration is not None:
        yield "iteration", state.iteration
    for group in state.groups:
        yield f"group {group.group}", min(group.enqueued, group.completed or group.enqueued)
        yield f"p2p {group.group}", group.p2p_calls
    if state.loader is not None:
        yield "batches", state.loader.batches
        yield "exhausted", state.loader.exhausted
