"""GPUs and the processes that hold them, as a sentence names them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddtop.launch import in_batch_job
from ddtop.model.facts import Device, RankFacts, Snapshot
from ddtop.model.gpus import VISIBLE, by_environment, large_processes, visible_gpus
from ddtop.policy import Policy
from ddtop.wire.records import AMD, Gpu, GpuProcess
from ddtop.words.sentences import rank_list


def size(value: int | None) -> str:
    """`31.0 GiB`."""
    if value is None:
        return "?"
    return f"{value / 2**30:.1f} GiB" if value >= 1 << 30 else f"{value / 2**20:.0f} MiB"


def gpu_text(device: Device) -> str:
    """`GPU 3 of node0`."""
    return (
        f"{'a MIG instance of ' if device.gpu.parent else ''}GPU {device.gpu.index} of"
        f" {device.host}"
    )


def cooling(gpu: Gpu) -> str:
    """The command that shows what lowers a GPU's clocks."""
    if gpu.vendor == AMD:
        return f"amd-smi metric --power --temperature --clock --gpu {gpu.index}"
    return f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {gpu.index}"


def clocks(gpu: Gpu) -> str:
    """The command that compares a GPU with others."""
    if gpu.vendor == AMD:
        return f"amd-smi metric --clock --power --ecc --gpu {gpu.index}"
    return f"nvidia-smi -q -d CLOCK,PERFORMANCE,ECC -i {gpu.index}"


def health(gpu: Gpu) -> str:
    """The advice that shows where to find the driver's errors about a GPU."""
    if gpu.vendor == AMD:
        return (
            "check dmesg | grep -i amdgpu, and reset or drain the GPU: amd-smi metric --ecc --gpu"
            f" {gpu.index}"
        )
    return f"check dmesg | grep -i xid, and reset or drain the GPU: nvidia-smi -q -i {gpu.index}"


def visible_name(gpus: Iterable[Gpu]) -> str:
    """The variable that selects these GPUs, with a second variable if the order of the driver needs
    one.
    """
    return "HIP_VISIBLE_DEVICES" if any(gpu.vendor == AMD for gpu in gpus) else _CUDA_VISIBLE


def holder_text(process: GpuProcess) -> str:
    """`pid 3310 (bob, python sample.py, 31.0 GiB)`."""
    parts = [
        process.user,
        process.command,
        size(process.used_bytes) if process.used_bytes is not None else None,
    ]
    known = ", ".join(part for part in parts if part)
    orphan = ", its parent has ended" if process.orphan and known else ""
    return f"pid {process.pid} ({known}{orphan})" if known else f"pid {process.pid}"


def holders_text(processes: Sequence[GpuProcess], most: int = 3) -> str:
    """The largest holders, and the number of the others."""
    ordered = sorted(processes, key=lambda process: -(process.used_bytes or 0))
    text = ", ".join(holder_text(process) for process in ordered[:most])
    return f"{text} and {len(ordered) - most} more" if len(ordered) > most else text


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


def memory_line(rank: RankFacts, device: Device | None) -> str | None:
    """`GPU 3 of node0: 79.1 GiB of 80.0 GiB used; rank 3 has 70.2 GiB allocated, 76.0 GiB reserved,
    12 allocations retried`.
    """
    parts = []
    if device is not None and device.gpu.used_bytes is not None:
        parts.append(
            f"{gpu_text(device)}: {size(device.gpu.used_bytes)} of {size(device.gpu.total_bytes)}"
            " used"
        )
    cuda = rank.gpu.cuda
    if cuda is not None and cuda.reserved_bytes is not None:
        text = (
            f"rank {rank.rank} has {size(cuda.allocated_bytes)} allocated,"
            f" {size(cuda.reserved_bytes)} reserved"
        )
        parts.append(text + (f", {cuda.retries:,} allocations retried" if cuda.retries else ""))
    return "; ".join(parts) or None


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


def why_held(gpu: Gpu) -> str:
    """What lowers its clocks, such as `heat`; empty if nothing does."""
    return " and ".join(dict.fromkeys(_WHY[word] for word in gpu.throttle or () if word in _WHY))


def held_by_more_than_load(gpu: Gpu) -> bool:
    """Whether heat or the hardware lowers the clocks, and not only the power cap."""
    return any(word in _WHY and word != "sw_power_cap" for word in gpu.throttle or ())


_CUDA_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MPS = "nvidia-cuda-mps"
_WHY = {
    "hw_thermal": "heat",
    "sw_thermal": "heat",
    "hw_power_brake": "the power brake",
    "hw_slowdown": "the hardware",
    "sw_power_cap": "its power cap",
}


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


def free_text(gpus: Iterable[Gpu]) -> str:
    """`GPUs 5,6 are free`, or that no GPU is."""
    numbers = sorted({gpu.index for gpu in gpus})
    if not numbers:
        return "no GPU of that host is free"
    return (
        f"GPU {numbers[0]} is free" if len(numbers) == 1 else f"GPUs {rank_list(numbers)} are free"
    )
