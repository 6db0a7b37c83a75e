"""A short memory of each rank's numbers, for the sparklines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from statistics import fmean, median
from typing import Any, NamedTuple

from ddtop.follow.lanes import ASLEEP, COLLECTIVE, GONE, cell_of, joined_cells, lane_cell
from ddtop.model.facts import Device, RankFacts, Snapshot, State
from ddtop.policy import Policy

DEPTH = 240
"""Values kept of each series: four minutes at one a second, more than any pane is wide."""
ALL_UP_TO = 1024
"""Up to this many ranks, all are remembered; above it, only those that somebody has looked at, at
most `WATCHED_MOST`, and `DRAWN` others that stand for all (65,536 would need a quarter GB)."""
WATCHED_MOST, DRAWN = 512, 64
PERIOD_NS = 1_000_000_000
LANE_HELD_S = 3.0
"""A rank that has not reported for longer has no cell in its lane."""

SeriesOfRank = deque[float | None]


@dataclass(frozen=True, slots=True)
class Memory:
    """The last values of one rank, oldest first; None where nothing was measured. `lane`: cells of
    `ddtop.follow.lanes`. `seconds`: when each was taken (unix s); the last ones of all series are
    of the same second."""

    step_ms: SeriesOfRank
    wait_ratio: SeriesOfRank
    loader_depth: SeriesOfRank
    rss_bytes: SeriesOfRank
    lane: deque[int | None]
    seconds: deque[int]

    def lane_until(self, second: int, cells: int, each: int = 1) -> list[int | None]:
        """One cell for each of the last times of `each` seconds; a second that is missing has that
        of the second before it."""
        taken = dict(zip(reversed(self.seconds), reversed(self.lane), strict=False))
        # The same seconds are together from look to look.
        begin = second - second % each - (cells - 1) * each
        return [
            joined_cells([taken.get(one) for one in range(at, at + each)])
            if each > 1 or taken.get(at) is not None
            else taken.get(at - 1)
            for at in range(begin, second + 1, each)
        ]


class SeriesHistory:
    """Bounded series of the ranks; at most one value a second, by the clock of the snapshots."""

    def __init__(self) -> None:
        self._memories: dict[int, Memory] = {}
        self._watched: set[int] = set()
        self._sampled: dict[int, tuple[int, ...]] = {}
        self._seconds: deque[int] = deque(maxlen=DEPTH)
        self._run = ""
        self._last_ns = 0

    def watch(self, rank: int) -> None:
        """Remember this rank from now on, however many there are."""
        self._watched.add(rank)

    def memory_of(self, rank: int) -> Memory:
        """The memory of a rank; empty series if there is none."""
        return self._memories.get(rank) or empty_memory()

    def read(self, ranks: Iterable[int]) -> None:
        """Somebody looks at these ranks."""
        if len(self._watched) < WATCHED_MOST:
            self._watched.update(ranks)

    def one_of(self, ranks: Collection[int]) -> int | None:
        """One of these ranks that is remembered."""
        return next(
            (rank for rank, one in self._memories.items() if rank in ranks and one.lane), None
        )

    def record(self, snapshot: Snapshot) -> None:
        """Take the values of a snapshot; a new run of the job forgets the old one."""
        if snapshot.run != self._run:
            self._memories.clear()
            self._sampled.clear()
            self._seconds.clear()
            self._run, self._last_ns = snapshot.run, 0
        if snapshot.time_unix_ns < self._last_ns + PERIOD_NS:
            return
        self._last_ns = snapshot.time_unix_ns
        self._seconds.append(snapshot.time_unix_ns // PERIOD_NS)
        ranks = snapshot.ranks
        if (count := len(ranks)) > ALL_UP_TO:
            known = self._watched.union(range(0, count, count // DRAWN))
            ranks = tuple(snapshot.rank(number) for number in known)
        for rank in ranks:
            memory = self._memories.get(rank.rank)
            if memory is None:
                memory = self._memories[rank.rank] = empty_memory(self._seconds)
            _append(memory, rank, self._cell(rank, memory, snapshot.time_unix_ns))

    def _cell(self, rank: RankFacts, memory: Memory, now_unix_ns: int) -> int | None:
        sampled = rank.reported.activity_samples
        before = self._sampled.get(rank.rank)
        self._sampled[rank.rank] = sampled
        if rank.gone:
            return cell_of(GONE, 0.0)
        if rank.state is State.STOPPED:
            return cell_of(ASLEEP, 0.0)
        if any(call.since_unix_ns <= now_unix_ns - PERIOD_NS for call in rank.comm.open_calls):
            # It has been in a call for other ranks all that second.
            return cell_of(COLLECTIVE, 0.0)
        if sampled == before and (rank.agent.report_age_s or 0.0) <= LANE_HELD_S:
            # It has sent no report since.
            return memory.lane[-1] if memory.lane else None
        if before is None:
            return None
        cpu = None if rank.process.lacks_cpu else rank.process.cpu_ratio
        on_gpu = rank.gpu.own is not None
        return lane_cell(before, sampled, cpu, on_gpu, rank.wait is not None)

    def absorb(self, earlier: SeriesHistory) -> None:
        """Take over what another history knows of the time before this one began."""
        if earlier._run != self._run or not self._seconds:
            return
        first = self._seconds[0]
        known = sum(second < first for second in earlier._seconds)
        begin = known - min(known, DEPTH - len(self._seconds))
        for rank, memory in self._memories.items():
            then = earlier._memories.get(rank) or empty_memory()
            for own, old in zip(_series_of(memory), _series_of(then), strict=True):
                own.extendleft([None] * (len(self._seconds) - len(own)))
                whole = [*[None] * (len(earlier._seconds) - len(old)), *old]
                own.extendleft(reversed(whole[begin:known]))
        self._seconds.extendleft(reversed([*earlier._seconds][begin:known]))


def _series_of(memory: Memory) -> tuple[deque[Any], ...]:
    return memory.step_ms, memory.wait_ratio, memory.loader_depth, memory.rss_bytes, memory.lane


def empty_memory(seconds: deque[int] | None = None) -> Memory:
    """A memory with nothing in it. `seconds`: those of all ranks."""
    step, wait, depth, rss, lane = (deque[Any](maxlen=DEPTH) for _ in range(5))
    own: deque[int] = deque(maxlen=DEPTH)
    return Memory(step, wait, depth, rss, lane, own if seconds is None else seconds)


def _append(memory: Memory, rank: RankFacts, cell: int | None) -> None:
    memory.step_ms.append(rank.progress.step_now_ms)
    memory.wait_ratio.append(rank.comm.wait_ratio)
    here = not rank.gone
    memory.loader_depth.append(rank.loader.report.depth if rank.loader.report and here else None)
    memory.rss_bytes.append(rank.process.rss_bytes if here else None)
    memory.lane.append(cell)


# -- A short and a long memory of a whole job's numbers, for the lines of the job strip
#
# Pure: the time comes with each snapshot. The size is bounded, however long a job runs and however
# many ranks it has.


RECENT_STEP_NS = 2_000_000_000
CATCH_UP_NS = 5_000_000_000
"""The newest cells of a line are drawn as the one before for this time: their points come late."""
RECENT_MOST = 360
"""Twelve minutes at one point every two seconds."""
WHOLE_STEP_NS = 10_000_000_000
WHOLE_MOST = 240
"""Points over the whole job. If there are more, two become one, and the step doubles."""


class Numbers(NamedTuple):
    """A job at one time; None: not measured."""

    #: Median over the ranks; 0 while no rank makes progress.
    iterations_per_s: float | None = None
    #: The longest step of the ranks, milliseconds.
    step_most_ms: float | None = None
    #: Mean share of the time in which the job's GPUs work: one that only waits for others does not.
    gpu_ratio: float | None = None
    #: Memory in use on the job's GPUs.
    gpu_bytes: float | None = None
    #: All memory of these GPUs.
    gpu_total_bytes: float | None = None
    #: The total power of the job's GPUs.
    gpu_watts: float | None = None
    #: The memory of the rank that has most of it resident.
    rss_bytes: float | None = None
    #: For the whole job, as its program counts them.
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    loss: float | None = None


class Point(NamedTuple):
    """Means of the numbers up to this time (unix ns)."""

    unix_ns: int
    numbers: Numbers


Field = Callable[[Numbers], "float | None"]


class Then(NamedTuple):
    """An earlier value: the median over the span that began at `unix_ns`."""

    unix_ns: int
    value: float


class JobHistory:
    """Points of the last minutes, and fewer of the whole time, in the order of time."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        #: Grows with every point: results from the points are valid as long as this is the same.
        self.changes = 0
        self._recent: deque[Point] = deque(maxlen=RECENT_MOST)
        self._whole: list[Point] = []
        self._whole_step_ns = WHOLE_STEP_NS
        self._gathered: list[Point] = []
        self._first: list[Point] = []
        self._run = ""
        self._last_ns = 0

    def record(self, snapshot: Snapshot) -> None:
        """Take the numbers of a snapshot, at most every `RECENT_STEP_NS`; a new run of the job
        forgets the old one."""
        if snapshot.run != self._run:
            self._forget()
            self._run, self._last_ns = snapshot.run, 0
        now = snapshot.time_unix_ns
        if now < self._last_ns + RECENT_STEP_NS or not snapshot.live:
            return
        self._last_ns = now
        self._add(Point(now, numbers_of(snapshot)))

    def _forget(self) -> None:
        self._recent.clear()
        self._whole.clear()
        self._gathered.clear()
        self._first.clear()
        self._whole_step_ns = WHOLE_STEP_NS

    def _add(self, point: Point) -> None:
        self.changes += 1
        self._recent.append(point)
        self._gathered.append(point)
        if point.numbers.iterations_per_s is not None:
            # The points of the start are kept unchanged; otherwise they would be averaged with the
            # hours after them.
            began = self._first[0].unix_ns if self._first else point.unix_ns
            if point.unix_ns - began <= _ns(self.policy.job_warm_s + self.policy.job_first_s):
                self._first.append(point)
        if point.unix_ns - self._gathered[0].unix_ns >= self._whole_step_ns:
            self._whole.append(_mean(self._gathered))
            self._gathered.clear()
            if len(self._whole) > WHOLE_MOST:
                self._halve()

    def _halve(self) -> None:
        whole = self._whole
        self._whole = [_mean(whole[at : at + 2]) for at in range(0, len(whole), 2)]
        self._whole_step_ns *= 2

    def absorb(self, earlier: JobHistory) -> None:
        """Take over what another history knows of the time before this one began."""
        first = self.began_unix_ns
        own = [*self._recent]
        before = [one for one in earlier.points() if first is None or one.unix_ns < first]
        if not before or (own and earlier._run != self._run):
            return
        self._run = earlier._run
        self._forget()
        for point in [*before, *own]:
            self._add(point)

    @property
    def began_unix_ns(self) -> int | None:
        """The time of the first point; None without any."""
        return next((point.unix_ns for point in self.points()), None)

    def points(self, until_unix_ns: int | None = None) -> Iterator[Point]:
        """All points up to a time, the older ones at larger steps."""
        first = self._recent[0].unix_ns if self._recent else None
        for point in self._whole:
            if first is not None and point.unix_ns >= first:
                break
            if until_unix_ns is None or point.unix_ns <= until_unix_ns:
                yield point
        for point in self._recent:
            if until_unix_ns is None or point.unix_ns <= until_unix_ns:
                yield point

    def line(
        self, field: Field, cells: int, span_ns: int, until_unix_ns: int
    ) -> list[float | None]:
        """One value for each of `cells` equal parts of the time `span_ns` up to a moment; None
        before a shorter history began.

        The parts begin at multiples of their length, so that a line moves by whole cells and does
        not flicker. A part without a point has the previous value, if the points are that far
        apart.
        """
        if cells <= 0:
            return []
        part = max(span_ns // cells, 1)
        begin = until_unix_ns // part - cells + 1
        ahead = min(max((self.began_unix_ns or 0) // part - begin, 0), cells - 1)
        begin, cells = (begin + ahead) * part, cells - ahead
        sums: list[list[float]] = [[] for _ in range(cells)]
        reach: list[int] = [0] * cells
        before = held = None
        for point in self.points(until_unix_ns):
            at = (point.unix_ns - begin) // part
            value = field(point.numbers)
            if at < 0:
                held = value
            elif at < cells:
                if value is not None:
                    sums[at].append(value)
                if before is not None:
                    reach[at] = max(reach[at], point.unix_ns - before)
            before = point.unix_ns
        return [None] * ahead + _cell_means(sums, reach, part, held)

    def now(self, until_unix_ns: int, newest: bool = False) -> Numbers:
        """The means over the last seconds before the newest point, or only that point: until the
        next one comes, all that ask get the same. Speed, step and loss are the newest ones, as
        elsewhere: those of a rank are medians of its last steps, and a mean would mix in a time
        before a fault."""
        points = [*self.points(until_unix_ns)]
        if not points:
            return Numbers()
        begin = points[-1].unix_ns - (1 if newest else _ns(self.policy.job_now_s))
        mean = _mean(point for point in points if point.unix_ns > begin)
        last = points[-1].numbers
        return mean.numbers._replace(
            iterations_per_s=last.iterations_per_s, step_most_ms=last.step_most_ms, loss=last.loss
        )

    def recent_median(self, field: Field, until_unix_ns: int) -> Then | None:
        """The ten minutes up to a minute ago, without the start; None while there are not five."""
        span_ns, warm_ns = _ns(self.policy.job_lately_s), _ns(self.policy.job_warm_s)
        first = self._first[0].unix_ns + warm_ns if self._first else until_unix_ns
        if until_unix_ns - first < span_ns // 2:
            return None
        begin = max(until_unix_ns - span_ns, first)
        points = self.points(until_unix_ns - _ns(self.policy.job_apart_s))
        return _earlier_median(field, (point for point in points if point.unix_ns >= begin))

    def at_start(self, field: Field, until_unix_ns: int) -> Then | None:
        """The first minutes that were measured, after a warm-up; None while they are not over for
        a minute."""
        if not self._first:
            return None
        begin = self._first[0].unix_ns + _ns(self.policy.job_warm_s)
        end = until_unix_ns - _ns(self.policy.job_apart_s)
        return _earlier_median(
            field, [point for point in self._first if begin <= point.unix_ns <= end]
        )


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def numbers_of(snapshot: Snapshot) -> Numbers:
    """The numbers of one snapshot. Takes 4 ms of 10,000 ranks, each on a GPU."""
    steps = [
        own.step_ms for rank in snapshot.ranks if (own := rank.progress).step_ms and not own.stale
    ]
    progress = snapshot.progress
    still = snapshot.still_since_unix_ns is not None and snapshot.iteration is not None
    used = [device for device in snapshot.devices if device.ranks]
    gpus = [device.gpu for device in used]
    sized = [gpu for gpu in gpus if gpu.used_bytes is not None and gpu.total_bytes]
    watts = [gpu.power_watts for gpu in gpus if gpu.power_watts is not None]
    per_s = snapshot.iterations_per_s
    stopped = still or (per_s is None and any(rank.progress.stale for rank in snapshot.ranks))
    return Numbers(
        iterations_per_s=0.0 if stopped else per_s,
        step_most_ms=None if still or not steps else max(steps),
        gpu_ratio=_mean_of(
            [_work_of(device) for device in used if device.gpu.util_ratio is not None]
        ),
        gpu_bytes=float(sum([gpu.used_bytes or 0 for gpu in sized])) if sized else None,
        gpu_total_bytes=float(sum([gpu.total_bytes or 0 for gpu in sized])) if sized else None,
        gpu_watts=float(sum(watts)) if watts else None,
        rss_bytes=max(
            (float(size) for rank in snapshot.ranks if (size := rank.process.rss_bytes)),
            default=None,
        ),
        samples_per_s=progress.samples_per_s if progress else None,
        tokens_per_s=progress.tokens_per_s if progress else None,
        loss=progress.loss
        if progress and progress.loss is not None and isfinite(progress.loss)
        else None,
    )


def _work_of(device: Device) -> float:
    """The share of the time in which this GPU works."""
    return 0.0 if device.waits else device.gpu.util_ratio or 0.0


def _earlier_median(field: Field, points: Iterable[Point]) -> Then | None:
    found = [
        (point.unix_ns, value) for point in points if (value := field(point.numbers)) is not None
    ]
    return Then(found[0][0], median([value for _, value in found])) if found else None


def _mean_of(values: list[float]) -> float | None:
    return fmean(values) if values else None


def _mean(points: Iterable[Point]) -> Point:
    """One point for several: means, but the largest of the longest steps."""
    points = list(points)
    columns = zip(*(point.numbers for point in points), strict=True)
    known = [[value for value in column if value is not None] for column in columns]
    numbers = Numbers(*[_mean_of(values) for values in known])
    most = [
        point.numbers.step_most_ms for point in points if point.numbers.step_most_ms is not None
    ]
    return Point(points[-1].unix_ns, numbers._replace(step_most_ms=max(most, default=None)))


def _cell_means(
    sums: list[list[float]], reach: list[int], part: int, last: float | None
) -> list[float | None]:
    """The mean of each cell; `last`: the value before the first one.

    An empty cell has the previous value if the next point is one step of the memory away, or if the
    newest points have not arrived yet.
    """
    empty = 0
    held: list[float | None] = []
    for values, step in zip(sums, reach, strict=True):
        if not values:
            empty += 1
            held.append(None)
            continue
        if last is not None and empty and empty * part <= step + part:
            held[len(held) - empty :] = [last] * empty
        last, empty = fmean(values), 0
        held.append(last)
    if last is not None and 0 < empty * part <= RECENT_STEP_NS + CATCH_UP_NS:
        held[len(held) - empty :] = [last] * empty
    return held
