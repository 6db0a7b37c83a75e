"""`slowdown`: the job trains slower than ten minutes ago, than at its start, or than its last run,
and has done so for two minutes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from ddtop.diagnosis.finding import INFO, WARNING, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.policy import Limits
from ddtop.wire.records import Speed
from ddtop.words.sentences import file_line, number, ranks_text, verb


@dataclass(frozen=True)
class Slowdown(Limits, of=Kind.SLOWDOWN, was="slowdown_"):
    """`slowdown`."""

    info_ratio: float = 0.1
    """Share of its speed that a job has lost, over two minutes. Shared hosts vary by less."""
    noise_factor: float = 1.5
    """The loss must be so many times the spread of four pieces of half a minute. Random noise
    reaches that in less than one of a thousand looks."""
    share_ratio: float = 0.5
    """Waiting for data explains a slowdown if it is this share of what a step takes longer."""
    wait_ratio: float = 0.15
    """By so much the share of the time in collectives must have grown to say so: it is sampled."""
    even_ratio: float = 0.05
    """... and by less than this on the ranks that the others wait for."""
    few_part: float = 0.25
    """Those are at most this part of the ranks. Of more nobody can say that the others wait."""
    delay_ratio: float = 0.2
    """Share of the time in which a rank waits for a CPU, to name that as the cause."""


class _Compared(NamedTuple):
    """All ranks compared with one earlier time. `slower`: the share of its speed that the job has
    lost."""

    when: str
    slower: float
    ranks: list[RankFacts]
    now: list[Speed]
    then: list[Speed]


class _Cause(NamedTuple):
    """What has changed, as text. `ranks`: the ranks that have changed, empty for all."""

    text: str
    ranks: tuple[int, ...] = ()


def rule(context: Context) -> list[Finding]:
    """One finding, about the earlier time with the largest loss."""
    snapshot, limits = context.snapshot, context.policy.of(Slowdown)
    compared = [
        one
        for when in ("ten minutes ago", "at its start", "in its last run")
        if (one := _compare(snapshot, when, limits)) is not None and one.slower >= limits.info_ratio
    ]
    if not compared:
        return []
    worst = max(compared, key=lambda comparison: comparison.slower)
    cause = _cause(snapshot, worst, limits)
    severity = WARNING if worst.slower >= context.policy.slowdown_warning_ratio else INFO
    unit = worst.now[0].unit
    speeds = (
        f"{number(median(speed.per_s for speed in worst.now))} instead of"
        f" {number(median(speed.per_s for speed in worst.then))} {unit}/s"
    )
    since = [rank.progress.pace.since_unix_ns or 0 for rank in worst.ranks if rank.progress.pace]
    return [
        Finding(
            kind=Kind.SLOWDOWN,
            severity=severity,
            ranks=cause.ranks,
            victims=(),
            since_unix_ns=max(since, default=snapshot.time_unix_ns),
            summary=(
                f"the job trains {round(worst.slower * 20) * 5}% slower than {worst.when}: {speeds}"
                f"; {cause.text}"
            ),
            evidence=tuple(_lines(worst)),
            advice=_ADVICE,
        )
    ]


_ADVICE = (
    "check what changed at that time: other jobs on these hosts, GPU clocks, the data, the length"
    " of the samples"
)


def _earlier_speed(rank: RankFacts, when: str, snapshot: Snapshot) -> Speed | None:
    pace = rank.progress.pace
    if pace is None:
        return None
    if when == "in its last run":
        return snapshot.last_run
    return pace.before if when == "ten minutes ago" else pace.start


def _compare(snapshot: Snapshot, when: str, limits: Slowdown) -> _Compared | None:
    """None if too few ranks know both speeds, or if noise explains the difference.

    On most ranks the two speeds must differ by more than the pieces of each of them, so that a job
    whose speed always varies is not reported.
    """
    found = []
    for rank in snapshot.ranks:
        pace, then = rank.progress.pace, _earlier_speed(rank, when, snapshot)
        known = pace is not None and then is not None and not rank.gone
        if known and pace is not None and then is not None and pace.now.unit == then.unit:
            found.append((rank, pace.now, then))
    if 2 * len(found) <= snapshot.world_size:
        return None
    apart = sum(_is_apart(now, then, limits) for _, now, then in found)
    if 2 * apart <= len(found):
        return None
    slower = median(1 - now.per_s / then.per_s if then.per_s else 0.0 for _, now, then in found)
    ranks, now, then_all = zip(*found, strict=True)
    return _Compared(when, slower, list(ranks), list(now), list(then_all))


def _is_apart(now: Speed, then: Speed, limits: Slowdown) -> bool:
    spread = max(now.most_per_s - now.least_per_s, then.most_per_s - then.least_per_s)
    gap = then.per_s - now.per_s
    return now.most_per_s < then.least_per_s and gap > limits.noise_factor * spread


def _cause(snapshot: Snapshot, found: _Compared, limits: Slowdown) -> _Cause:
    """The reason why a step takes longer."""
    pairs = list(zip(found.now, found.then, strict=True))
    longer = [now.step_ms - then.step_ms for now, then in pairs]
    data = [now.loader_ms - then.loader_ms for now, then in pairs]
    loading = [
        rank.rank
        for rank, more, all_ms in zip(found.ranks, data, longer, strict=True)
        if all_ms > 0 and more >= limits.share_ratio * all_ms
    ]
    if loading:
        most = max(data)
        subject = _ranks_or_most(loading, snapshot)
        text = (
            f"{subject} {verb(loading, 'waits', 'wait')} {number(most)} ms longer per step for data"
        )
        return _Cause(text, _named_ranks(loading, snapshot))
    alone = _not_waiting(found, limits)
    if alone:
        text = f"{ranks_text(alone)} {verb(alone, 'takes', 'take')} longer, and the others wait"
        return _Cause(text, tuple(alone))
    throttled = [
        rank.rank for rank in found.ranks if rank.gpu.own is not None and rank.gpu.own.gpu.throttle
    ]
    if throttled:
        subject = _ranks_or_most(throttled, snapshot)
        return _Cause(f"the GPU of {subject} lowers its clock", _named_ranks(throttled, snapshot))
    crowded = [rank.rank for rank in found.ranks if _crowded(rank, limits)]
    if crowded:
        subject = _ranks_or_most(crowded, snapshot)
        text = f"{subject} {verb(crowded, 'is', 'are')} more often ready to run without a CPU"
        return _Cause(text, _named_ranks(crowded, snapshot))
    if median(_waits_more(found)) >= limits.wait_ratio:
        return _Cause("all ranks spend more of their time in collectives")
    return _Cause(_in_own_code(found, median(longer)))


def _in_own_code(found: _Compared, more_ms: float) -> str:
    """Where the ranks are most often, if neither data nor collectives take longer."""
    places = Counter(
        f"{spot.function} ({file_line(spot)})"
        for rank in found.ranks
        if (spot := max(rank.reported.spots, key=lambda each: each.samples, default=None))
        is not None
    )
    if not places or more_ms <= 0:
        return "a step takes longer on all ranks, and no measurement shows why"
    return (
        f"a step takes {number(more_ms)} ms longer on all ranks, not because of data or"
        f" collectives; the ranks are most often in {places.most_common(1)[0][0]}"
    )


def _not_waiting(found: _Compared, limits: Slowdown) -> list[int]:
    """A few ranks whose waits have not grown although those of the others have."""
    grown = dict(zip([rank.rank for rank in found.ranks], _waits_more(found), strict=True))
    more = [rank for rank, one in grown.items() if one >= limits.wait_ratio]
    less = [rank for rank, one in grown.items() if one < limits.even_ratio]
    most = max(int(len(grown) * limits.few_part), 1)
    few = 0 < len(less) <= most and len(more) + len(less) == len(grown)
    return less if few and more else []


def _waits_more(found: _Compared) -> list[float]:
    pairs = zip(found.now, found.then, strict=True)
    return [now.wait_ratio - then.wait_ratio for now, then in pairs]


def _crowded(rank: RankFacts, limits: Slowdown) -> bool:
    pressure = rank.process.pressure
    return pressure is not None and (pressure.delay_ratio or 0.0) >= limits.delay_ratio


def _named_ranks(ranks: Sequence[int], snapshot: Snapshot) -> tuple[int, ...]:
    """The ranks to name; none if most of the job is meant."""
    return tuple(ranks) if 2 * len(ranks) <= snapshot.world_size else ()


def _ranks_or_most(ranks: Sequence[int], snapshot: Snapshot) -> str:
    return ranks_text(ranks) if _named_ranks(ranks, snapshot) else "most ranks"


def _lines(found: _Compared) -> list[str]:
    lines = []
    for title, field, unit in (
        ("a step", "step_ms", " ms"),
        ("waiting for data", "loader_ms", " ms a step"),
    ):
        now, then = (
            median(getattr(speed, field) for speed in all_) for all_ in (found.now, found.then)
        )
        if max(now, then) >= 1:
            lines.append(f"{title}: {number(now)}{unit} now, {number(then)}{unit} {found.when}")
    now, then = (median(speed.wait_ratio for speed in all_) for all_ in (found.now, found.then))
    lines.append(f"in collectives: {now:.0%} of the time now, {then:.0%} {found.when}")
    return lines
