"""From the reports of the relays to one `Device` for each GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from ddtop.model.gpus.owners import large
from ddtop.model.state.gpu_facts import Device, Own
from ddtop.model.state.gpu_memory import GPUS_MAX, GpuMemory, GpuReport, JobGpus, Load
from ddtop.policy import Policy
from ddtop.wire.gpu import AMD, Gpu, GpuProcess
from ddtop.wire.records import HostState, RankState

NO_REPORTS: Mapping[int, RankState | None] = MappingProxyType({})
_HELD_DOWN = frozenset(
    {"hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal", "sw_power_cap"}
)


def take(
    gpus: JobGpus,
    host: HostState,
    owns: Mapping[int, Own],
    at_unix_ns: int,
    policy: Policy,
    states: Mapping[int, RankState | None] = NO_REPORTS,
    sender: str = "",
    pids: Collection[int] = (),
) -> None:
    """Take in the GPUs of one host's report, with the ranks on them.

    `owns`: the GPU of each rank there, as far as it is known; `states`: the last report of each
    rank; `pids`: all processes that are or were ranks.
    """
    kept = gpus.kept.setdefault(sender, {})
    if len(kept) > GPUS_MAX:
        here = {gpu.uuid for gpu in host.gpus}
        kept = gpus.kept[sender] = {uuid: one for uuid, one in kept.items() if uuid in here}
    on: dict[str, list[int]] = {}
    for rank, own in owns.items():
        if own.certain:
            on.setdefault(own.gpu.uuid, []).append(rank)
    age_ms = host.gpu_watch.age_ms if host.gpu_watch is not None else None
    fresh = (age_ms or 0) <= policy.gpu_fresh_s * 1000
    for gpu in host.gpus:
        one = kept.get(gpu.uuid)
        if one is None:
            one = kept[gpu.uuid] = GpuMemory()
        _remember(one, gpu, at_unix_ns, pids)
        mine = on.get(gpu.uuid)
        if mine is not None and not gpu.mig:
            states_here = tuple([states.get(rank) for rank in mine])
            if one.load is None:
                one.load = Load()
            if gpu.lost or (gpu.util_ratio is None and gpu.used_bytes is None):
                one.load.silent()
            elif fresh:
                one.load.add(at_unix_ns, gpu, states_here, policy)
    gpus.reports[sender] = GpuReport(host.host, host.gpus, on, at_unix_ns)
    gpus.devices.pop(sender, None)


def devices_of(gpus: JobGpus, policy: Policy) -> dict[str, tuple[Device, ...]]:
    """The GPUs of all hosts according to their last reports, by relay."""
    return {
        sender: _devices_of_one(gpus, sender, report, policy)
        for sender, report in gpus.reports.items()
    }


def _devices_of_one(
    gpus: JobGpus, sender: str, report: GpuReport, policy: Policy
) -> tuple[Device, ...]:
    found = gpus.devices.get(sender)
    if found is None:
        kept, on = gpus.kept[sender], report.on
        made = [
            _device(report, gpu, on.get(gpu.uuid, ()), kept[gpu.uuid], policy)
            for gpu in report.gpus
        ]
        found = gpus.devices[sender] = tuple(made)
    return found


def _device(
    report: GpuReport, gpu: Gpu, mine: Sequence[int], one: GpuMemory, policy: Policy
) -> Device:
    ranks, complete, foreign = set(mine), gpu.processes is not None, one.strangers
    ours_bytes: int | None = 0
    for process in gpu.processes or ():
        if process.rank is not None:
            ranks.add(process.rank)
            if ours_bytes is not None:
                known = process.used_bytes is not None
                ours_bytes = ours_bytes + (process.used_bytes or 0) if known else None
        complete = complete and process.local
    new: tuple[int, ...] = ()
    if foreign:
        soon = report.at_unix_ns - int(policy.gpu_foreign_s * 1e9)
        new = tuple([pid for pid, came in one.foreign.items() if came > soon])
    theirs_bytes = _sum(process.used_bytes for process in foreign) if foreign else 0
    load = one.load if mine else None
    alone = load if len(ranks) == 1 else None
    return Device(
        report.host,
        gpu,
        tuple(sorted(ranks)),
        foreign,
        ours_bytes if complete else None,
        theirs_bytes if complete else None,
        max(0, (gpu.ecc_uncorrected or 0) - (one.ecc or 0)) if one.ecc is not None else 0,
        one.throttled_unix_ns,
        load.util_ratio if load is not None else None,
        load.power_watts if load is not None else None,
        load.peak_watts if load is not None else None,
        _waits(alone, gpu, foreign, policy) if alone is not None else None,
        load.refused_lately if load is not None else 0,
        new,
        load.spans if load is not None else (),
        _computes(alone, gpu, foreign, policy) if alone is not None else None,
    )


def _computes(load: Load, gpu: Gpu, foreign: Sequence[GpuProcess], policy: Policy) -> bool | None:
    power, peak, cap = gpu.power_watts, load.peak_watts, gpu.power_cap_watts
    if power is None or peak is None or not cap or not _power_is_work(gpu, foreign, policy):
        return None
    # An NCCL kernel that waits draws more than the small models that some people train.
    return power > max(policy.gpu_wait_power_ratio * peak, policy.gpu_wait_cap_ratio * cap)


def _power_is_work(gpu: Gpu, foreign: Sequence[GpuProcess], policy: Policy) -> bool:
    """Whether its power is that of its rank's work.

    At low clocks a GPU draws little power even while it computes, so the slowest GPU would look
    like one that waits. The power of an AMD GPU while RCCL waits has not been measured.
    """
    if gpu.vendor == AMD:
        return False
    return _HELD_DOWN.isdisjoint(gpu.throttle or ()) and not large(foreign, gpu, policy)


def _waits(load: Load, gpu: Gpu, foreign: Sequence[GpuProcess], policy: Policy) -> bool | None:
    """Whether it is busy all the time but draws little power; None if this is not known."""
    util, power, peak = load.util_ratio, load.power_watts, load.peak_watts
    if util is None or power is None or peak is None:
        return None
    if not _power_is_work(gpu, foreign, policy):
        return None
    if util < policy.gpu_wait_busy_ratio or power > policy.gpu_wait_power_ratio * peak:
        return False
    return not gpu.power_cap_watts or power <= policy.gpu_wait_cap_ratio * gpu.power_cap_watts


def _remember(one: GpuMemory, gpu: Gpu, at: int, pids: Collection[int]) -> None:
    if one.ecc is None:
        one.ecc = gpu.ecc_uncorrected
    if not gpu.throttle or _HELD_DOWN.isdisjoint(gpu.throttle):
        one.throttled_unix_ns = None
    elif one.throttled_unix_ns is None:
        one.throttled_unix_ns = at
    strangers = []
    for process in gpu.processes or ():
        known = process.rank is not None or process.ours or process.pid in pids
        if process.local and not known:
            strangers.append(process)
    if strangers or one.strangers:
        since = one.foreign
        one.strangers = tuple(strangers)
        one.foreign = {process.pid: since.get(process.pid, at) for process in strangers}


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
