"""Whose GPU is a straggler on NCCL: it computes while the others are busy at little power.

On NCCL the host runs ahead of its GPU. If every rank waits for its GPU at each step
(`loss.item()`), all hosts move together, and no arrival time shows the slow GPU. It shows in the
power that the GPUs draw: an NCCL kernel that waits keeps a GPU as busy as one that computes, at a
fraction of the power.

Power has many reasons. So only GPUs of one kind are compared, of ranks that exchange most with each
other and make the same steps. The same has to be true in several spans, and the difference has to
be larger than between any two equal GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from ddtop.model.gpus.owners import large
from ddtop.model.state.facts import RankFields, State
from ddtop.model.state.gpu_facts import Device
from ddtop.model.state.gpu_memory import SPANS
from ddtop.model.state.straggler_facts import GpuLate
from ddtop.model.stragglers.straggler import sends
from ddtop.policy import Policy
from ddtop.wire.records import Group


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


def mark_late(
    facts: dict[int, RankFields],
    groups: Iterable[Group],
    devices: Iterable[Device],
    now_unix_ns: int,
    policy: Policy,
) -> None:
    """Mark the ranks whose GPUs are stragglers in `facts`."""
    busy = _busy(devices, facts, now_unix_ns, policy)
    if not busy or _are_alike(busy.values(), policy):
        return
    for late in _found(busy, _Work(facts, list(groups), now_unix_ns, policy)):
        for rank in late.ranks:
            one = facts[rank]
            one.gpu_late = late
            if one.state in (State.RUNNING, State.WAITING) and not late.others_there:
                one.state = State.STRAGGLER


def _busy(
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
                one.group
                for rank in self.facts.values()
                for one in rank.comm.groups
                if sends(rank, one.group, self.policy)
            }
            self._stages = [frozenset(one.ranks) for one in self.groups if one.name in named]
        return any(len(stage.intersection(group.ranks)) > 1 for stage in self._stages)


def _found(busy: Mapping[int, Device], work: _Work) -> list[GpuLate]:
    policy = work.policy
    found: list[GpuLate] = []
    seen: set[int] = set()
    for group in sorted(work.groups, key=lambda one: -len(one.ranks)):
        if group.name not in work.on_nccl:
            continue
        known = {rank: busy[rank] for rank in group.ranks if rank in busy}
        if len(known) < max(policy.gpu_wait_members, policy.gpu_wait_told_ratio * len(group.ranks)):
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
    ordered = sorted(members, key=lambda one: one.watts[-1])
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
        if _most([one.watts[at] for one in others], policy) > policy.gpu_wait_power_ratio * min(
            one.watts[at] for one in late
        ):
            return None
    caps = [one.device.gpu.power_cap_watts for one in others]
    if any(
        cap and one.watts[-1] > policy.gpu_wait_cap_ratio * cap
        for one, cap in zip(others, caps, strict=True)
    ):
        return None
    return late, others


def _by_clock(members: Sequence[_Gpu], now_unix_ns: int, policy: Policy) -> _Split | None:
    """A few have been at low clocks for long, and all others draw less than they have drawn."""
    usual = median([one.mhz[-1] for one in members])
    late = [one for one in members if one.mhz[-1] < policy.gpu_slow_ratio * usual]
    if not late or 2 * len(late) >= len(members):
        return None
    slow = {one.rank for one in late}
    others = [one for one in members if one.rank not in slow]
    for at in range(SPANS):
        if max(one.mhz[at] for one in late) >= policy.gpu_slow_ratio * median(
            [one.mhz[at] for one in others]
        ):
            return None
    long_ns = int(SPANS * policy.gpu_mean_s * 1e9)
    for one in late:
        since, throttle = one.device.throttled_since_unix_ns, one.device.gpu.throttle or ()
        # Every GPU that has much to do runs at its power cap.
        if since is None or now_unix_ns - since < long_ns or set(throttle) <= {"sw_power_cap"}:
            return None
    below = [
        one.watts[at] / one.device.power_peak_watts
        for one in others
        for at in range(SPANS)
        if one.device.power_peak_watts
    ]
    if not below or _most(below, policy) > policy.gpu_wait_below_peak_ratio:
        return None
    return late, others


def _most(values: Sequence[float], policy: Policy) -> float:
    """The largest value. Of many values the few largest are left out."""
    return sorted(values)[round(policy.gpu_wait_most_ratio * (len(values) - 1))]


def _compares(group: Group, members: Sequence[_Gpu], work: _Work) -> bool:
    """Whether they do the same work.

    They have equal GPUs, make the same steps over all spans, and communicate mostly with each
    other."""
    policy, now = work.policy, work.now_unix_ns
    if len({one.kind for one in members}) > 1:
        return False
    for one in members:
        rank = work.facts[one.rank]
        if (
            rank.gone
            or rank.agent.unheard
            or rank.late is not None
            or rank.reported.phase != "running"
        ):
            return False
        if now - (rank.reported.phase_since_unix_ns or now) < policy.gpu_wait_job_s * 1e9:
            return False
        if not _moves(one, policy) or _busiest(rank, work.on_nccl) != group.name:
            return False
    steps = [
        (one.device.spans[-1].done.steps or 0) - (one.device.spans[0].done.steps or 0)
        for one in members
    ]
    most_apart = 1 + policy.gpu_wait_steps_ratio * max(steps)
    return max(steps) - min(steps) <= most_apart and not work.is_staged(group)


def _moves(gpu: _Gpu, policy: Policy) -> bool:
    """Whether it makes steps and enqueues collectives in each span, so that it neither evaluates
    nor saves for long."""
    done = [span.done for span in gpu.device.spans]
    first, last = done[0].steps, done[-1].steps
    if first is None or last is None or last - first < policy.gpu_wait_steps:
        return False
    return all(
        after.calls - before.calls >= policy.gpu_wait_calls for before, after in pairwise(done)
    )


def _busiest(rank: RankFields, on_nccl: Collection[str]) -> str | None:
    """The group in which it has enqueued most."""
    counts = {one.group: one.enqueued for one in rank.comm.groups if one.group in on_nccl}
    return max(counts, key=lambda name: counts[name], default=None)


def _late_of(group: Group, split: _Split, policy: Policy) -> GpuLate:
    late, others = split
    watts, theirs = (
        fmean([fmean(one.watts) for one in late]),
        median([fmean(one.watts) for one in others]),
    )
    return GpuLate(
        group=group.name,
        ranks=tuple(sorted(one.rank for one in late)),
        waiters=tuple(sorted(one.rank for one in others)),
        power_watts=watts,
        others_watts=theirs,
        sm_mhz=median([fmean(one.mhz) for one in late]),
        others_mhz=median([fmean(one.mhz) for one in others]),
        seconds=SPANS * policy.gpu_mean_s,
        others_there=any(large(one.device.foreign, one.device.gpu, policy) for one in late),
    )
