"""The progress of the training: step, epoch, phase, speed and loss, from the program's framework.

Source: the objects that `ddtop.agent.frameworks` has registered, the calls of `ddtop.step`,
`ddtop.phase`, `ddtop.expected` and `ddtop.progress`, and open phases that wrappers note. Caveat:
numbers are as old as the framework's own; a loss is often computed every few hundred steps. Speeds
are computed here from counts. Check: the program's own log or progress bar.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

from ddtop.agent.guard import guard
from ddtop.agent.notes import NAME_CHARACTERS, Phase, ProgressSource, SourceValues, progress_notes
from ddtop.agent.probe import Fields, Probe, Tick
from ddtop.agent.probes.fall import Falls
from ddtop.agent.probes.pace import Counts, Paces, median
from ddtop.agent.rank import Rank
from ddtop.wire import page as layout
from ddtop.wire.records import COMPILE, TRAIN, Expectation, RankState, TrainingProgress

ETA_EVERY_NS, SECOND_NS = 10_000_000_000, 1e9


class Growth:
    """The growth per second of some counts over the last `keep_ns`.

    Each count has the times of its own changes, because a count that is reported only every fifty
    steps must not be divided by the time since the last step.
    """

    def __init__(self, keep_ns: int, silent_ns: int, every_ns: int = 0) -> None:
        self._keep_ns, self._silent_ns, self._every_ns = keep_ns, silent_ns, every_ns
        self._points: dict[int, deque[tuple[int, float]]] = {}

    def clear(self) -> None:
        """Start again: what follows cannot be compared with what was counted."""
        self._points.clear()

    def add(self, now: int, counts: tuple[float | None, ...]) -> None:
        """The counts at `now` (monotonic ns); a count that has not moved is not remembered."""
        known = self._points
        if any(_is_less(new, known.get(which)) for which, new in enumerate(counts)):
            known.clear()
        for which, new in enumerate(counts):
            if new is None:
                continue
            points = known.setdefault(which, deque())
            if points and (new == points[-1][1] or now - points[-1][0] < self._every_ns):
                continue
            points.append((now, new))
            while len(points) > 2 and now - points[1][0] > self._keep_ns:
                points.popleft()

    def per_s(self, now: int, which: int) -> float | None:
        """None until it has grown once. The rate falls while the count does not change."""
        points = self._points.get(which)
        if points is None or len(points) < 2:
            return None
        (began, first), (ended, last) = points[0], points[-1]
        usual_ns = (ended - began) / (len(points) - 1)
        if now - ended > max(self._silent_ns, 3 * usual_ns):
            ended = now
        return (last - first) / ((ended - began) / SECOND_NS)


def _is_less(new: float | None, points: deque[tuple[int, float]] | None) -> bool:
    """Whether the count is missing, or smaller than before."""
    return points is not None and len(points) > 0 and (new is None or new < points[-1][1])


class ProgressProbe(Probe):
    """Reads the registered sources at each report."""

    name = "progress"

    def __init__(self, rank: Rank) -> None:
        self._rank, limits = rank, rank.limits
        self._speed = Growth(limits.speed_window_ns, limits.speed_silent_ns)
        self._eta = Growth(limits.eta_window_ns, limits.speed_silent_ns, ETA_EVERY_NS)
        self._phase: str | None = None
        self._since = 0
        self._open: Phase | None = None
        self._source: str | None = None
        self._samples: float | None = None
        self._tokens: float | None = None
        self._paces, self._falls = Paces(limits), Falls(limits)
        self._progress: TrainingProgress | None = None

    def fields(self, tick: Tick) -> Fields:
        """`progress`, `pace`, `fall` and `expected`."""
        self._look(tick)
        self._count(tick)
        return partial(
            RankState,
            progress=self._progress,
            pace=self._paces.pace(tick.unix_minus_mono),
            fall=self._falls.told(tick.unix_minus_mono),
            expected=self._expected_region(tick),
        )

    def _count(self, tick: Tick) -> None:
        """Pass the current counts to the pace."""
        words = self._rank.page.words
        source = words[layout.ITERATION_SOURCE_AT]
        if source in layout.STEP_SOURCES:
            counts = Counts(
                tick.now,
                words[layout.ITERATION_AT],
                words[layout.LOADER_WAIT_TOTAL_AT],
                self._samples,
                self._tokens,
                tuple(tick.activities),
            )
            trains = self._phase in (None, TRAIN)
            self._paces.add(counts, source, tick.waits, trains)
            self._falls.add(counts, source, trains or self._phase == COMPILE)

    def _expected_region(self, tick: Tick) -> Expectation | None:
        """The innermost expected region that the rank's thread is in."""
        lead = self._rank.lead_id
        for region in reversed(list(progress_notes.expected)):
            if region.thread == lead:
                since = region.since + tick.unix_minus_mono
                return Expectation(region.name, since, region.up_to_s)
        return None

    def _look(self, tick: Tick) -> None:
        """Read the sources. While none has a value, what was read last stays."""
        notes = progress_notes
        if not notes.sources and not notes.open and self._phase is None:
            return
        found = self._read_all()
        counting = next((named for named in found if named[1].step is not None), None)
        name, main = counting or (found[0] if found else (None, SourceValues()))
        phase, since, phase_by = self._find_phase(found, counting, tick.now)
        if name is None and phase is None and self._phase is None:
            return
        if phase != self._phase or name != self._source:
            self._speed.clear()
            if name != self._source:
                self._eta.clear()
        self._phase, self._since, self._source = phase, since, name
        self._progress = self._record(
            name or phase_by or "torch", main, [reading for _, reading in found], tick
        )

    def _read_all(self) -> list[tuple[str, SourceValues]]:
        """The readings of all sources, the best source first."""
        found: list[tuple[str, SourceValues]] = []
        for source in sorted(progress_notes.sources.values(), key=lambda each: each.level):
            part = f"progress of {source.name}"
            if not guard.run(part, _read, source, found) and part in guard.off:
                progress_notes.sources.pop(source.name, None)
        return found

    def _find_phase(
        self,
        found: list[tuple[str, SourceValues]],
        counting: tuple[str, SourceValues] | None,
        now: int,
    ) -> tuple[str | None, int, str | None]:
        """(the phase, since when in monotonic ns, its source)."""
        lead = self._rank.lead_id
        inner = next(
            (one for one in reversed(list(progress_notes.open)) if one.thread == lead), None
        )
        if inner is not None:
            self._note_polled(None, now)
            return inner.name[:NAME_CHARACTERS], inner.since, inner.by
        source, phase = next(
            ((name, reading.phase) for name, reading in found if reading.phase is not None),
            (None, None),
        )
        if phase is None and counting is not None:
            phase = TRAIN
        since = self._since if phase == self._phase and self._since else now
        self._note_polled(phase, now)
        return phase, since, source

    def _note_polled(self, phase: str | None, now: int) -> None:
        """Remember the length of a phase that is known only from a source's state."""
        before = self._open
        if before is not None and before.name != phase:
            progress_notes.note_end(before.name, now - before.since)
            before = self._open = None
        if before is None and phase is not None:
            self._open = Phase(phase)
            self._open.since = now

    def _record(
        self, source: str, main: SourceValues, readings: list[SourceValues], tick: Tick
    ) -> TrainingProgress:
        now = tick.now
        samples, tokens = _first_value(readings, "samples"), _first_value(readings, "tokens")
        self._samples, self._tokens = samples, tokens
        self._speed.add(now, (main.step, samples, tokens))
        self._eta.add(now, (main.step,))
        lengths = sorted(progress_notes.ended.get(self._phase or "", ()))
        given = _first_value(readings, "samples_per_s"), _first_value(readings, "tokens_per_s")
        return TrainingProgress(
            source=source,
            step=main.step,
            total_steps=main.total_steps,
            epoch=main.epoch,
            total_epochs=main.total_epochs,
            phase=self._phase,
            samples_per_s=_round(_first_known(given[0], self._speed.per_s(now, 1))),
            tokens_per_s=_round(_first_known(given[1], self._speed.per_s(now, 2))),
            loss=_first_value(readings, "loss"),
            lr=_first_value(readings, "lr"),
            eta_s=_round(_first_known(main.eta_s, self._eta_s(main, now))),
            since_unix_ns=self._since + tick.unix_minus_mono if self._phase else None,
            steps_per_s=_round(self._speed.per_s(now, 0)),
            usual_s=_round(median(lengths) / SECOND_NS) if lengths else None,
            longest_s=_round(lengths[-1] / SECOND_NS) if lengths else None,
            phases_ended=progress_notes.counts.get(self._phase or "", 0),
        )

    def _eta_s(self, main: SourceValues, now: int) -> float | None:
        if main.step is None or not main.total_steps:
            return None
        left = max(main.total_steps - main.step, 0)
        per_s = _first_known(self._eta.per_s(now, 0), self._speed.per_s(now, 0))
        return left / per_s if per_s else 0.0 if not left else None


def _read(source: ProgressSource, found: list[tuple[str, SourceValues]]) -> None:
    reading = source.read()
    if reading is not None:
        found.append((source.name, reading))


def _first_value(readings: list[SourceValues], name: str) -> Any:
    return next(
        (value for reading in readings if (value := getattr(reading, name)) is not None), None
    )


def _first_known(first: float | None, second: float | None) -> float | None:
    return first if first is not None else second


def _round(value: float | None) -> float | None:
    """Rounded to four digits; the rest is noise."""
    return float(f"{value:.4g}") if value is not None else None
