"""Which ranks are stragglers now: the last reads of the arrivals, if later samples still agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from ddtop.model import arrivals, ratios
from ddtop.model.facts import Balance, Device, GpuLate, Hold, Late, Pressure, RankFields, State
from ddtop.model.gpu_memory import SPANS
from ddtop.model.gpus import large_processes
from ddtop.model.memory import JobMemory, RankMemory, Round
from ddtop.policy import Limits, Policy
from ddtop.wire.records import Group, OutsideLook


@dataclass(frozen=True)
class Reads(Limits, of="arrivals"):
    """For how long the arrivals that were read show a straggler."""

    span_s: float = 5.0
    """Steps over this time show that the wait persists. With less, a second read has to agree."""
    rounds_apart_s: float = 1.8
    """Two reads of the arrivals are independent if this time lies between them."""
    crowded_apart_s: float = 8.0
    """... of a rank that lacks CPU time for longer than others wait: neighbours come and go."""
    stale_s: float = 150.0
    """The relay asks at least once a minute while ranks wait unevenly. After this time without an
    answer the arrivals are out of date."""
    other_steps_factor: float = 4.0
    """The arrivals say nothing about steps that take this many times as long."""
    gone_ratio: float = 0.25
    """The straggler is gone if the waits differ by less than this share of what arrivals said."""


@dataclass(frozen=True)
class Stages(Limits, of="stages"):
    """Which group is a pipeline."""

    ratio: float = 0.1
    """Share of a group's calls that are send and recv. From here on its members are stages of a
    pipeline, which wait for each other by design."""


@dataclass(frozen=True)
class ByStack(Limits, of="stack"):
    """From when stacks, read from outside, show a straggler."""

    late_looks: int = 12
    """A straggler is named from outside after so many looks; a third as many at each waiter, ..."""
    late_s: float = 4.0
    """... over so long."""
    late_ratio: float = 0.1
    """It is in a call for others in this share of its looks at most."""
    one_wait_ratio: float = 0.25
    """Of the looks that found a waiter waiting, one wait has this share at most: a rank that
    validates now and then makes the others wait long, but rarely."""
    late_wait_ratio: float = 0.5
    """The others together are in collectives in this share of their looks, each in two thirds. If
    rank 0 validates every few seconds, the others reach 0.4."""
    late_chance: float = 1e-4
    """Chance finds a rank that waits like the others so seldom in a call less often than this."""


@dataclass(frozen=True)
class GpuWait(Limits, of="gpu-wait"):
    """From when the power of GPUs shows that the others wait for one."""

    job_s: float = 60.0
    """A job this young compiles, warms up and loads, which it does not do at every step."""
    steps: int = 2
    """Iterations over the time compared. A rank that makes none may evaluate or save."""
    steps_ratio: float = 0.1
    """... and their numbers differ by this share, or by one. Other members do other work."""
    calls: int = 8
    """... and collectives enqueued in each span. None are while one rank evaluates alone."""
    members: int = 3
    """GPUs compared. With only two, nobody can know which one is normal."""
    most_ratio: float = 0.95
    """Share of the others that have to draw that little: of many, one may have its own problem."""
    told_ratio: float = 0.75
    """Share of a group's members that have to be known. All may wait for an unknown one."""
    below_peak_ratio: float = 0.8
    """Share of the most that they drew. Others that wait for a GPU with low clocks drew more."""


def mark_late(
    job: JobMemory, facts: dict[int, RankFields], now_unix_ns: int, policy: Policy
) -> tuple[Balance, ...]:
    """Mark the ranks that are late now in `facts`.

    Returns how even the ranks of each group are.
    """
    if not job.rounds:
        return ()
    rounds = arrivals.findings_of(
        job.rounds, job.groups.values(), _stage_test(job, facts, policy), policy
    )
    found: list[Late] = []
    # The last read may have met a noisy moment, or half of the ranks have answered so far. Then the
    # read before counts, as long as the samples agree.
    for newest in range(len(rounds) - 1, max(len(rounds) - 3, -1), -1):
        earlier = rounds[:newest]
        found = [
            one
            for one in rounds[newest].late
            if _still_holds(one, earlier, job, facts, now_unix_ns, policy)
        ]
        if rounds[newest].late:
            break
    found.sort(key=lambda late: -late.share_ratio)
    for late in found:
        for rank in late.ranks:
            fields = facts[rank]
            fields.late = late
            if fields.state in (State.RUNNING, State.WAITING):
                fields.state = State.STRAGGLER
        for rank in late.waiters:
            # Its place changes from report to report. That it waits does not.
            if rank in facts and facts[rank].state is State.RUNNING:
                facts[rank].state = State.WAITING
        for rank in (*late.ranks, *late.waiters):
            if rank in facts:
                facts[rank].hold = _hold(job.ranks[rank], now_unix_ns, policy)
    oldest = now_unix_ns - policy.of(Reads).stale_s * 1e9
    balances = next((round_.balances for round_ in reversed(rounds) if round_.balances), ())
    return tuple(balance for balance in balances if balance.unix_ns >= oldest)


def pressure(memory: RankMemory, now_unix_ns: int, policy: Policy) -> Pressure | None:
    """What its host does to a rank; None where the relay does not measure it."""
    grown = (
        memory.load.growth(policy.oversubscribed_window_s, now_unix_ns)
        if memory.load is not None
        else None
    )
    if grown is None or grown[0] < policy.window_min_s:
        return None
    seconds, (delay_ns, faults, throttled_ns, threads_ns, used_ns, memory_bytes) = grown
    load = memory.process.load if memory.process is not None else None
    if load is None:
        return None
    return Pressure(
        seconds=seconds,
        delay_ratio=min(1.0, delay_ns / (seconds * 1e9)) if load.run_delay_ns is not None else None,
        throttled_ratio=min(1.0, throttled_ns / (seconds * 1e9))
        if load.throttled_ns is not None
        else None,
        faults_per_s=faults / seconds if load.major_faults is not None else None,
        threads_delay_cores=threads_ns / (seconds * 1e9)
        if load.threads_delay_ns is not None
        else None,
        used_cores=used_ns / (seconds * 1e9),
        memory_per_s=memory_bytes / seconds,
    )


def _hold(memory: RankMemory, now_unix_ns: int, policy: Policy) -> Hold | None:
    grown = memory.counters.growth(policy.window_s, now_unix_ns)
    if grown is None:
        return None
    seconds, (_, held, gc_ns), looks = (
        grown[0],
        grown[1][ratios.AGENT],
        sum(grown[1][ratios.ACTIVITIES]),
    )
    if not looks or memory.state is None:
        return None
    held_ratio, gc_ratio = min(1.0, held / looks), min(1.0, gc_ns / (seconds * 1e9))
    return Hold(seconds, held_ratio, gc_ratio, memory.state.held_spot, memory.state.held_by)


def _stage_test(
    job: JobMemory, facts: Mapping[int, RankFields], policy: Policy
) -> Callable[[Group], bool]:
    """Whether two members of a group hand each other their work by send and recv.

    Then they wait for each other by design.
    """
    stages = [
        frozenset(group.ranks)
        for group in job.groups.values()
        if any(rank in facts and sends(facts[rank], group.name, policy) for rank in group.ranks)
    ]
    return lambda group: any(len(stage.intersection(group.ranks)) > 1 for stage in stages)


def sends(rank: RankFields, group: str, policy: Policy) -> bool:
    """Whether a good part of what it does in that group is send and recv."""
    return any(
        progress.group == group
        and max(progress.p2p_offset or 0, progress.p2p_calls)
        > policy.of(Stages).ratio * progress.enqueued
        for progress in rank.comm.groups
    )


def _still_holds(
    late: Late,
    earlier: list[Round],
    job: JobMemory,
    facts: Mapping[int, RankFields],
    now_unix_ns: int,
    policy: Policy,
) -> bool:
    age_s = (now_unix_ns - late.unix_ns) / 1e9
    if age_s > policy.of(Reads).stale_s or any(
        rank not in facts or facts[rank].gone or facts[rank].agent.unheard for rank in late.ranks
    ):
        return False
    if _takes_longer_now(late, facts, policy):
        return False
    if _load_alike(late, facts) or all(_has_joined(facts.get(rank)) for rank in late.waiters):
        return False
    strong = late.share_ratio >= policy.straggler_strong_ratio
    # A neighbour that is busy for some seconds makes a rank late too.
    long = late.late_ratio * late.steps * late.step_ms / 1000 >= policy.of(Reads).span_s
    turns = _takes_turns(late, earlier, policy)
    apart_s = policy.of(Reads).crowded_apart_s if turns else _apart_s(late, facts, policy)
    if (late.few or not long or not strong or turns) and not _seen_before(late, earlier, apart_s):
        return False
    waiters = [
        ratio
        for rank in late.waiters
        if (ratio := _sampled_wait_ratio(job, facts, rank, strong)) is not None
    ]
    own = [
        ratio
        for rank in late.ranks
        if (ratio := _sampled_wait_ratio(job, facts, rank, strong)) is not None
    ]
    if not waiters or not own:
        return True
    return median(waiters) - max(own) >= policy.of(Reads).gone_ratio * late.share_ratio


def _takes_longer_now(late: Late, facts: Mapping[int, RankFields], policy: Policy) -> bool:
    """Whether steps now take several times as long as the steps that were compared."""
    least_ms = policy.of(Reads).other_steps_factor * late.step_ms
    known = [facts[rank].progress.step_ms for rank in (*late.ranks, *late.waiters) if rank in facts]
    return all(step_ms is not None and step_ms >= least_ms for step_ms in known)


def _has_joined(rank: RankFields | None) -> bool:
    """Whether it was out of data in the last half minute, and took part only so that the others
    could go on.

    Then it waited for nobody's slowness.
    """
    return rank is not None and any(spot.waits_on == "join" for spot in rank.reported.spots)


def _load_alike(late: Late, facts: Mapping[int, RankFields]) -> bool:
    """Whether they are late because they wait for their loaders, and the loaders of those that wait
    for them take about as long for a batch."""
    loads = [facts[rank].loader.wait_ratio or 0.0 for rank in late.ranks]
    busy = sum(facts[rank].loader.busy for rank in late.waiters if rank in facts)
    return min(loads) >= late.share_ratio / 2 and 2 * busy > len(late.waiters)


def _apart_s(late: Late, facts: Mapping[int, RankFields], policy: Policy) -> float:
    """How far apart two reads have to be to be independent, seconds.

    Other work on the host's cores lasts some seconds.
    """
    delays = [
        one.delay_ratio or 0.0
        for rank in late.ranks
        if (one := facts[rank].process.pressure) is not None
    ]
    crowded = late.share_ratio < policy.straggler_strong_ratio and any(
        delay >= late.share_ratio for delay in delays
    )
    return policy.of(Reads).crowded_apart_s if crowded else policy.of(Reads).rounds_apart_s


def _takes_turns(late: Late, earlier: list[Round], policy: Policy) -> bool:
    """Whether an earlier read was as sure of other ranks.

    Loaders that run dry in turn make one rank late for some seconds, then another.
    """
    return any(
        one.group == late.group
        and one.share_ratio >= policy.straggler_strong_ratio
        and not one.few
        and not set(one.ranks) & set(late.ranks)
        for found in earlier
        for one in found.late
    )


def _seen_before(late: Late, earlier: list[Round], apart_s: float) -> bool:
    """Whether an earlier read has named the same ranks."""
    return any(
        set(late.ranks) <= set(one.ranks) and late.unix_ns - one.unix_ns >= apart_s * 1e9
        for found in earlier
        for one in found.late
        if one.group == late.group
    )


def _sampled_wait_ratio(
    job: JobMemory, facts: Mapping[int, RankFields], rank: int, strong: bool
) -> float | None:
    """How much it waits by the agent's samples.

    Over ten seconds where that shows the difference, otherwise over twenty.
    """
    if strong:
        return facts[rank].comm.wait_ratio if rank in facts else None
    memory = job.ranks.get(rank)
    return memory.wait_long_ratio if memory is not None else None


# -- Stragglers among ranks that are read from outside, by many looks at their stacks
#
# From outside, the time at which a rank enters a collective is not known. But a rank that is late
# hardly waits. Most looks find it outside all calls for other ranks, and find the others inside
# collectives.


@dataclass(frozen=True, slots=True)
class LateByStack:
    """`ranks` are late, `waiters` wait for them.

    `call_ratio`: the largest share of looks that found one of `ranks` in a call for others.
    `wait_ratio`: the smallest share that found one of `waiters` in a collective. `looks`,
    `seconds`: how often and how long the rank with the fewest looks was looked at.
    """

    ranks: tuple[int, ...]
    waiters: tuple[int, ...]
    call_ratio: float
    wait_ratio: float
    looks: int
    seconds: float


def suspects_of(looks: Mapping[int, OutsideLook | None], policy: Policy) -> LateByStack | None:
    """The ranks that may be late after these looks, even if there are few; None for none.

    A rank without looks rules out all others.
    """
    limits = policy.of(ByStack)
    known = {rank: look for rank, look in looks.items() if look is not None and look.looks}
    if len(known) < max(2, len(looks)):
        return None
    late = {
        rank: look.call_looks / look.looks
        for rank, look in known.items()
        if look.call_looks <= limits.late_ratio * look.looks
    }
    waiters = {
        rank: look.wait_looks / look.looks for rank, look in known.items() if rank not in late
    }
    # Half of the ratio: after a few looks it may be so low by chance, and more looks decide.
    if not late or not waiters or _together_ratio(known, waiters) < limits.late_wait_ratio / 2:
        return None
    return LateByStack(
        tuple(sorted(late)),
        tuple(sorted(waiters)),
        max(late.values()),
        min(waiters.values()),
        min(look.looks for look in known.values()),
        min(look.looks_s for look in known.values()),
    )


def _together_ratio(known: Mapping[int, OutsideLook], ranks: Iterable[int]) -> float:
    """The share of all looks at these ranks that found one in a collective."""
    looks = [known[rank] for rank in ranks]
    return sum(look.wait_looks for look in looks) / sum(look.looks for look in looks)


def late_of(looks: Mapping[int, OutsideLook | None], policy: Policy) -> LateByStack | None:
    """The ranks that are certainly late: there were enough looks, and each wait is a new one."""
    found, limits = suspects_of(looks, policy), policy.of(ByStack)
    if found is None or found.seconds < limits.late_s:
        return None
    if found.wait_ratio < limits.late_wait_ratio * 2 / 3:
        return None
    known = {rank: look for rank, look in looks.items() if look is not None}
    ratio = _together_ratio(known, found.waiters)
    if ratio < limits.late_wait_ratio:
        return None
    if len(found.ranks) > len(found.waiters):
        # Most ranks work while few wait: these have less to do, as at the end of uneven data.
        return None
    seen = all(_is_seen(known[rank], ratio, limits) for rank in found.ranks)
    return found if seen and all(_waits(known[rank], policy) for rank in found.waiters) else None


def _is_seen(look: OutsideLook, ratio: float, limits: ByStack) -> bool:
    """Whether chance rules out a rank that waits in `ratio` of the time: it was in a call too
    seldom."""
    count, inside = look.looks, look.call_looks
    if count < limits.late_looks:
        return False
    chance = sum(
        math.comb(count, found) * ratio**found * (1 - ratio) ** (count - found)
        for found in range(inside + 1)
    )
    return chance <= limits.late_chance


def _waits(look: OutsideLook, policy: Policy) -> bool:
    if look.looks < policy.of(ByStack).late_looks // 3:
        return False
    return look.one_wait_looks <= max(1, policy.of(ByStack).one_wait_ratio * look.wait_looks)


# -- Whose GPU is a straggler on NCCL: it computes while the others are busy at little power
#
# On NCCL the host runs ahead of its GPU. If every rank waits for its GPU at each step
# (`loss.item()`), all hosts move together, and no arrival time shows the slow GPU. It shows in the
# power that the GPUs draw: an NCCL kernel that waits keeps a GPU as busy as one that computes, at a
# fraction of the power.
#
# Power has many reasons. So only GPUs of one kind are compared, of ranks that exchange most with
# each other and make the same steps. The same has to be true in several spans, and the difference
# has to be larger than between any two equal GPUs.


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A rank's GPU over the spans, with its power and clock in each."""

    rank: int
    device: Device
    watts: tuple[float, ...]
    mhz: tuple[float, ...]

    @property
    def kind(self) -> tuple[str, int]:
        """GPUs of one kind have the same name and the same power limit."""
        return self.device.gpu.name, round(self.device.gpu.power_cap_watts or 0)


def mark_late_gpus(
    facts: dict[int, RankFields],
    groups: Iterable[Group],
    devices: Iterable[Device],
    now_unix_ns: int,
    policy: Policy,
) -> None:
    """Mark the ranks whose GPUs are stragglers in `facts`."""
    busy = _busy_devices(devices, facts, now_unix_ns, policy)
    if not busy or _are_alike(busy.values(), policy):
        return
    for late in _late_gpus(busy, _Work(facts, list(groups), now_unix_ns, policy)):
        for rank in late.ranks:
            fields = facts[rank]
            fields.gpu_late = late
            if fields.state in (State.RUNNING, State.WAITING) and not late.others_there:
                fields.state = State.STRAGGLER


def _busy_devices(
    devices: Iterable[Device], facts: Mapping[int, RankFields], now_unix_ns: int, policy: Policy
) -> dict[int, Device]:
    """The GPU of each rank that was busy and fully measured in the newest span."""
    newest, least, found = (
        now_unix_ns // int(policy.gpu_mean_s * 1e9),
        policy.gpu_wait_busy_ratio,
        {},
    )
    for device in devices:
        spans = device.spans
        if len(spans) < SPANS:
            continue
        last = spans[-1]
        if (
            last.util_ratio is None
            or last.util_ratio < least
            or not last.sm_mhz
            or newest - last.number > 2
        ):
            continue
        ranks = device.ranks
        if len(ranks) > 1:
            # The others may have no more than a context there.
            ranks = tuple([rank for rank in ranks if _is_own(facts.get(rank), device)])
        if len(ranks) == 1 and ranks[0] in facts:
            found[ranks[0]] = device
    return found


def _is_own(rank: RankFields | None, device: Device) -> bool:
    return rank is not None and (rank.gpu.own is None or rank.gpu.own.gpu.uuid == device.gpu.uuid)


def _are_alike(devices: Collection[Device], policy: Policy) -> bool:
    """Whether no two GPUs differ enough.

    That is nearly always so, and it has to be decided quickly for ten thousand GPUs.
    """
    lasts = [device.spans[-1] for device in devices]
    watts, mhz = [span.power_watts or 0.0 for span in lasts], [span.sm_mhz or 0.0 for span in lasts]
    return min(watts) > policy.gpu_wait_power_ratio * max(watts) and min(
        mhz
    ) >= policy.gpu_slow_ratio * max(mhz)


class _Work:
    """What is known besides the GPUs. Pipelines are looked for once, and only where a GPU is a
    straggler."""

    def __init__(
        self,
        facts: Mapping[int, RankFields],
        groups: Sequence[Group],
        now_unix_ns: int,
        policy: Policy,
    ) -> None:
        self.facts, self.groups, self.now_unix_ns, self.policy = facts, groups, now_unix_ns, policy
        self.on_nccl = {group.name for group in groups if "nccl" in group.backend}
        self._stages: list[frozenset[int]] | None = None

    def is_staged(self, group: Group) -> bool:
        """Whether two members hand each other their work by send and recv.

        Stages of a pipeline wait for each other by design.
        """
        if self._stages is None:
            named = {
                progress.group
                for rank in self.facts.values()
                for progress in rank.comm.groups
                if sends(rank, progress.group, self.policy)
            }
            self._stages = [frozenset(stage.ranks) for stage in self.groups if stage.name in named]
        return any(len(stage.intersection(group.ranks)) > 1 for stage in self._stages)


def _late_gpus(busy: Mapping[int, Device], work: _Work) -> list[GpuLate]:
    policy = work.policy
    found: list[GpuLate] = []
    seen: set[int] = set()
    for group in sorted(work.groups, key=lambda each: -len(each.ranks)):
        if group.name not in work.on_nccl:
            continue
        known = {rank: busy[rank] for rank in group.ranks if rank in busy}
        limits = policy.of(GpuWait)
        if len(known) < max(limits.members, limits.told_ratio * len(group.ranks)):
            continue
        if _are_alike(known.values(), policy):
            continue
        members = [
            gpu
            for rank, device in known.items()
            if (gpu := _gpu_of(rank, device, policy)) is not None
        ]
        if len(members) < len(known):
            continue
        late = _by_power(members, policy) or _by_clock(members, work.now_unix_ns, policy)
        if late is None or not seen.isdisjoint(one.rank for one in late[0]):
            continue
        if _compares(group, members, work):
            found.append(_late_of(group, late, policy))
            seen |= set(found[-1].ranks)
    return found


def _gpu_of(rank: int, device: Device, policy: Policy) -> _Gpu | None:
    """None for a GPU that was not busy in all spans, or was not measured in all of them."""
    for span in device.spans:
        if (
            span.util_ratio is None
            or span.util_ratio < policy.gpu_wait_busy_ratio
            or not span.sm_mhz
        ):
            return None
    watts = tuple([span.power_watts or 0.0 for span in device.spans])
    return _Gpu(rank, device, watts, tuple([span.sm_mhz or 0.0 for span in device.spans]))


_Split = tuple[list[_Gpu], list[_Gpu]]
"""(stragglers, GPUs that wait)"""


def _by_power(members: Sequence[_Gpu], policy: Policy) -> _Split | None:
    """A few compute in each span, while all others draw what a waiting kernel draws."""
    ordered = sorted(members, key=lambda gpu: gpu.watts[-1])
    usual, most = ordered[len(ordered) // 2].watts[-1], ordered[-1].watts[-1]
    # Also true if all of them report 0 W.
    if usual >= policy.gpu_wait_power_ratio * most:
        return None
    split = max(
        range(len(ordered) // 2 + 1, len(ordered)),
        key=lambda at: ordered[at].watts[-1] / (ordered[at - 1].watts[-1] or 1),
    )
    late, others = ordered[split:], ordered[:split]
    for at in range(SPANS):
        if _largest([gpu.watts[at] for gpu in others], policy) > policy.gpu_wait_power_ratio * min(
            gpu.watts[at] for gpu in late
        ):
            return None
    caps = [gpu.device.gpu.power_cap_watts for gpu in others]
    if any(
        cap and gpu.watts[-1] > policy.gpu_wait_cap_ratio * cap
        for gpu, cap in zip(others, caps, strict=True)
    ):
        return None
    return late, others


def _by_clock(members: Sequence[_Gpu], now_unix_ns: int, policy: Policy) -> _Split | None:
    """A few have been at low clocks for long, and all others draw less than they have drawn."""
    usual = median([gpu.mhz[-1] for gpu in members])
    late = [gpu for gpu in members if gpu.mhz[-1] < policy.gpu_slow_ratio * usual]
    if not late or 2 * len(late) >= len(members):
        return None
    slow = {gpu.rank for gpu in late}
    others = [gpu for gpu in members if gpu.rank not in slow]
    for at in range(SPANS):
        if max(gpu.mhz[at] for gpu in late) >= policy.gpu_slow_ratio * median(
            [gpu.mhz[at] for gpu in others]
        ):
            return None
    long_ns = int(SPANS * policy.gpu_mean_s * 1e9)
    for gpu in late:
        since, throttle = gpu.device.throttled_since_unix_ns, gpu.device.gpu.throttle or ()
        # Every GPU that has much to do runs at its power cap.
        if since is None or now_unix_ns - since < long_ns or set(throttle) <= {"sw_power_cap"}:
            return None
    below = [
        gpu.watts[at] / gpu.device.power_peak_watts
        for gpu in others
        for at in range(SPANS)
        if gpu.device.power_peak_watts
    ]
    if not below or _largest(below, policy) > policy.of(GpuWait).below_peak_ratio:
        return None
    return late, others


def _largest(values: Sequence[float], policy: Policy) -> float:
    """The largest value. Of many values the few largest are left out."""
    return sorted(values)[round(policy.of(GpuWait).most_ratio * (len(values) - 1))]


def _compares(group: Group, members: Sequence[_Gpu], work: _Work) -> bool:
    """Whether they do the same work.

    They have equal GPUs, make the same steps over all spans, and communicate mostly with each
    other."""
    limits, now = work.policy.of(GpuWait), work.now_unix_ns
    if len({gpu.kind for gpu in members}) > 1:
        return False
    for gpu in members:
        rank = work.facts[gpu.rank]
        if (
            rank.gone
            or rank.agent.unheard
            or rank.late is not None
            or rank.reported.phase != "running"
        ):
            return False
        if now - (rank.reported.phase_since_unix_ns or now) < limits.job_s * 1e9:
            return False
        if not _moves(gpu, limits) or _busiest_group(rank, work.on_nccl) != group.name:
            return False
    steps = [
        (gpu.device.spans[-1].done.steps or 0) - (gpu.device.spans[0].done.steps or 0)
        for gpu in members
    ]
    most_apart = 1 + limits.steps_ratio * max(steps)
    return max(steps) - min(steps) <= most_apart and not work.is_staged(group)


def _moves(gpu: _Gpu, limits: GpuWait) -> bool:
    """Whether it makes steps and enqueues collectives in each span, so that it neither evaluates
    nor saves for long."""
    done = [span.done for span in gpu.device.spans]
    first, last = done[0].steps, done[-1].steps
    if first is None or last is None or last - first < limits.steps:
        return False
    return all(after.calls - before.calls >= limits.calls for before, after in pairwise(done))


def _busiest_group(rank: RankFields, on_nccl: Collection[str]) -> str | None:
    """The group in which it has enqueued most."""
    counts = {group.group: group.enqueued for group in rank.comm.groups if group.group in on_nccl}
    return max(counts, key=lambda name: counts[name], default=None)


def _late_of(group: Group, split: _Split, policy: Policy) -> GpuLate:
    late, others = split
    watts, theirs = (
        fmean([fmean(gpu.watts) for gpu in late]),
        median([fmean(gpu.watts) for gpu in others]),
    )
    return GpuLate(
        group=group.name,
        ranks=tuple(sorted(gpu.rank for gpu in late)),
        waiters=tuple(sorted(gpu.rank for gpu in others)),
        power_watts=watts,
        others_watts=theirs,
        sm_mhz=median([fmean(gpu.mhz) for gpu in late]),
        others_mhz=median([fmean(gpu.mhz) for gpu in others]),
        seconds=SPANS * policy.gpu_mean_s,
        others_there=any(
            large_processes(gpu.device.foreign, gpu.device.gpu, policy) for gpu in late
        ),
    )
