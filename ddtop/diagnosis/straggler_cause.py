"""Finds why a rank is slow, from its numbers and those of the ranks that wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from ddtop.diagnosis.gpus import device_of, held_by_more_than_load, lasting_strangers
from ddtop.diagnosis.shortage import delay_of, is_short_of, limits_of, used_cores_of
from ddtop.model.facts import Device, Late, RankFacts, Snapshot
from ddtop.policy import Limits, Policy
from ddtop.wire.records import ACTIVITIES, HostState, Spot, by_function


@dataclass(frozen=True)
class CauseLimits(Limits, of="straggler-cause"):
    """What explains that a rank is late."""

    part: float = 0.5
    """A cause explains at least this part of the others' wait."""
    held_part: float = 0.35
    """... a held GIL less: a sample near its end is not late enough to show it."""
    cpu_part: float = 0.75
    """Missing CPU time is not a cause below this part of the rank's extra time in one function."""
    code_part: float = 0.25
    """... for a function even less: its samples cover half a minute, and it may be slow lately."""
    faults_per_s: float = 50.0
    """Pages read from a disk. A process in memory has next to none, one that swaps hundreds."""
    faults_factor: float = 4.0
    """... and this many times those of the ranks that wait: a host that reads its files anew does
    so for all."""


@dataclass(frozen=True)
class SpotLimits(Limits, of="spot"):
    """Which places in a program are shown."""

    least_ratio: float = 0.05
    """Share of a rank's samples at one place. Below this it is only one sample or two."""


LOADER, GIL, GC, SHARED, HELD, COMPUTES, CPU, PROGRAMS, THROTTLED, MEMORY, LIMIT, PYTHON, ANSWER = (
    "loader", "gil_held", "gc", "gpu_shared", "gpu_held", "gpu_computes", "cpu", "programs",
    "throttled", "memory", "limit", "python", "answer",
)  # fmt: skip
UNKNOWN, TAKEN = "unknown", "gil_taken"
OF_GPU = (SHARED, HELD, COMPUTES)
_ANSWERED = frozenset({"socket", "asyncio", "pipe", "rpc"})
"""Of `Spot.waits_on`: another program has to answer. Children of its own do its own work."""


class Cause(NamedTuple):
    """`word`: one of the above. `amount`: a share of the time; with MEMORY pages a second, with
    COMPUTES the others' power as a share of its own.

    `usual`: the same of the others, None if not known; with HELD the clock of their GPUs (MHz),
    with PROGRAMS the cores that these use. `computes`: whether it uses the CPU at `spot`, False if
    it sleeps or waits. `foreign`: another program is the cause, and the rank does no more than the
    others.
    """

    word: str
    amount: float = 0.0
    usual: float | None = None
    spot: Spot | None = None
    device: Device | None = None
    computes: bool | None = None
    foreign: bool = False


def cause_of(rank: RankFacts, late: Late, snapshot: Snapshot, policy: Policy) -> Cause:
    """The first known cause that explains half of the time that the others wait."""
    others = [snapshot.rank(number) for number in late.waiters]
    limits, share = policy.of(CauseLimits), late.share_ratio
    least = limits.part * share
    for found in (
        _of_loader(rank, others, least),
        _of_answer(rank, others, least),
        _of_gc(rank, least),
        _of_gil(rank, others, limits.held_part * share),
        _of_throttling(rank, least),
        _of_gpu(rank, others, least, snapshot, policy),
        _of_cpu(rank, others, least, snapshot, policy),
        _of_memory(rank, others, limits),
        _of_other_programs(rank, others, least, snapshot, policy),
        _of_limit(rank, others, policy),
        _of_python(rank, others, limits.code_part * share, policy),
    ):
        if found is not None:
            return found
    return Cause(UNKNOWN)


def share_of(spot: Spot, rank: RankFacts) -> float:
    return spot.samples / rank.reported.spots_samples if rank.reported.spots_samples else 0.0


def _of_loader(rank: RankFacts, others: Sequence[RankFacts], least: float) -> Cause | None:
    own, theirs = _loading(rank), median(_loading(other) for other in others)
    return Cause(LOADER, own) if own - theirs >= least else None


def _loading(rank: RankFacts) -> float:
    if rank.loader.wait_ratio is not None:
        return rank.loader.wait_ratio
    return (
        rank.reported.activity_ratios[ACTIVITIES.index("loader")]
        if rank.reported.activity_ratios
        else 0.0
    )


def _of_answer(rank: RankFacts, others: Sequence[RankFacts], least: float) -> Cause | None:
    """Another program, which has to answer it in every step."""
    own, theirs = _asking_ratio(rank), median(_asking_ratio(other) for other in others)
    if own - theirs < least:
        return None
    asking = [spot for spot in rank.reported.spots if spot.waits_on in _ANSWERED]
    spot = max(asking, key=lambda each: each.samples)
    return Cause(ANSWER, own, spot=spot, foreign=True)


def _asking_ratio(rank: RankFacts) -> float:
    return sum(share_of(spot, rank) for spot in rank.reported.spots if spot.waits_on in _ANSWERED)


def _of_gc(rank: RankFacts, least: float) -> Cause | None:
    ratio = rank.hold.gc_ratio if rank.hold is not None else 0.0
    return Cause(GC, ratio) if ratio >= least else None


def _of_gil(rank: RankFacts, others: Sequence[RankFacts], least: float) -> Cause | None:
    own = _held_ratio(rank)
    # A busy machine delays the samples on all ranks of a host, and so does a lack of CPU on one
    # rank.
    if own - max(median(_held_ratio(other) for other in others), delay_of(rank)) < least:
        return None
    assert rank.hold is not None
    if rank.hold.taker is not None:
        return Cause(TAKEN, own, spot=rank.hold.taker)
    return Cause(GIL, own, spot=rank.hold.spot)


def _held_ratio(rank: RankFacts) -> float:
    return rank.hold.held_ratio if rank.hold is not None else 0.0


def _of_throttling(rank: RankFacts, least: float) -> Cause | None:
    ratio = rank.process.pressure.throttled_ratio if rank.process.pressure is not None else None
    return Cause(THROTTLED, ratio) if ratio is not None and ratio >= least else None


def _of_gpu(
    rank: RankFacts, others: Sequence[RankFacts], least: float, snapshot: Snapshot, policy: Policy
) -> Cause | None:
    """Its GPU: other processes compute there, its clocks are low, or it computes while those of the
    others wait in NCCL.
    """
    device = (
        device_of(rank, snapshot)
        if rank.gpu.own is not None and rank.gpu.own.certain and snapshot.devices
        else None
    )
    if device is None or (device.util_mean_ratio or 0.0) < policy.gpu_busy_ratio:
        # If the CPU side is slow, its GPU is idle, and then the GPU is not the cause.
        return None
    if lasting_strangers(device, policy):
        return Cause(SHARED, device=device)
    alike = [
        one
        for other in others
        if (one := device_of(other, snapshot)) is not None and one.gpu.name == device.gpu.name
    ]
    if not alike:
        return None
    since, mhz, clocks = (
        device.throttled_since_unix_ns,
        device.gpu.sm_mhz,
        [other.gpu.sm_mhz for other in alike if other.gpu.sm_mhz],
    )
    lasts = since is not None and snapshot.time_unix_ns - since >= policy.gpu_throttled_s * 1e9
    if lasts and mhz and clocks and held_by_more_than_load(device.gpu):
        usual = median(clocks)
        if mhz < policy.gpu_slow_ratio * usual and 1 - mhz / usual >= least:
            return Cause(HELD, usual=usual, device=device)
    return _of_computing(rank, device, alike, policy)


def _of_computing(
    rank: RankFacts, device: Device, alike: Sequence[Device], policy: Policy
) -> Cause | None:
    """The GPUs of the others are as busy but draw a fraction of its power: they run waiting kernels
    while this one computes.
    """
    own, busy = device.power_mean_watts, policy.gpu_wait_busy_ratio
    watts = [
        other.power_mean_watts
        for other in alike
        if other.power_mean_watts and (other.util_mean_ratio or 0.0) >= busy
    ]
    nccl = rank.hello is not None and "nccl" in (rank.hello.backend or "")
    if (
        not nccl
        or not own
        or (device.util_mean_ratio or 0.0) < busy
        or 2 * len(watts) <= len(alike)
    ):
        return None
    ratio = median(watts) / own
    return Cause(COMPUTES, ratio, device=device) if ratio <= policy.gpu_wait_power_ratio else None


def _of_cpu(
    rank: RankFacts,
    others: Sequence[RankFacts],
    least: float,
    snapshot: Snapshot,
    policy: Policy,
) -> Cause | None:
    delay, host = delay_of(rank), snapshot.host_of(rank)
    more = delay - median(delay_of(other) for other in others)
    # On a busy machine, a rank that sleeps longer also waits longer for a CPU afterwards. Then the
    # code is the better explanation.
    if more < max(least, policy.of(CauseLimits).cpu_part * _largest_excess(rank, others).more):
        return None
    foreign = _foreign_cores(rank, host, snapshot, policy) > 0 and not is_bound(rank, host)
    return Cause(CPU, delay, foreign=foreign)


def is_bound(rank: RankFacts, host: HostState | None) -> bool:
    """Whether it may use only some CPUs of its host."""
    load = rank.process.report.load if rank.process.report is not None else None
    cpus = load.cpus_count if load is not None else None
    return bool(cpus) and host is not None and (cpus or 0) < host.cores


def _foreign_cores(
    rank: RankFacts, host: HostState | None, snapshot: Snapshot, policy: Policy
) -> float:
    """How many cores of its host other programs use, if more threads want to run than it has; 0 if
    they use few."""
    if host is None or host.load is None or (host.load.runnable or 0) <= host.cores:
        return 0.0
    mates = [facts for facts in snapshot.ranks if facts.agent.sender == rank.agent.sender]
    foreign = host.cores - sum(used_cores_of(facts) for facts in mates)
    return foreign if foreign >= policy.foreign_cores else 0.0


def _of_other_programs(
    rank: RankFacts,
    others: Sequence[RankFacts],
    least: float,
    snapshot: Snapshot,
    policy: Policy,
) -> Cause | None:
    """Programs that do not belong to the job take the CPUs of its host.

    Then all ranks lack CPU time, now one more and now another, and the scheduler makes the
    differences between their samples. A function that explains half of the wait is still the cause.
    """
    delay, host = delay_of(rank), snapshot.host_of(rank)
    foreign = _foreign_cores(rank, host, snapshot, policy)
    if delay < least or host is None or not foreign:
        return None
    if _largest_excess(rank, others).more >= least:
        return None
    return Cause(PROGRAMS, delay, foreign, foreign=True)


def _of_memory(rank: RankFacts, others: Sequence[RankFacts], limits: CauseLimits) -> Cause | None:
    faults, theirs = _faults(rank), median(_faults(other) for other in others)
    least = max(limits.faults_per_s, limits.faults_factor * theirs)
    return Cause(MEMORY, faults) if faults >= least else None


def _faults(rank: RankFacts) -> float:
    return (rank.process.pressure.faults_per_s or 0.0) if rank.process.pressure is not None else 0.0


def _of_limit(rank: RankFacts, others: Sequence[RankFacts], policy: Policy) -> Cause | None:
    """It is short of memory by a limit that the others are not short of: what it cannot allocate at
    once it tries again, or does in smaller parts. `memory-pressure` reports it.
    """
    alone = _is_short(rank, policy) and not any(_is_short(other, policy) for other in others)
    return Cause(LIMIT) if alone else None


def _is_short(rank: RankFacts, policy: Policy) -> bool:
    return any(is_short_of(limit, policy) for limit in limits_of(rank))


def _of_python(
    rank: RankFacts, others: Sequence[RankFacts], least: float, policy: Policy
) -> Cause | None:
    """The function or line where it spends more time than the others."""
    more, share, theirs, spot = _largest_excess(rank, others)
    if spot is None or more < max(policy.of(SpotLimits).least_ratio, least):
        return None
    usual = theirs if any(other.reported.spots_samples for other in others) else None
    return Cause(PYTHON, share, usual, spot, computes=_computes(rank, others, more, share))


def _computes(
    rank: RankFacts, others: Sequence[RankFacts], more: float, share: float
) -> bool | None:
    """Whether it computes at a place where it spends this share of its time, so much more than the
    others. False: it sleeps or waits. None: the CPU time of its process does not show it.
    """
    own = rank.process.cpu_ratio
    theirs = [ratio for other in others if (ratio := other.process.cpu_ratio) is not None]
    if own is None or not theirs:
        return None
    if own - median(theirs) >= more / 2:
        return True
    return False if own + delay_of(rank) <= share / 2 else None


class _Excess(NamedTuple):
    """How much more of its time a rank spends in a function or line than the others: shares of the
    samples, 0 without any."""

    more: float = 0.0
    share: float = 0.0
    theirs: float = 0.0
    spot: Spot | None = None


def _largest_excess(rank: RankFacts, others: Sequence[RankFacts]) -> _Excess:
    """The function or line with the largest excess."""
    spots = _working(rank)
    excesses = [_excess(spot, rank, others, whole=True) for spot in by_function(spots)]
    excesses += [_excess(spot, rank, others, whole=False) for spot in spots]
    # A whole function says more than one of its lines, unless the waiting ranks are in it too.
    return max(excesses, key=lambda excess: excess.more, default=_Excess())


def _working(rank: RankFacts) -> list[Spot]:
    """Its samples, without those in which it waited for others, perhaps at the same line."""
    return [
        spot
        for spot in rank.reported.spots
        if spot.waits_on not in ("collective", "p2p", "join", "import")
    ]


def _excess(spot: Spot, rank: RankFacts, others: Sequence[RankFacts], whole: bool) -> _Excess:
    shares = [_same_ratio(spot, other, whole) for other in others if other.reported.spots_samples]
    share, theirs = share_of(spot, rank), median(shares) if shares else 0.0
    return _Excess(share - theirs, share, theirs, spot)


def _same_ratio(spot: Spot, other: RankFacts, whole: bool) -> float:
    return sum(
        share_of(same, other)
        for same in _working(other)
        if (same.function, same.file) == (spot.function, spot.file)
        and (whole or same.line == spot.line)
    )
