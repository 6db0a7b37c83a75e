"""How a relay's report about the GPUs of its host changes the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import structs

from ddtop.model.gpus.devices import take
from ddtop.model.gpus.owners import own_gpu, refreshed, without_numbers
from ddtop.model.state.gpu_facts import TORCH, Device, Own
from ddtop.model.state.memory import JobMemory, RankMemory
from ddtop.policy import Policy
from ddtop.wire.frames import host_of
from ddtop.wire.gpu import CudaState, Gpu, GpuProcess
from ddtop.wire.records import HostState


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
            _same(memory.own, cuda, by_uuid)
            or own_gpu(memory.hello, cuda, host.gpus)
            or refreshed(memory.own, host.gpus)
        )
        if own is not None:
            owns[rank] = own
    # The driver's list is some seconds old: a rank that has just ended is still on it.
    pids = {job.ranks[rank].hello.pid for rank in job.ranks_of.get(sender, ())}
    states = {rank: here[rank].state for rank in owns}
    take(job.gpus, host, owns, at_unix_ns, job.policy, states, sender, pids)


def _same(own: Own | None, cuda: CudaState | None, by_uuid: Mapping[str, Gpu]) -> Own | None:
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
    return pending or (wait_ratio or 0.0) >= policy.gpu_wait_pending_ratio


def all_devices(found: Mapping[str, tuple[Device, ...]]) -> tuple[Device, ...]:
    """The GPUs of all hosts, each once.

    Two launchers on one host have one relay each, and to each relay the ranks of the other are
    processes outside the job.
    """
    by_host: dict[str, list[tuple[Device, ...]]] = {}
    for sender, devices in found.items():
        by_host.setdefault(host_of(sender), []).append(devices)
    if len(by_host) == len(found):
        return tuple([one for devices in found.values() for one in devices])
    return tuple(
        [
            one
            for parts in by_host.values()
            for one in (parts[0] if len(parts) == 1 else _once(parts))
        ]
    )


def _once(parts: Iterable[tuple[Device, ...]]) -> list[Device]:
    by_uuid: dict[str, list[Device]] = {}
    for devices in parts:
        for one in devices:
            by_uuid.setdefault(one.gpu.uuid, []).append(one)
    return [_joined(same) if len(same) > 1 else same[0] for same in by_uuid.values()]


def _joined(same: list[Device]) -> Device:
    """One GPU, from the reports of several relays: a process is outside the job if all of them say
    so."""
    ours = {
        process.pid: process
        for one in same
        for process in one.gpu.processes or ()
        if _is_ours(process)
    }
    first = max(same, key=lambda one: (len(one.ranks), len(one.spans)))
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
        ranks=tuple(sorted({rank for one in same for rank in one.ranks})),
        foreign=foreign,
        ours_bytes=(first.ours_bytes or 0) + theirs if known else first.ours_bytes,
        foreign_bytes=(first.foreign_bytes or 0) - theirs if known else first.foreign_bytes,
        ecc_new=max(one.ecc_new for one in same),
        refused_lately=sum(one.refused_lately for one in same),
    )


def _is_ours(process: GpuProcess) -> bool:
    return process.rank is not None or process.ours
