"""`slowdown`: the job trains slower than ten minutes ago, than at its start, or than its last run,
and has done so for two minutes; or several times slower than before, for twenty seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from ddtop.diagnosis.rule import (
    INFO,
    MOVES,
    WARNING,
    Context,
    Explanation,
    Finding,
    Kind,
    Limits,
    RuleRow,
)
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.wire.records import ACTIVITIES, Speed


@dataclass(frozen=True)
class Slowdown(Limits, of=Kind.SLOWDOWN):
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
    """A lack of CPU is named as the cause if a rank waits for a CPU for this share of the time, and
    for `share_ratio` of the loss."""


FELL, BEFORE, START, LAST_RUN = "fell", "before", "start", "last run"
DATA, ALONE, CLOCKS, CROWDED, COLLECTIVES, PART, CODE = (
    "data", "alone", "clocks", "crowded", "collectives", "part", "code",
)  # fmt: skip
_OTHER = ACTIVITIES.index("other")


class Window(NamedTuple):
    """Two speeds of one rank. `since_unix_ns`: when that of now began, at `step`; None where only
    minutes are compared."""

    rank: RankFacts
    now: Speed
    then: Speed
    since_unix_ns: int
    step: int | None = None


class Compared(NamedTuple):
    """All ranks compared with one earlier time. `slower`: the share of its speed that the job has
    lost."""

    when: str
    slower: float
    windows: list[Window]


class Slower(NamedTuple):
    """`why`: what has changed since then, on these ranks or on all. `more_ms`: how much longer a
    step takes, with DATA how much longer it waits for data. `part`: which of ACTIVITIES takes most
    of that."""

    compared: Compared
    why: str
    ranks: list[int]
    more_ms: float
    part: int | None = None


def rule(context: Context) -> list[Finding]:
    """One finding, about the earlier time with the largest loss."""
    snapshot, limits = context.snapshot, context.policy.of(Slowdown)
    compared = [
        one
        for when in (FELL, BEFORE, START, LAST_RUN)
        if (one := _compare(snapshot, when, limits)) is not None and one.slower >= limits.info_ratio
    ]
    if not compared:
        return []
    worst = max(compared, key=lambda comparison: comparison.slower)
    seen = _cause(worst, limits)
    severity = WARNING if worst.slower >= context.policy.slowdown_warning_ratio else INFO
    began = max(window.since_unix_ns for window in worst.windows)
    # If most of the job is meant, no rank is named.
    named = tuple(seen.ranks) if 2 * len(seen.ranks) <= snapshot.world_size else ()
    return [Finding(Kind.SLOWDOWN, severity, named, (), began, seen=seen)]


def _window(rank: RankFacts, when: str, snapshot: Snapshot) -> Window | None:
    pace, fall = rank.progress.pace, rank.progress.fall
    if when == FELL:
        if fall is None:
            return None
        return Window(rank, fall.now, fall.then, fall.since_unix_ns, fall.step)
    if pace is None:
        return None
    then = {BEFORE: pace.before, START: pace.start, LAST_RUN: snapshot.last_run}[when]
    if then is None or then.unit != pace.now.unit:
        return None
    return Window(rank, pace.now, then, pace.since_unix_ns or 0)


def _compare(snapshot: Snapshot, when: str, limits: Slowdown) -> Compared | None:
    """None if too few ranks know both speeds, or if noise explains the difference.

    On most ranks the two speeds must differ by more than the pieces of each of them, so that a job
    whose speed always varies is not reported.
    """
    living = (rank for rank in snapshot.ranks if not rank.gone)
    windows = [one for rank in living if (one := _window(rank, when, snapshot)) is not None]
    if 2 * len(windows) <= snapshot.world_size:
        return None
    if 2 * sum(_is_apart(one.now, one.then, limits) for one in windows) <= len(windows):
        return None
    slower = median(
        1 - one.now.per_s / one.then.per_s if one.then.per_s else 0.0 for one in windows
    )
    return Compared(when, slower, windows)


def _is_apart(now: Speed, then: Speed, limits: Slowdown) -> bool:
    spread = max(now.most_per_s - now.least_per_s, then.most_per_s - then.least_per_s)
    gap = then.per_s - now.per_s
    return now.most_per_s < then.least_per_s and gap > limits.noise_factor * spread


def _cause(found: Compared, limits: Slowdown) -> Slower:
    """The reason why a step takes longer."""
    windows = found.windows
    longer = [one.now.step_ms - one.then.step_ms for one in windows]
    data = [one.now.loader_ms - one.then.loader_ms for one in windows]
    ranks = [one.rank for one in windows]
    ranks_by_cause = {
        DATA: [
            rank.rank
            for rank, more, all_ms in zip(ranks, data, longer, strict=True)
            if all_ms > 0 and more >= limits.share_ratio * all_ms
        ],
        ALONE: _not_waiting(windows, limits),
        CLOCKS: [rank.rank for rank in ranks if rank.gpu.own and rank.gpu.own.gpu.throttle],
        CROWDED: [rank.rank for rank in ranks if _crowded(rank, found.slower, limits)],
    }
    part, more = _part(windows, limits), median(longer)
    if part is not None:
        del ranks_by_cause[CROWDED]  # That stretches all parts alike.
    for why, meant in ranks_by_cause.items():
        if meant:
            return Slower(found, why, meant, max(data))
    if median(map(_waits_more, windows)) >= limits.wait_ratio:
        return Slower(found, COLLECTIVES, [], more)
    return Slower(found, CODE if part is None else PART, [], more, part)


def _part(windows: list[Window], limits: Slowdown) -> int | None:
    """Which of ACTIVITIES has most of what a step takes longer, on most ranks, and has grown by
    more than the step. Only those with a name count."""
    shares = [
        [
            (more - less) / (now.step_ms - then.step_ms)
            if more * then.step_ms > less * now.step_ms
            else 0.0
            for more, less in zip(now.parts_ms, then.parts_ms, strict=False)
        ]
        for _, now, then, *_ in windows
        if now.step_ms > then.step_ms
    ]
    parts = [median(part) for part in zip(*shares, strict=False)][: len(ACTIVITIES)]
    most = max(range(len(parts)), key=lambda part: parts[part], default=_OTHER)
    return most if most != _OTHER and parts[most] >= limits.share_ratio else None


def _not_waiting(windows: list[Window], limits: Slowdown) -> list[int]:
    """A few ranks whose waits have not grown although those of the others have."""
    grown = {one.rank.rank: _waits_more(one) for one in windows}
    more = [rank for rank, one in grown.items() if one >= limits.wait_ratio]
    less = [rank for rank, one in grown.items() if one < limits.even_ratio]
    most = max(int(len(grown) * limits.few_part), 1)
    few = 0 < len(less) <= most and len(more) + len(less) == len(grown)
    return less if few and more else []


def _waits_more(window: Window) -> float:
    return window.now.wait_ratio - window.then.wait_ratio


def _crowded(rank: RankFacts, slower: float, limits: Slowdown) -> bool:
    pressure, least = rank.process.pressure, max(limits.delay_ratio, limits.share_ratio * slower)
    return pressure is not None and (pressure.delay_ratio or 0.0) >= least


ROWS = (
    RuleRow(
        rule,
        (Kind.SLOWDOWN,),
        "the speed of each rank now, ten minutes ago, at its start and in the last run",
        silenced_by=("straggler", "input_bound", "oversubscribed"),
        unless=MOVES,
    ),
)
PAGES = (
    Explanation(
        kind=Kind.SLOWDOWN,
        severity="info; warning from {slowdown_warning_ratio}",
        brief="the job trains slower than before",
        meaning=(
            "The job still trains, but slower than ten minutes ago, slower than at its start, or"
            " slower than the last run of the same name. The program does not report this, and the"
            " job will end later than planned."
        ),
        found=(
            (
                "Each agent measures tokens, samples or steps per second over two minutes of"
                " training, in four parts. Validation, checkpoints and compilation do not count,"
                " and neither does the first half minute."
            ),
            (
                "The job must be at least {slowdown.info_ratio} slower. On most ranks the"
                " difference must also be {slowdown.noise_factor} times the spread of the four"
                " parts, so that a speed that always varies is not reported."
            ),
            (
                "A job whose steps take four times as long as before, or more, is reported after"
                " twenty seconds of such steps, with the step at which that began. It is not"
                " reported if the program counts tokens or samples and makes as many as before."
            ),
            (
                "The finding says what takes more time: data, one slow rank, GPU clocks, a lack of"
                " CPU, communication, or which part of the step, by four samples a second."
            ),
        ),
        steps=(
            "Data: see input-bound. One rank: see straggler. Clocks: see gpu-throttled.",
            (
                "Have other jobs started on the same hosts, disks or network since then?\nddtop"
                " jobs; top"
            ),
            (
                "If the samples have become longer (a curriculum), report tokens with"
                " ddtop.progress(tokens=...). ddtop then compares tokens per second."
            ),
        ),
        no_demo="it takes ten minutes at one speed and two at another",
    ),
)
