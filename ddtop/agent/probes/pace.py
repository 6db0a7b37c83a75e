"""How fast the training is now, ten minutes ago, and at its start.

Source: the count of iterations on the state page, the time waited for the DataLoader (there too),
and the counts of samples and tokens of `probes.progress`. Time in a validation, a checkpoint or a
compilation does not count. Caveat: the first half minute of training counts as warm-up. Check: the
program's own samples a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial, reduce
from operator import add, sub
from typing import NamedTuple

from ddtop.agent.limits import AgentLimits
from ddtop.agent.notes import GradientNotes
from ddtop.agent.probe import TICK_NS, Fields, Probe, Tick
from ddtop.agent.probes.replicas import ReplicaNotes
from ddtop.agent.rank import Rank
from ddtop.wire import page as layout
from ddtop.wire.records import Pace, RankState, Speed

KEPT = 64


def median(values: Iterable[float]) -> float:
    """The middle one, or the mean of the two in the middle. The module `statistics` imports six
    others, of which a program may have its own."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return (ordered[half] + ordered[~half]) / 2


class Counts(NamedTuple):
    """What a rank has counted so far, or in some time. `at`: monotonic ns, or ns. `samples` and
    `tokens`: None where they are not counted. `activities`: samples that found each of ACTIVITIES.
    """

    at: int
    steps: int
    loader_ns: int
    samples: float | None
    tokens: float | None
    activities: tuple[int, ...]

    def since(self, before: Counts) -> Counts:
        """What was counted since then."""
        return Counts(
            self.at - before.at,
            self.steps - before.steps,
            max(self.loader_ns - before.loader_ns, 0),
            _growth(before.samples, self.samples),
            _growth(before.tokens, self.tokens),
            tuple(map(sub, self.activities, before.activities)),
        )

    def plus(self, other: Counts) -> Counts:
        """Both together. None counts as 0."""
        return Counts(
            self.at + other.at,
            self.steps + other.steps,
            self.loader_ns + other.loader_ns,
            (self.samples or 0.0) + (other.samples or 0.0),
            (self.tokens or 0.0) + (other.tokens or 0.0),
            tuple(map(add, self.activities, other.activities)),
        )

    @property
    def step_ns(self) -> float:
        """The length of a step."""
        return self.at / self.steps

    @property
    def parts_ms(self) -> tuple[float, ...]:
        """What a step spends in each of ACTIVITIES; empty where no sample was taken."""
        samples = sum(self.activities)
        return tuple([one / samples * self.step_ns / 1e6 for one in self.activities if samples])


def sum_of(counts: Sequence[Counts]) -> Counts:
    """All of them together."""
    return reduce(Counts.plus, counts)


class Piece:
    """Some training. It ended at `ended` (monotonic ns)."""

    def __init__(self) -> None:
        self.began = self.ended = self.looks = self.waits = 0
        self.counts = Counts(0, 0, 0, 0.0, 0.0, ())


class Paces:
    """Divides the training into pieces, and remembers the first and the last of them."""

    def __init__(self, limits: AgentLimits) -> None:
        self._limits = limits
        self._last: tuple[int, Counts] | None = None
        self._forget()

    def _forget(self) -> None:
        """Start again: what follows cannot be compared with what was counted."""
        self._piece = Piece()
        self._ended = 0
        self._start: list[Piece] = []
        self._recent: deque[Piece] = deque(maxlen=KEPT)
        self._told: Pace | None = None

    def add(self, counts: Counts, source: int, waits: bool, trains: bool) -> None:
        """Add the counts of now.

        `source`: what counts iterations; with another source the count starts again. `waits`: a
        collective is pending.
        """
        last, self._last = self._last, (source, counts)
        if last is None or source != last[0] or counts.steps < last[1].steps:
            self._forget()
            return
        if not trains:
            return
        piece, more = self._piece, counts.since(last[1])
        piece.began = piece.began or last[1].at
        piece.counts = piece.counts.plus(more) if piece.looks else more
        piece.looks += 1
        piece.waits += waits
        limits, whole = self._limits, piece.counts
        if whole.at < limits.pace_piece_ns or whole.steps < limits.pace_piece_steps:
            return
        # A program may count its samples only every fifty steps. A piece that ends between two
        # counts would have one count too many or too few.
        counted = bool(more.samples or more.tokens) or not (whole.samples or whole.tokens)
        if counted or whole.at >= 2 * limits.pace_piece_ns:
            piece.ended, self._piece = counts.at, Piece()
            self._close(piece)

    def _close(self, piece: Piece) -> None:
        self._ended += 1
        warm_up, pieces = self._limits.pace_warm_up_pieces, self._limits.pace_pieces
        if warm_up < self._ended <= warm_up + pieces:
            self._start.append(piece)
        self._recent.append(piece)
        self._told = None

    def pace(self, unix_minus_mono: int) -> Pace | None:
        """What is known; None until there are two minutes of training after the warm-up."""
        warm_up, pieces = self._limits.pace_warm_up_pieces, self._limits.pace_pieces
        if self._ended < warm_up + pieces:
            return None
        if self._told is None:
            recent = list(self._recent)
            now, end = recent[-pieces:], recent[-1].ended
            long_ago = end - self._limits.pace_before_ns
            before = [piece for piece in recent if piece.ended <= long_ago][-pieces:]
            later = self._ended >= warm_up + 2 * pieces
            self._told = Pace(
                now=_speed(now),
                start=_speed(self._start) if later else None,
                before=_speed(before) if len(before) == pieces else None,
                since_unix_ns=now[0].began + unix_minus_mono,
            )
        return self._told


def _growth(before: float | None, now: float | None) -> float:
    return max(now - before, 0.0) if before is not None and now is not None else 0.0


def _speed(pieces: list[Piece]) -> Speed:
    """The median of the pieces, and the slowest and fastest of them."""
    counts = [piece.counts for piece in pieces]
    unit = next(
        (name for name in ("tokens", "samples") if all(getattr(one, name) for one in counts)),
        "steps",
    )
    rates = [getattr(one, unit) / (one.at / 1e9) for one in counts]
    return Speed(
        unit=unit,
        per_s=median(rates),
        least_per_s=min(rates),
        most_per_s=max(rates),
        step_ms=median(one.step_ns / 1e6 for one in counts),
        loader_ms=median(one.loader_ns / one.steps / 1e6 for one in counts),
        wait_ratio=median(piece.waits / piece.looks for piece in pieces),
        parts_ms=sum_of(counts).parts_ms,
    )


# -- How many iterations the rank has finished, and how long one takes
#
# Source: the first of these that counts: `ddtop.step()`, torch's optimizer hook (`wrap.optimizer`),
# batches of a DataLoader (`wrap.dataloader`), the pattern of MPI's collectives (`mpi.rhythm`). All
# but the last are words of the state page. Caveat: with gradient accumulation an optimizer step is
# several batches. Check: the program's own log.


class IterationsProbe(Probe):
    """Follows the counters on the state page."""

    name = "iterations"

    def __init__(self, rank: Rank) -> None:
        self._rank, self._batches = rank, 0
        # (iteration, when it ended in monotonic ns).
        self._steps: list[tuple[int, int]] = []
        self._usual_ms, self._steady_since, self._odd_since = 0.0, 0, 0

    def sample(self, tick: Tick) -> None:
        """Count batches or MPI's pattern if nothing better counts; remember when steps ended."""
        self._count(tick)
        step_ms = self._step_ms()
        tick.late_after_ns = int(2e6 * step_ms) + TICK_NS if step_ms is not None else 0
        tick.steady_since = self._steady(tick.now, step_ms, tick.late_after_ns)

    def _steady(self, now: int, step_ms: float | None, late_after_ns: int) -> int:
        """Since when steps have taken equally long; 0 if they do not, or if one does not end. A
        pause and the steps around it do not count once the usual length is back."""
        usual, limits = self._usual_ms, self._rank.limits
        if (
            step_ms is not None
            and now - self._steps[-1][1] <= late_after_ns
            and usual / limits.steady_factor <= step_ms <= usual * limits.steady_factor
        ):
            self._odd_since = 0
            return self._steady_since
        self._odd_since = self._odd_since or now
        if not usual or now - self._odd_since >= limits.steady_odd_ns:
            self._usual_ms, self._steady_since, self._odd_since = step_ms or 0.0, now, 0
        return 0

    def _count(self, tick: Tick) -> None:
        words, steps = self._rank.page.words, self._steps
        batches = words[layout.BATCHES_AT]
        if batches != self._batches:
            self._batches, self.moved_at = batches, tick.now
            if words[layout.ITERATION_SOURCE_AT] <= layout.SOURCE_BATCH:
                words[layout.ITERATION_SOURCE_AT] = layout.SOURCE_BATCH
                words[layout.ITERATION_AT], words[layout.STEP_AT] = batches, tick.now
        # A counter of steps is better than a pattern.
        silent = words[layout.ITERATION_SOURCE_AT] in (
            layout.SOURCE_NONE,
            layout.SOURCE_COLLECTIVES,
        )
        if silent and tick.pattern is not None:
            words[layout.ITERATION_SOURCE_AT] = layout.SOURCE_COLLECTIVES
            words[layout.ITERATION_AT], words[layout.STEP_AT] = tick.pattern
        iteration, at = words[layout.ITERATION_AT], words[layout.STEP_AT]
        if not at or (steps and steps[-1][0] == iteration):
            return
        if steps and iteration < steps[-1][0]:
            steps.clear()  # another source counts from its own beginning
        steps.append((iteration, at))
        self.moved_at = at
        # Keep at least the last two, so that the length of very long steps is known.
        while len(steps) > 2 and at - steps[1][1] > self._rank.limits.step_window_ns:
            steps.pop(0)

    def fields(self, tick: Tick) -> Fields:
        """The count, its source, the length of a step, and what is trained without a group."""
        words = self._rank.page.words
        source = words[layout.ITERATION_SOURCE_AT]
        known = 0 <= source < len(layout.SOURCES)
        return partial(
            RankState,
            iteration=words[layout.ITERATION_AT] if source else None,
            iteration_source=layout.SOURCES[source] if known else None,
            step_ms=self._step_ms(),
            step_unix_ns=self._steps[-1][1] + tick.unix_minus_mono if self._steps else None,
            trains=None if tick.groups else self._rank.notes[GradientNotes].trains,
            replicas=self._rank.notes[ReplicaNotes].read(),
        )

    def _step_ms(self) -> float | None:
        if len(self._steps) < 2:
            return None
        (first, began), (last, ended) = self._steps[0], self._steps[-1]
        return (ended - began) / (last - first) / 1e6 if last > first else None
