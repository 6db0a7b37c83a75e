"""GPUs, the processes that hold them, and those that are free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddtop.launch import in_batch_job
from ddtop.model.facts import Device, RankFacts, Snapshot
from ddtop.model.gpus import VISIBLE, by_environment, large_processes, visible_gpus
from ddtop.policy import Policy
from ddtop.wire.records import Gpu, GpuProcess


def device_of(rank: RankFacts, snapshot: Snapshot) -> Device | None:
    """The GPU of the rank. If nothing better is known, a guess from its environment."""
    devices = [device for device in snapshot.devices if device.host == rank.host]
    if not devices or rank.hello is None:
        return None
    gpu = (
        rank.gpu.own.gpu
        if rank.gpu.own is not None
        else by_environment(rank.hello, [device.gpu for device in devices])
    )
    return next(
        (device for device in devices if gpu is not None and device.gpu.uuid == gpu.uuid), None
    )


def ranks_on(device: Device, snapshot: Snapshot) -> tuple[int, ...]:
    """The ranks that compute on this GPU. A rank that only has a context there does not count."""
    found = []
    for number in device.ranks:
        own = snapshot.rank(number).gpu.own
        if own is None or own.gpu.uuid == device.gpu.uuid:
            found.append(number)
    return tuple(found)


def ranks_of(device: Device, snapshot: Snapshot) -> tuple[int, ...]:
    """The ranks that fail with it: those whose own GPU it is, and those on its MIG instances."""
    parts = {
        rank.rank
        for rank in snapshot.ranks
        if rank.gpu.own is not None
        and rank.gpu.own.gpu.parent == device.gpu.uuid
        and rank.host == device.host
    }
    return tuple(sorted(parts.union(ranks_on(device, snapshot))))


def strangers(device: Device, policy: Policy) -> tuple[GpuProcess, ...]:
    """Processes outside the job that hold a large part of the GPU, except the MPS server."""
    return tuple(
        process
        for process in large_processes(device.foreign, device.gpu, policy)
        if _MPS not in (process.command or "")
    )


def lasting_strangers(device: Device, policy: Policy) -> tuple[GpuProcess, ...]:
    """The strangers that have been there for a while."""
    return tuple(
        process for process in strangers(device, policy) if process.pid not in device.foreign_new
    )


def shares_by_wish(device: Device, ranks: Iterable[int], snapshot: Snapshot) -> bool:
    """Whether NVIDIA's MPS serves this GPU: then several processes on it are intended."""
    if any(_MPS in (process.command or "") for process in device.gpu.processes or ()):
        return True
    hellos = [snapshot.rank(rank).hello for rank in ranks]
    return any(
        name.startswith("CUDA_MPS_")
        for hello in hellos
        if hello is not None
        for name in hello.environment
    )


def held_by_more_than_load(gpu: Gpu) -> bool:
    """Whether heat or the hardware lowers the clocks, and not only the power cap."""
    return not _BY_MORE.isdisjoint(gpu.throttle or ())


_MPS = "nvidia-cuda-mps"
_BY_MORE = frozenset({"hw_thermal", "sw_thermal", "hw_power_brake", "hw_slowdown"})


def free_gpus(host: str | None, snapshot: Snapshot, policy: Policy) -> tuple[Gpu, ...]:
    """GPUs of that host that no process uses and that the job may use."""
    devices = [device for device in snapshot.devices if device.host == host]
    free = [device.gpu for device in devices if _is_free(device, policy)]
    given = _given_gpus(host, snapshot, [device.gpu for device in devices]) if free else None
    return tuple(gpu for gpu in free if given is None or gpu.uuid in given)


def _given_gpus(host: str | None, snapshot: Snapshot, gpus: Sequence[Gpu]) -> set[str] | None:
    """The GPUs that the batch system has given to the job on that host. None: it may use any."""
    found: set[str] = set()
    for rank in snapshot.ranks:
        if rank.hello is None or rank.host != host:
            continue
        environment = rank.hello.environment
        given = any(name in environment for name in VISIBLE)
        if not given or not in_batch_job(environment):
            return None
        found |= {gpu.uuid for gpu in visible_gpus(environment, gpus) or ()}
    return found


def _is_free(device: Device, policy: Policy) -> bool:
    gpu = device.gpu
    if (
        device.ranks
        or gpu.lost
        or gpu.prohibited
        or gpu.mig
        or gpu.used_bytes is None
        or not gpu.total_bytes
    ):
        return False
    return gpu.used_bytes <= policy.gpu_foreign_ratio * gpu.total_bytes and not (
        gpu.exclusive and gpu.processes
    )


def has_mixed_models(host: str | None, snapshot: Snapshot) -> bool:
    """Whether the host has several GPU models. CUDA then numbers them in a different order than the
    driver, unless it is told not to."""
    return (
        len(
            {
                device.gpu.name
                for device in snapshot.devices
                if device.host == host and device.gpu.parent is None
            }
        )
        > 1
    )
