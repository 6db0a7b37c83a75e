"""What the agent costs a rank: CPU time a step, watched and not watched.

Wall time differs from run to run on a shared machine and shows nothing; CPU time of the rank
processes on a mostly idle loop resolves some hundredths of a millisecond. A pair is one run with
DDTOP=1 and one without. They run side by side, so that a clock that changes or a neighbour that
comes and goes meets both alike: measured one after the other, pairs differed by 0.4 ms from each
other, side by side by 0.1 ms. `in_turn` runs them one after the other all the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from ddtop.wire.records import Arrivals, RankState
from tools.benchmarks.stage import WORKLOAD, Stage, history
from tools.benchmarks.table import Row, limited, spread

WORLD_SIZE = 2
STEP_S = 0.024
"""About what a step takes: 20 ms of sleep and the rest."""
STEP_BAR_MS, CORE_BAR_PERCENT = 0.05, 0.5


@dataclass(frozen=True)
class Run:
    """One run: CPU per step and lateness in ms, each the mean of its ranks. `reads`: how often a
    rank was asked for the times of all its collectives, which is a read of all entries.
    """

    cpu_ms: float
    core_percent: float
    late_p99_ms: float
    own_ms: float
    agent_ms: float
    reported_ms: float
    reads: float


def measure(
    pairs: int, seconds: float, workers: tuple[int | None, ...], in_turn: bool = False
) -> Iterator[Row]:
    """Rows for each kind of loop; `workers` None is the loop without a DataLoader."""
    for number in workers:
        kind = "" if number is None else f", DataLoader with {number} workers"
        yield from _rows(kind, [_pair(index, seconds, number, in_turn) for index in range(pairs)])


def _rows(kind: str, found: list[tuple[Run, Run]]) -> Iterator[Row]:
    steps = [on.cpu_ms - off.cpu_ms for off, on in found]
    cores = [on.core_percent - off.core_percent for off, on in found]
    offs, ons = [off for off, _ in found], [on for _, on in found]
    own, reported = _median(on.own_ms for on in ons), _median(on.reported_ms for on in ons)
    alone = _median(on.agent_ms for on in ons)
    detail = (
        f"{spread(steps, 'ms')}\na step off {_list(one.cpu_ms for one in offs)}, on"
        f" {_list(one.cpu_ms for one in ons)} ms\nof it ddtop's own threads by the kernel's account"
        f" {own:.3f} ms\n{_by_reads(found)}"
    )
    yield limited(f"agent, CPU a step{kind}", statistics.median(steps), STEP_BAR_MS, "ms", detail)
    yield limited(
        f"agent, share of a core{kind}",
        statistics.median(cores),
        CORE_BAR_PERCENT,
        "%",
        spread(cores, "%"),
    )
    said = (
        f"pairs: says {_list(on.reported_ms for on in ons)}, used"
        f" {_list(on.agent_ms for on in ons)} ms"
    )
    yield Row(
        f"agent thread, CPU a step: what it says, what the kernel counts{kind}",
        f"{reported:.3f}, {alone:.3f} ms",
        detail=said,
    )
    late_off, late_on = (
        _median(one.late_p99_ms for one in offs),
        _median(one.late_p99_ms for one in ons),
    )
    yield Row(
        f"sleep, p99 lateness on - off{kind}",
        f"{late_on - late_off:+.3f} ms",
        detail=_late(offs, ons),
    )


def _by_reads(found: list[tuple[Run, Run]]) -> str:
    """The difference of each pair, grouped by how often the relay had asked in it."""
    by: dict[float, list[float]] = {}
    for off, on in found:
        by.setdefault(on.reads, []).append(on.cpu_ms - off.cpu_ms)
    return "by the reads of all entries a rank: " + "; ".join(
        f"{reads:g}: {_median(steps):+.3f} ms (n = {len(steps)})"
        for reads, steps in sorted(by.items())
    )


def _late(offs: list[Run], ons: list[Run]) -> str:
    return (
        f"off {_list(one.late_p99_ms for one in offs)}, on"
        f" {_list(one.late_p99_ms for one in ons)} ms"
    )


def _pair(index: int, seconds: float, workers: int | None, in_turn: bool) -> tuple[Run, Run]:
    """(off, on). The one that starts first alternates."""
    arguments = ["--steps", str(int(seconds / STEP_S))]
    if workers is not None:
        arguments += ["--workers", str(workers)]
    found: dict[bool, Run] = {}
    with Stage("cost-off") as off, Stage("cost-on") as on:
        order = ((off, False), (on, True)) if index % 2 else ((on, True), (off, False))
        for stage, watched in order:
            stage.ranks(WORKLOAD, WORLD_SIZE, watched, *arguments)
            if in_turn:
                found[watched] = _run(stage, watched, seconds)
                stage.end_relays()
        for stage, watched in order:
            if watched not in found:
                found[watched] = _run(stage, watched, seconds)
    return found[False], found[True]


def _run(stage: Stage, watched: bool, seconds: float) -> Run:
    stage.wait(60 + 3 * seconds)
    said = [stage.said(rank)[-1] for rank in range(WORLD_SIZE)]
    reported, reads = _reported(stage, said[0]["began_unix_ns"]) if watched else (0.0, 0.0)
    a_step = statistics.mean(one["wall_s"] / one["steps"] for one in said) * 1e3
    return Run(
        cpu_ms=statistics.mean(one["cpu_ms"] / one["steps"] for one in said),
        core_percent=statistics.mean(one["cpu_ms"] / one["wall_s"] / 10 for one in said),
        late_p99_ms=statistics.mean(one["late_p99_ms"] for one in said),
        own_ms=statistics.mean(one["own_ms"] / one["steps"] for one in said),
        agent_ms=statistics.mean(one["agent_ms"] / one["steps"] for one in said),
        reported_ms=reported * a_step,
        reads=reads,
    )


def _reported(stage: Stage, since_unix_ns: int) -> tuple[float, float]:
    """From the records after the warm-up: the share of a core that the agents report for
    themselves, and how often a rank was asked for the times of its collectives.
    """
    shares, reads = [], 0
    first: dict[int | None, tuple[int, int]] = {}
    last: dict[int | None, tuple[int, int]] = {}
    for envelope, record in history(stage.entry(0), 600.0):
        if isinstance(record, RankState) and envelope.unix_ns >= since_unix_ns:
            last[envelope.rank] = (envelope.unix_ns, record.agent_cpu_ns)
            first.setdefault(envelope.rank, last[envelope.rank])
        reads += isinstance(record, Arrivals) and envelope.unix_ns >= since_unix_ns
    for rank, (ended, cpu) in last.items():
        began, before = first[rank]
        if ended > began:
            shares.append((cpu - before) / (ended - began))
    return statistics.mean(shares) if shares else 0.0, reads / WORLD_SIZE


def _median(values: Iterator[float] | list[float]) -> float:
    return statistics.median(values)


def _list(values: Iterator[float] | list[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values)
