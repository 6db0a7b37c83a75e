"""The map coloured by a number: each rank's value has one of five levels.

A level is one byte per rank, like the classes of `rank_class`. Codes are ordered: the worst of
several ranks has the largest code, and a rank at fault is above all levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddtop.model.state.facts import RankFacts, Snapshot
from ddtop.present.table.rank_class import AT_FAULT
from ddtop.words import units

LEVELS = 5
UNKNOWN = 0
"""The code of a rank without a measured value; the levels start at 1."""
SPREAD = 0.2
"""The smallest range of the levels, as a share of the largest value; smaller differences are
noise."""
HOLD = 0.25
"""A value keeps its level until it is this far beyond its end, as a part of a level, so that the
map does not flicker."""


@dataclass(frozen=True, slots=True)
class MapMetric:
    """A number by which the map is coloured.

    `low`, `high`: the ends of its range where they are fixed. `low_is_bad`: the lowest value is
    what to look at.
    """

    key: str
    label: str
    value: Callable[[RankFacts], float | None]
    text: Callable[[float], str]
    low: float | None = None
    high: float | None = None
    low_is_bad: bool = False


def _gpu(rank: RankFacts) -> float | None:
    own = rank.gpu.own
    return None if own is None or rank.gone else own.gpu.util_ratio


def _memory(rank: RankFacts) -> float | None:
    own = rank.gpu.own
    if own is None or rank.gone or own.gpu.used_bytes is None or not own.gpu.total_bytes:
        return None
    return own.gpu.used_bytes / own.gpu.total_bytes


def _heat(rank: RankFacts) -> float | None:
    own = rank.gpu.own
    return None if own is None or rank.gone else own.gpu.celsius


def _rss(rank: RankFacts) -> float | None:
    return None if rank.gone else rank.process.rss_bytes


def _milliseconds(value: float) -> str:
    return f"{units.milliseconds(value)} ms"


MAP_METRICS = (
    MapMetric("step", "step time", lambda rank: rank.progress.step_ms, _milliseconds),
    MapMetric("comm", "comm wait", lambda rank: rank.comm.wait_ratio, units.percent, 0.0, 1.0),
    MapMetric("gpu", "GPU use", _gpu, units.percent, 0.0, 1.0, low_is_bad=True),
    MapMetric("vram", "GPU memory", _memory, units.percent, 0.0, 1.0),
    MapMetric("heat", "GPU temperature", _heat, lambda value: f"{value:.0f} C"),
    MapMetric("rss", "memory", _rss, lambda value: units.size(int(value))),
)
"""In the order of their key, after the state."""


def map_metric(key: str) -> MapMetric | None:
    """The metric of that key; None: the map shows states."""
    return next((one for one in MAP_METRICS if one.key == key), None)


def metrics_of(snapshot: Snapshot) -> tuple[MapMetric, ...]:
    """The metrics that may have values: those of GPUs only if there are any."""
    return tuple(
        one for one in MAP_METRICS if snapshot.devices or one.key not in ("gpu", "vram", "heat")
    )


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of one look: a code a rank, the ends of the range, and the rank to look at."""

    metric: MapMetric
    codes: bytes
    low: float
    high: float
    worst: int | None = None

    def code(self, level: int) -> int:
        """The code of a level, 0 the lowest."""
        return LEVELS - level if self.metric.low_is_bad else level + 1

    def level(self, code: int) -> int | None:
        """The level of a code; None: not measured, or a rank at fault."""
        if not 1 <= code <= LEVELS:
            return None
        return LEVELS - code if self.metric.low_is_bad else code - 1

    def begin(self, level: int) -> float:
        """The lower end of a level."""
        return self.low + (self.high - self.low) * level / LEVELS


class Levelled:
    """Levels that do not flicker: the range stays while the values use it, and a rank's level stays
    while its value is near."""

    def __init__(self) -> None:
        self._last: Levels | None = None
        self._snapshot: Snapshot | None = None

    def take(self, metric: MapMetric, snapshot: Snapshot, states: bytes) -> Levels:
        """The levels after this look. `states`: the codes of `rank_class`; those at fault stay."""
        last = self._last if self._last is not None and self._last.metric is metric else None
        if last is not None and snapshot is self._snapshot:
            return last
        values = [metric.value(rank) for rank in snapshot.ranks]
        known = [one for one in values if one is not None]
        low, high = _range(metric, known, last)
        same = last is not None and (last.low, last.high) == (low, high)
        before = last.codes if last is not None and same else b""
        made = Levels(metric, b"", low, high)
        codes = _codes(made, values, before)
        for number, state in enumerate(states[: len(codes)]):
            if state >= AT_FAULT:
                codes[number] = state
        worst = None
        if known:
            worst = values.index(min(known) if metric.low_is_bad else max(known))
        self._snapshot = snapshot
        self._last = Levels(metric, bytes(codes), low, high, worst)
        return self._last


def _codes(levels: Levels, values: Sequence[float | None], before: bytes) -> bytearray:
    low, size = levels.low, (levels.high - levels.low) / LEVELS
    codes = bytearray(len(values))
    of_level = [levels.code(level) for level in range(LEVELS)]
    kept = before if len(before) == len(values) else bytes(len(values))
    for number, (value, code) in enumerate(zip(values, kept, strict=True)):
        if value is None:
            continue
        place = (value - low) / size
        level = min(max(int(place), 0), LEVELS - 1)
        old = levels.level(code)
        if old is not None and old - HOLD <= place <= old + 1 + HOLD:
            level = old
        codes[number] = of_level[level]
    return codes


def _range(metric: MapMetric, known: Sequence[float], last: Levels | None) -> tuple[float, float]:
    """The ends of the range: fixed ends; or the previous ones, if the values are inside and use at
    least half of the range; or those of the values."""
    if metric.low is not None and metric.high is not None:
        return metric.low, metric.high
    least, most = min(known, default=0.0), max(known, default=1.0)
    if last is not None and last.low <= least and most <= last.high:
        spread = max(most - least, SPREAD * most)
        if spread >= (last.high - last.low) / 2:
            return last.low, last.high
    if most - least < SPREAD * most:
        # All values are equal: they are in the middle of the range.
        middle = (least + most) / 2
        return middle - SPREAD * most / 2, middle + SPREAD * most / 2
    return (least, most) if most > least else (0.0, 1.0)
