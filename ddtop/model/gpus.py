"""From the reports of the relays to one `Device` for each GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from msgspec import structs

from ddtop.model.facts import ENVIRONMENT, PROCESS, TORCH, Device, Own
from ddtop.model.gpu_memory import GPUS_MAX, GpuMemory, GpuReport, JobGpus, Load
from ddtop.model.memory import JobMemory, RankMemory
from ddtop.policy import Limits, Policy
from ddtop.wire.frames import host_of
from ddtop.wire.records import AMD, CudaState, Gpu, GpuProcess, Hello, HostState, RankState


@dataclass(frozen=True)
class GpuNumbers(Limits, of="gpu"):
    """Which numbers and processes of a GPU count."""

    fresh_s: float = 3.0
    """Numbers that repeat because the driver has not answered for this time are in no mean."""
    foreign_s: float = 10.0
    """A process on a GPU that is not known as the job's. The list of processes is read every five
    seconds and the children of a rank every few, so a process that came or went a moment ago may be
    one of them."""
    wait_pending_ratio: float = 0.5
    """Share of samples with an open collective. Below it, the program's own kernel draws little."""


# -- Which rank uses which GPU, from the ranks of a host and the GPUs that its relay reads


def own_gpu(hello: Hello, cuda: CudaState | None, gpus: Sequence[Gpu]) -> Own | None:
    """The rank's GPU among those of its host; None where it is not known."""
    if cuda is not None:
        uuid = bare_uuid(cuda.uuid) if cuda.uuid is not None else None
        for gpu in gpus:
            if bare_uuid(gpu.uuid) == uuid:
                return Own(gpu, TORCH, cuda.uuid)
        for gpu in gpus:
            if cuda.pci is not None and gpu.pci == cuda.pci and not gpu.mig:
                return Own(gpu, TORCH)
    held = [
        gpu for gpu in gpus if any(process.rank == hello.rank for process in gpu.processes or ())
    ]
    parents = {gpu.parent for gpu in held}
    held = [gpu for gpu in held if gpu.uuid not in parents]
    if len(held) == 1:
        return Own(held[0], PROCESS)
    if "nccl" not in (hello.backend or ""):
        return None
    guess = by_environment(hello, gpus)
    return Own(guess, ENVIRONMENT) if guess is not None else None


def without_numbers(gpu: Gpu) -> Gpu:
    """The GPU without its numbers: the driver has not answered for long, so they are old."""
    return Gpu(
        gpu.index,
        gpu.uuid,
        name=gpu.name,
        pci=gpu.pci,
        total_bytes=gpu.total_bytes,
        parent=gpu.parent,
        xids=gpu.xids,
    )


def refreshed(own: Own | None, gpus: Sequence[Gpu]) -> Own | None:
    """The GPU that was known before, with the newest numbers where there are any.

    A rank that once fails to report its GPU keeps it.
    """
    if own is None:
        return None
    now = next((gpu for gpu in gpus if gpu.uuid == own.gpu.uuid), None)
    return Own(now, own.by) if now is not None else own


VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that select GPUs. HIP reads the first like the second; ROCr, below HIP, the third."""


def by_environment(hello: Hello, gpus: Sequence[Gpu]) -> Gpu | None:
    """The GPU that CUDA_VISIBLE_DEVICES (or AMD's variables) and the local rank select, read as
    CUDA and HIP read them.
    """
    found = visible_gpus(hello.environment, gpus)
    if found is None:
        return None
    if len(found) == 1:
        return found[0]
    local = hello.local_rank
    return found[local] if local is not None and 0 <= local < len(found) else None


def visible_gpus(environment: Mapping[str, str], gpus: Sequence[Gpu]) -> list[Gpu] | None:
    """The GPUs that a program with this environment sees, in its order; None: not known.

    CUDA numbers the fastest GPU first and NVML numbers by PCI address. The two numberings agree
    only if all GPUs are of one model, or if CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    whole = [gpu for gpu in gpus if gpu.parent is None and not gpu.lost]
    if whole and all(gpu.vendor == AMD for gpu in whole):
        return _visible_to_hip(environment, whole)
    by_pci = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    same_order = len({gpu.name for gpu in whole}) <= 1 or by_pci
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return whole if same_order and not any(gpu.mig for gpu in whole) else None
    words = [word.strip() for word in text.split(",")]
    if words[0].startswith(("GPU-", "MIG-")):
        return _by_prefix(words, gpus)
    found = _by_number(words, whole)
    return found if same_order and not any(gpu.mig for gpu in found) else None


def _visible_to_hip(environment: Mapping[str, str], gpus: list[Gpu]) -> list[Gpu] | None:
    """The same for AMD: HIP's list selects among the GPUs that ROCr's list leaves.

    Source: ROCm, "GPU isolation techniques". ROCr and amdsmi are certain to use the same numbers
    only if all GPUs are of one model.
    """
    if len({gpu.name for gpu in gpus}) > 1:
        return None
    hip = environment.get("HIP_VISIBLE_DEVICES", environment.get("CUDA_VISIBLE_DEVICES"))
    for text in (environment.get("ROCR_VISIBLE_DEVICES"), hip):
        if text is None:
            continue
        words = [word.strip() for word in text.split(",")]
        by_name = words[0].startswith("GPU-")
        gpus = _by_prefix(words, gpus) if by_name else _by_number(words, gpus)
    return gpus


def _by_number(words: Iterable[str], whole: Sequence[Gpu]) -> list[Gpu]:
    gpus: list[Gpu] = []
    for word in words:
        # CUDA stops at the first word that is not a number, or not the number of a GPU.
        number = int(word) if word.isascii() and word.isdigit() and len(word) < 6 else -1
        if not 0 <= number < len(whole):
            break
        if whole[number] in gpus:
            return []
        gpus.append(whole[number])
    return gpus


def _by_prefix(words: Iterable[str], gpus: Sequence[Gpu]) -> list[Gpu]:
    found: list[Gpu] = []
    for word in words:
        fitting = [gpu for gpu in gpus if gpu.uuid.lower().startswith(word.lower())]
        # CUDA refuses a prefix that fits two GPUs, and the list ends there.
        if len(fitting) != 1:
            break
        if fitting[0] in found:
            return []
        found.append(fitting[0])
    return found


def bare_uuid(uuid: str) -> str:
    """The uuid in lower case without `GPU-` or `MIG-`, which torch leaves out."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def large_processes(
    processes: Iterable[GpuProcess], gpu: Gpu, policy: Policy
) -> tuple[GpuProcess, ...]:
    """The processes that hold a significant part of the GPU's memory.

    The context of a display server or of an idle notebook does not count.
    """
    least = policy.gpu_foreign_ratio * (gpu.total_bytes or 0)
    return tuple(
        [
            process
            for process in processes
            if process.used_bytes is not None and process.used_bytes >= least > 0
        ]
    )


# -- From the reports of the relays to one `Device` for each GPU


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
        kept = gpus.kept[sender] = {uuid: memory for uuid, memory in kept.items() if uuid in here}
    on: dict[str, list[int]] = {}
    for rank, own in owns.items():
        if own.certain:
            on.setdefault(own.gpu.uuid, []).append(rank)
    age_ms = host.gpu_watch.age_ms if host.gpu_watch is not None else None
    fresh = (age_ms or 0) <= policy.of(GpuNumbers).fresh_s * 1000
    for gpu in host.gpus:
        memory = kept.get(gpu.uuid)
        if memory is None:
            memory = kept[gpu.uuid] = GpuMemory()
        _remember(memory, gpu, at_unix_ns, pids)
        ranks_on_gpu = on.get(gpu.uuid)
        if ranks_on_gpu is not None and not gpu.mig:
            states_here = tuple([states.get(rank) for rank in ranks_on_gpu])
            if memory.load is None:
                memory.load = Load()
            if gpu.lost or (gpu.util_ratio is None and gpu.used_bytes is None):
                memory.load.silent()
            elif fresh:
                memory.load.add(at_unix_ns, gpu, states_here, policy)
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
    devices = gpus.devices.get(sender)
    if devices is None:
        kept, on = gpus.kept[sender], report.on
        made = [
            _device(report, gpu, on.get(gpu.uuid, ()), kept[gpu.uuid], policy)
            for gpu in report.gpus
        ]
        devices = gpus.devices[sender] = tuple(made)
    return devices


def _device(
    report: GpuReport, gpu: Gpu, ranks_on_gpu: Sequence[int], memory: GpuMemory, policy: Policy
) -> Device:
    ranks, complete, foreign = set(ranks_on_gpu), gpu.processes is not None, memory.strangers
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
        soon = report.at_unix_ns - int(policy.of(GpuNumbers).foreign_s * 1e9)
        new = tuple([pid for pid, came in memory.foreign.items() if came > soon])
    theirs_bytes = _sum(process.used_bytes for process in foreign) if foreign else 0
    load = memory.load if ranks_on_gpu else None
    alone = load if len(ranks) == 1 else None
    return Device(
        report.host,
        gpu,
        tuple(sorted(ranks)),
        foreign,
        ours_bytes if complete else None,
        theirs_bytes if complete else None,
        max(0, (gpu.ecc_uncorrected or 0) - (memory.ecc or 0)) if memory.ecc is not None else 0,
        memory.throttled_unix_ns,
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
    return _HELD_DOWN.isdisjoint(gpu.throttle or ()) and not large_processes(foreign, gpu, policy)


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


def _remember(memory: GpuMemory, gpu: Gpu, at: int, pids: Collection[int]) -> None:
    if memory.ecc is None:
        memory.ecc = gpu.ecc_uncorrected
    if not gpu.throttle or _HELD_DOWN.isdisjoint(gpu.throttle):
        memory.throttled_unix_ns = None
    elif memory.throttled_unix_ns is None:
        memory.throttled_unix_ns = at
    strangers = []
    for process in gpu.processes or ():
        known = process.rank is not None or process.ours or process.pid in pids
        if process.local and not known:
            strangers.append(process)
    if strangers or memory.strangers:
        since = memory.foreign
        memory.strangers = tuple(strangers)
        memory.foreign = {process.pid: since.get(process.pid, at) for process in strangers}


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


# -- How a relay's report about the GPUs of its host changes the model


def take_in(
    job: JobMemory, sender: str, host: HostState, at_unix_ns: int, here: Mapping[int, RankMemory]
) -> None:
    """Take in the GPUs of one report, and which of the host's ranks use them.

    `here`: the ranks that the report names.
    """
    owns: dict[int, Own] = {}
    watch = host.gpu_watch
    if watch is not None and (watch.age_ms or 0) > job.policy.gpu_silent_s * 1000:
        host = structs.replace(host, gpus=tuple(without_numbers(gpu) for gpu in host.gpus))
    by_uuid = {gpu.uuid: gpu for gpu in host.gpus}
    for rank, memory in here.items():
        cuda = memory.state.cuda if memory.state is not None else None
        own = memory.own = (
            _same_gpu(memory.own, cuda, by_uuid)
            or own_gpu(memory.hello, cuda, host.gpus)
            or refreshed(memory.own, host.gpus)
        )
        if own is not None:
            owns[rank] = own
    # The driver's list is some seconds old: a rank that has just ended is still on it.
    pids = {job.ranks[rank].hello.pid for rank in job.ranks_of.get(sender, ())}
    states = {rank: here[rank].state for rank in owns}
    take(job.gpus, host, owns, at_unix_ns, job.policy, states, sender, pids)


def _same_gpu(own: Own | None, cuda: CudaState | None, by_uuid: Mapping[str, Gpu]) -> Own | None:
    """The GPU that torch reported before and still reports. In nearly all cases this is enough."""
    if own is None or own.by != TORCH or own.uuid is None or cuda is None or cuda.uuid != own.uuid:
        return None
    now = by_uuid.get(own.gpu.uuid)
    return Own(now, TORCH, own.uuid) if now is not None else None


def own_devices(job: JobMemory, found: Mapping[str, tuple[Device, ...]]) -> dict[int, Device]:
    """The GPU of each rank that has one for itself, where it is known whether it works.

    Other ranks are left out.
    """
    own = {}
    for sender, devices in found.items():
        for device in devices:
            if device.waits is None and device.computes is None:
                continue
            memory = job.ranks.get(device.ranks[0])
            # The rank may have moved to another host since its host's last report.
            if memory is not None and memory.sender == sender and memory.own is not None:
                own[device.ranks[0]] = device
    return own


def may_wait(memory: RankMemory) -> bool:
    """Whether the rank uses NCCL and its process lives."""
    return memory.exit is None and "nccl" in (memory.hello.backend or "")


def waits_in_nccl(pending: bool, wait_ratio: float | None, policy: Policy) -> bool:
    """Whether a GPU that is busy at little power waits in an NCCL kernel.

    It waits if the rank's enqueued collectives have not completed, now or in most samples.
    Otherwise the low power comes from a kernel of the program.
    """
    return pending or (wait_ratio or 0.0) >= policy.of(GpuNumbers).wait_pending_ratio


def all_devices(found: Mapping[str, tuple[Device, ...]]) -> tuple[Device, ...]:
    """The GPUs of all hosts, each once.

    Two launchers on one host have one relay each, and to each relay the ranks of the other are
    processes outside the job.
    """
    by_host: dict[str, list[tuple[Device, ...]]] = {}
    for sender, devices in found.items():
        by_host.setdefault(host_of(sender), []).append(devices)
    if len(by_host) == len(found):
        return tuple([device for devices in found.values() for device in devices])
    return tuple(
        [
            part
            for parts in by_host.values()
            for part in (parts[0] if len(parts) == 1 else _each_once(parts))
        ]
    )


def _each_once(parts: Iterable[tuple[Device, ...]]) -> list[Device]:
    by_uuid: dict[str, list[Device]] = {}
    for devices in parts:
        for device in devices:
            by_uuid.setdefault(device.gpu.uuid, []).append(device)
    return [_merge(same) if len(same) > 1 else same[0] for same in by_uuid.values()]


def _merge(same: list[Device]) -> Device:
    """One GPU, from the reports of several relays: a process is outside the job if all of them say
    so."""
    ours = {
        process.pid: process
        for device in same
        for process in device.gpu.processes or ()
        if process.rank is not None or process.ours
    }
    first = max(same, key=lambda device: (len(device.ranks), len(device.spans)))
    foreign = tuple(process for process in first.foreign if process.pid not in ours)
    processes = first.gpu.processes
    if processes is not None:
        processes = tuple(ours.get(process.pid, process) for process in processes)
    moved = [process.used_bytes for process in first.foreign if process.pid in ours]
    known = first.ours_bytes is not None and first.foreign_bytes is not None and None not in moved
    theirs = sum(value or 0 for value in moved) if known else 0
    return structs.replace(
        first,
        gpu=structs.replace(first.gpu, processes=processes),
        ranks=tuple(sorted({rank for device in same for rank in device.ranks})),
        foreign=foreign,
        ours_bytes=(first.ours_bytes or 0) + theirs if known else first.ours_bytes,
        foreign_bytes=(first.foreign_bytes or 0) - theirs if known else first.foreign_bytes,
        ecc_new=max(device.ecc_new for device in same),
        refused_lately=sum(device.refused_lately for device in same),
    )
