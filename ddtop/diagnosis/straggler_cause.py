"""Finds why a rank is slow, from its numbers and those of the ranks that wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from ddtop.diagnosis import gpus
from ddtop.diagnosis.evidence import delay_of, is_short_of, limits_of, used_cores_of
from ddtop.diagnosis.gpus import (
    device_of,
    held_by_more_than_load,
    holders_text,
    lasting_strangers,
    why_held,
)
from ddtop.model.facts import Device, Late, RankFacts, Snapshot
from ddtop.policy import Limits, Policy
from ddtop.wire.records import ACTIVITIES, HostState, Spot, by_function
from ddtop.words.sentences import about


@dataclass(frozen=True)
class CauseLimits(Limits, of="straggler-cause", was="cause_"):
    """What explains that a rank is late."""

    part: float = 0.5
    """A cause explains at least this part of the others' wait."""
    held_part: float = 0.35
    """... a held GIL less: a sample near its end is not late enough to show it."""
    cpu_part: float = 0.75
    """Missing CPU time is no cause below this part of the rank's extra time in one function."""
    code_part: float = 0.25
    """... for a function even less: its samples cover half a minute, and it may be slow lately."""
    faults_per_s: float = 50.0
    """Pages read from a disk. A process in memory has next to none, one that swaps hundreds."""
    faults_factor: float = 4.0
    """... and this many times those of the ranks that wait: a host that reads its files anew does
    so for all."""


@dataclass(frozen=True)
class SpotLimits(Limits, of="spot", was="spot_"):
    """Which places in a program are shown."""

    least_ratio: float = 0.05
    """Share of a rank's samples at one place. Below this it is only one sample or two."""


LOADER, GIL, GC, GPU, CPU, THROTTLED, MEMORY, LIMIT, PYTHON, ANSWER, UNKNOWN = (
    "loader", "gil_held", "gc", "gpu", "cpu", "throttled", "memory", "limit", "python", "answer",
    "unknown",
)  # fmt: skip
_ANSWERED = frozenset({"socket", "asyncio", "pipe", "rpc"})
"""Of `Spot.waits_on`: another program has to answer. Children of its own do its own work."""
NOT_MEASURED = "not measured"
"""Part of the text of a cause that no measurement explains."""


@dataclass(frozen=True, slots=True)
class Cause:
    """`word`: one of the above. `text`: the end of a sentence, after "it". `advice`: what to do.

    `foreign`: another program is the cause, and the rank does no more than the others.
    """

    word: str
    text: str
    advice: str
    foreign: bool = False


def cause_of(rank: RankFacts, late: Late, snapshot: Snapshot, policy: Policy) -> Cause:
    """The first known cause that explains half of the time that the others wait."""
    others = [snapshot.rank(number) for number in late.waiters]
    limits, share = policy.of(CauseLimits), late.share_ratio
    least, host = limits.part * share, host_of(rank, snapshot)
    for found in (
        _of_loader(rank, others, least),
        _of_answer(rank, others, least),
        _of_gc(rank, least),
        _of_gil(rank, others, limits.held_part * share),
        _of_throttling(rank, least),
        _of_gpu(rank, others, least, snapshot, policy),
        _of_cpu(rank, others, least, snapshot, policy),
        _of_memory(rank, others, host, limits),
        _of_other_programs(rank, others, least, snapshot, policy),
        _of_limit(rank, others, policy),
        _of_python(rank, others, limits.code_part * share, policy),
    ):
        if found is not None:
            return found
    advice = (
        "see where it spends its time: `ddtop stacks` a few times, or py-spy top on its pid;"
        " compare its host with the others"
    )
    return Cause(UNKNOWN, f"is slow, and the cause is {NOT_MEASURED}", advice)


def host_of(rank: RankFacts, snapshot: Snapshot) -> HostState | None:
    """The host of that rank."""
    return snapshot.host_of(rank)


def flame(rank: RankFacts, policy: Policy, most: int = 3) -> list[str]:
    """`62% in Augment.rotate (aug.py:88)`: where the samples of the last half minute found the
    rank, most first.
    """
    return [
        f"{share_of(spot, rank):.0%} in {_spot(spot)}"
        for spot in by_function(rank.reported.spots)[:most]
        if share_of(spot, rank) >= policy.of(SpotLimits).least_ratio
    ]


def share_of(spot: Spot, rank: RankFacts) -> float:
    return spot.samples / rank.reported.spots_samples if rank.reported.spots_samples else 0.0


def _spot(spot: Spot) -> str:
    # Of <locals> the innermost name is the one that is in the file.
    return (
        f"{spot.function.rpartition('<locals>.')[2]} ({spot.file.rpartition('/')[2]}:{spot.line})"
    )


def _of_loader(rank: RankFacts, others: Sequence[RankFacts], least: float) -> Cause | None:
    own = _loading(rank)
    if own - median(_loading(other) for other in others) < least:
        return None
    loader = rank.loader.report
    setting = f" with num_workers={loader.workers}" if loader is not None else ""
    text = f"waits {about(own)} of the time for its DataLoader{setting}, the others wait less"
    return Cause(
        LOADER,
        text,
        "give its loader more workers, or look at its data: `ddtop explain input-bound`",
    )


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
    return Cause(
        ANSWER,
        f"waits {about(own)} of the time for another program, in {_spot(spot)}",
        "request the next answer while the ranks compute, or make that program faster",
        foreign=True,
    )


def _asking_ratio(rank: RankFacts) -> float:
    return sum(share_of(spot, rank) for spot in rank.reported.spots if spot.waits_on in _ANSWERED)


def _of_gc(rank: RankFacts, least: float) -> Cause | None:
    ratio = rank.hold.gc_ratio if rank.hold is not None else 0.0
    if ratio < least:
        return None
    text = f"spends {about(ratio)} of the time in garbage collection"
    return Cause(
        GC,
        text,
        "call gc.freeze() after start-up, gc.disable(), and gc.collect() at the same step on all"
        " ranks",
    )


def _of_gil(rank: RankFacts, others: Sequence[RankFacts], least: float) -> Cause | None:
    own = _held_ratio(rank)
    # A busy machine delays the samples on all ranks of a host, and so does a lack of CPU on one
    # rank.
    if own - max(median(_held_ratio(other) for other in others), delay_of(rank)) < least:
        return None
    spot = rank.hold.spot if rank.hold is not None else None
    where = f", seen at {_spot(spot)}" if spot is not None else ""
    text = f"runs C code that holds the GIL in {about(own)} of the samples{where}"
    advice = (
        "that call computes outside Python: make it cheaper, move it into a DataLoader worker, or"
        " release the GIL in it"
    )
    return Cause(GIL, text, advice)


def _held_ratio(rank: RankFacts) -> float:
    return rank.hold.held_ratio if rank.hold is not None else 0.0


def _of_throttling(rank: RankFacts, least: float) -> Cause | None:
    ratio = rank.process.pressure.throttled_ratio if rank.process.pressure is not None else None
    if ratio is None or ratio < least:
        return None
    load = rank.process.report.load if rank.process.report is not None else None
    quota = f" of {load.quota_cores:g} cores" if load is not None and load.quota_cores else ""
    text = f"is throttled {about(ratio)} of the time by the CPU quota{quota} of its cgroup"
    return Cause(
        THROTTLED,
        text,
        "raise the CPU limit of its container, or start fewer threads and workers in it",
    )


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
    if busy := lasting_strangers(device, policy):
        return Cause(
            GPU,
            f"shares its GPU with {holders_text(busy)}",
            "see `ddtop gpus` on its host: end these processes if they are yours, else use"
            " another GPU",
        )
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
            text = (
                f"runs on a GPU that {why_held(device.gpu)} holds at {mhz} MHz; the others' GPUs"
                f" run at {usual:.0f}"
            )
            return Cause(GPU, text, cooling(device))
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
    if ratio > policy.gpu_wait_power_ratio:
        return None
    text = (
        f"computes longer on its GPU: the others' GPUs are 100% busy at {ratio:.0%} of its power,"
        " so they wait in NCCL"
    )
    return Cause(GPU, text, more_work(rank.rank, device))


def cooling(device: Device) -> str:
    """What to do about a GPU whose clocks are low."""
    how = gpus.cooling(device.gpu)
    return f"check its cooling and power ({how}); restart the job without that host"


def more_work(rank: int, device: Device) -> str:
    """What to do about a GPU that computes longer than the others."""
    return (
        f"does rank {rank} have more to compute (longer sequences, more tokens for its experts, an"
        f" extra loss)? If not, compare its GPU with the others': {gpus.clocks(device.gpu)}"
    )


def _of_cpu(
    rank: RankFacts,
    others: Sequence[RankFacts],
    least: float,
    snapshot: Snapshot,
    policy: Policy,
) -> Cause | None:
    delay, host = delay_of(rank), host_of(rank, snapshot)
    more = delay - median(delay_of(other) for other in others)
    # On a busy machine, a rank that sleeps longer also waits longer for a CPU afterwards. Then the
    # code is the better explanation.
    if more < max(least, policy.of(CauseLimits).cpu_part * _largest_excess(rank, others).more):
        return None
    load = rank.process.report.load if rank.process.report is not None else None
    parts = [f"waits {about(delay)} of the time for a CPU"]
    foreign = _foreign_cores(rank, host, snapshot, policy) > 0
    if load is not None and load.cpus_count and host is not None and load.cpus_count < host.cores:
        foreign = False
        parts.append(f"it is bound to {'CPU' if load.cpus_count == 1 else 'CPUs'} {load.cpus}")
    if host is not None and host.load is not None and (host.load.runnable or 0) > host.cores:
        # The number differs between samples, so it is only in the evidence.
        parts.append(f"{host.host} has more threads to run than cores ({host.cores})")
    if (
        host is not None
        and host.load is not None
        and (host.load.steal_ratio or 0.0) >= policy.throttled_told_ratio
    ):
        parts.append(f"the hypervisor takes {about(host.load.steal_ratio or 0.0)}")
    return Cause(
        CPU,
        "; ".join(parts),
        "see what else runs there (top -H), and give the rank its own cores: OMP_NUM_THREADS,"
        " taskset, --cpus-per-task",
        foreign,
    )


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
    delay, host = delay_of(rank), host_of(rank, snapshot)
    foreign = _foreign_cores(rank, host, snapshot, policy)
    if delay < least or host is None or not foreign:
        return None
    if _largest_excess(rank, others).more >= least:
        return None
    text = (
        f"waits {about(delay)} of the time for a CPU; other programs take"
        f" {foreign:.0f} of the {host.cores} CPUs of {host.host}"
        if foreign >= 1
        else f"waits {about(delay)} of the time for a CPU; other programs run on {host.host} too"
    )
    return Cause(
        CPU,
        text,
        "end the other programs on that host (top), or give the ranks their own CPUs: taskset,"
        " --exclusive, --cpus-per-task",
        foreign=True,
    )


def _of_memory(
    rank: RankFacts, others: Sequence[RankFacts], host: HostState | None, limits: CauseLimits
) -> Cause | None:
    faults = _faults(rank)
    if faults < max(
        limits.faults_per_s, limits.faults_factor * median(_faults(other) for other in others)
    ):
        return None
    text = f"reads {round(faults, -1):.0f} pages a second back from disk: memory is low"
    if host is not None and host.load is not None and host.load.memory_stall_ratio:
        text += f" ({host.host} stalls {about(host.load.memory_stall_ratio)} of the time for it)"
    return Cause(
        MEMORY,
        text,
        "free memory on that host, or use fewer workers and smaller caches there: `free -h`,"
        " `vmstat 1`",
    )


def _faults(rank: RankFacts) -> float:
    return (rank.process.pressure.faults_per_s or 0.0) if rank.process.pressure is not None else 0.0


def _of_limit(rank: RankFacts, others: Sequence[RankFacts], policy: Policy) -> Cause | None:
    """It is short of memory by a limit that the others are not short of: what it cannot allocate at
    once it tries again, or does in smaller parts. `memory-pressure` reports it.
    """
    if not _is_short(rank, policy) or any(_is_short(other, policy) for other in others):
        return None
    return Cause(LIMIT, "has nearly reached its memory limit", "")


def _is_short(rank: RankFacts, policy: Policy) -> bool:
    return any(is_short_of(limit, policy) for limit in limits_of(rank))


def _of_python(
    rank: RankFacts, others: Sequence[RankFacts], least: float, policy: Policy
) -> Cause | None:
    """The function or line where it spends more time than the others."""
    more, share, theirs, spot = _largest_excess(rank, others)
    if spot is None or more < max(policy.of(SpotLimits).least_ratio, least):
        return None
    beside = (
        f", the others {about(theirs)}"
        if any(other.reported.spots_samples for other in others)
        else ""
    )
    does = _does(rank, others, more, share)
    text = f"spends {about(share)} of the time {does}in {_spot(spot)}{beside}"
    return Cause(
        PYTHON,
        text,
        f"look at {_spot(spot)}: what does this rank do there more often, or for longer, than the"
        " others?",
    )


def _does(rank: RankFacts, others: Sequence[RankFacts], more: float, share: float) -> str:
    """What it does at a place where it spends this share of its time, so much more than the others:
    `computing `, `asleep or waiting `, or nothing if the CPU time of its process does not show it.
    """
    own = rank.process.cpu_ratio
    theirs = [ratio for other in others if (ratio := other.process.cpu_ratio) is not None]
    if own is None or not theirs:
        return ""
    if own - median(theirs) >= more / 2:
        return "computing "
    return "asleep or waiting " if own + delay_of(rank) <= share / 2 else ""


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
