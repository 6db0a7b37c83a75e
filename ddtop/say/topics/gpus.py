"""What is said of GPUs, of the processes that hold them, and of what ranks use them with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from ddtop.diagnosis.gpus import (
    device_of,
    free_gpus,
    has_mixed_models,
    lasting_strangers,
    strangers,
)
from ddtop.diagnosis.rules.gpus import (
    HARDWARE,
    Broken,
    GpuLow,
    GpuThrottled,
    InUse,
    RefusedGpu,
    Unavailable,
    gpu_late,
)
from ddtop.model.errors import Says
from ddtop.model.facts import Device, RankFacts
from ddtop.model.gpus import VISIBLE
from ddtop.say.evidence import ONE_GPU_EACH
from ddtop.say.said import (
    Around,
    Context,
    Finding,
    Kind,
    Said,
    Writer,
    age_text,
    size,
    that_hold,
    waits_text,
)
from ddtop.wire.records import AMD, Gpu, GpuProcess
from ddtop.words.sentences import quoted, rank_list, ranks_text, verb

RANKS_MOST, XIDS_MOST, PIDS_MOST = 4, 4, 4

COOL = "check its cooling and power ({cooling}); restart the job without that host"

# -- GPUs and processes, as a sentence names them


_THROTTLES = {
    "hw_thermal": "heat",
    "sw_thermal": "heat",
    "hw_power_brake": "the power brake",
    "hw_slowdown": "the hardware",
    "sw_power_cap": "its power cap",
}


def gpu_text(device: Device) -> str:
    """`GPU 3 of node0`."""
    return (
        f"{'a MIG instance of ' if device.gpu.parent else ''}GPU {device.gpu.index} of"
        f" {device.host}"
    )


COOLING, CLOCKS, HEALTH = "cooling", "clocks", "health"
_COMMANDS = {
    COOLING: (
        "amd-smi metric --power --temperature --clock --gpu {}",
        "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER -i {}",
    ),
    CLOCKS: (
        "amd-smi metric --clock --power --ecc --gpu {}",
        "nvidia-smi -q -d CLOCK,PERFORMANCE,ECC -i {}",
    ),
    HEALTH: (
        "dmesg | grep -i amdgpu, and reset or drain the GPU: amd-smi metric --ecc --gpu {}",
        "dmesg | grep -i xid, and reset or drain the GPU: nvidia-smi -q -i {}",
    ),
}
"""What shows why a GPU's clocks are low, how it compares with others, its driver's errors; of AMD
and of NVIDIA."""


def command(what: str, gpu: Gpu) -> str:
    """The command that shows this of a GPU."""
    amd, nvidia = _COMMANDS[what]
    return (amd if gpu.vendor == AMD else nvidia).format(gpu.index)


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


def _memory_lines(rank: RankFacts, device: Device | None) -> list[str]:
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
    return ["; ".join(parts)] if parts else []


def why_held(gpu: Gpu) -> str:
    """What lowers its clocks, such as `heat`; empty if nothing does."""
    return " and ".join(
        dict.fromkeys(_THROTTLES[word] for word in gpu.throttle or () if word in _THROTTLES)
    )


def free_text(gpus: Iterable[Gpu]) -> str:
    """`GPUs 5,6 are free`, or that no GPU is."""
    numbers = sorted({gpu.index for gpu in gpus})
    if not numbers:
        return "no GPU of that host is free"
    return (
        f"GPU {numbers[0]} is free" if len(numbers) == 1 else f"GPUs {rank_list(numbers)} are free"
    )


# -- A rank that crashed because of its GPU


def refused(finding: Finding, _: RefusedGpu, __: Context, inner: Said) -> Said:
    """Which ranks are on one GPU."""
    ranks = finding.ranks
    what = "is on the GPU of another rank" if len(ranks) == 1 else "are on the same GPU"
    summary = f"{ranks_text(ranks)} {what}, and NCCL refuses this"
    return Said(summary, inner.evidence, ONE_GPU_EACH)


_UNAVAILABLE = {
    Says.GPU_MEMORY: ("rank {rank} found too little free memory on its GPU", ""),
    Says.NO_SUCH_GPU: (
        "rank {rank} asked for a GPU that it does not have{visible}",
        "start at most as many ranks per host as it has visible GPUs, and use LOCAL_RANK, not RANK,"
        " in set_device",
    ),
    Says.GPU_BUSY: ("rank {rank} could not use its GPU: it is in use{exclusive}", ""),
    Says.NO_GPU: (
        "rank {rank} finds no GPU: {text}",
        "check nvidia-smi on its host, CUDA_VISIBLE_DEVICES, --gpus of the container, --gres of the"
        " job, and that torch is built with CUDA",
    ),
}
_NO_AMD_GPU = (
    "check amd-smi on its host, HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, --device=/dev/kfd and"
    " /dev/dri of the container, --gres of the job, and that torch is built with ROCm"
)
_WHO_HOLDS_THEM = (
    "run ddtop gpus on its host to see which processes hold the GPUs; nvidia-smi -q -d COMPUTE"
    " shows the compute mode of NVIDIA GPUs"
)
_OWN_MEMORY = (
    "the rank itself uses the memory: try a smaller batch, activation checkpointing, or"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True if much more is reserved than allocated"
)


def unavailable(finding: Finding, seen: Unavailable, at: Context, inner: Said) -> Said:
    """Why a rank could not use its GPU, who holds it, and which are free."""
    rank = at.snapshot.rank(finding.ranks[0])
    device = device_of(rank, at.snapshot)
    if finding.kind == Kind.RANK_CRASHED:
        evidence = (*inner.evidence, *_memory_lines(rank, device))
        return inner._replace(evidence=evidence, advice=_OWN_MEMORY)
    text = rank.reported.exception.text if rank.reported.exception is not None else ""
    exclusive = device is not None and device.gpu.exclusive
    summary, advice = _UNAVAILABLE[seen.why]
    summary = summary.format(
        rank=rank.rank,
        text=text[:80],
        visible=_visible_text(rank),
        exclusive=" (exclusive mode: one process only)" if exclusive else "",
    )
    amd = "HIP" in text or "ROCm" in text or (device is not None and device.gpu.vendor == AMD)
    if seen.why is Says.NO_GPU and amd:
        advice = _NO_AMD_GPU
    lines = [
        "it is not known which process holds the GPU: ddtop has no data from the driver of that"
        " host"
    ]
    if device is not None:
        held, steps = _held_text(rank, device, at)
        summary, advice = f"{summary}{held}", advice or steps
        lines = _memory_lines(rank, device)
    others = inner.others if seen.finding.victims else ""
    return Said(summary, (*inner.evidence, *lines), advice or _WHO_HOLDS_THEM, others)


def _held_text(rank: RankFacts, device: Device, at: Context) -> tuple[str, str]:
    """Who holds the GPU of this rank, and what to do."""
    others, free = device.foreign, free_gpus(rank.host, at.snapshot, at.policy)
    # The context of a display server or a notebook keeps no rank out, except in exclusive mode.
    if not device.gpu.exclusive:
        others = strangers(device, at.policy) or tuple(
            process for process in others if process.used_bytes is None
        )
    ours = [number for number in device.ranks if number != rank.rank]
    held = [f"by {holders_text(others)}"] if others else []
    held += [f"by rank {number} of this job" for number in ours[:2]]
    text = f"; {gpu_text(device)} is held {' and '.join(held)}" if held else ""
    pids = " ".join(str(process.pid) for process in others[:PIDS_MOST])
    amd = any(gpu.vendor == AMD for gpu in free)
    ordered = not amd and has_mixed_models(rank.host, at.snapshot)
    order = "CUDA_DEVICE_ORDER=PCI_BUS_ID " if ordered else ""
    numbers = ",".join(str(gpu.index) for gpu in free)
    visible = f"{order}{'HIP' if amd else 'CUDA'}_VISIBLE_DEVICES={numbers}"
    steps = that_hold(
        (free, f"start it on a free one: {visible}"),
        (pids, f"or end the process that holds it, if it is yours: kill {pids}"),
        (ours, "give each rank its own: torch.cuda.set_device(LOCAL_RANK)"),
    )
    return f"{text}; {free_text(free)}", "; ".join(steps).removeprefix("or ")


def _visible_text(rank: RankFacts) -> str:
    hello = rank.hello
    environment = hello.environment if hello is not None else {}
    local = hello.local_rank if hello is not None else None
    named = [f"{name}={seen}" for name in VISIBLE if (seen := environment.get(name)) is not None]
    parts = [*that_hold((local is not None, f"local rank {local}")), *named]
    return f": {', '.join(parts)}" if parts else ""


# -- `gpu-error`


def broken(finding: Finding, seen: Broken, _: Context) -> Said:
    """How a GPU has failed."""
    device, xids = seen
    gpu, hard = device.gpu, [xid for xid in xids if xid.code in HARDWARE]
    code = (hard or xids)[-1].code if xids else 0
    errors = verb(device.ecc_new, "error", "errors")
    what = that_hold(
        (gpu.lost, "no longer answers"),
        (hard, f"has failed: Xid {code}, {HARDWARE.get(code)}"),
        (
            device.ecc_new,
            f"has {device.ecc_new} uncorrectable memory {errors} since this job began",
        ),
        (xids, f"reports Xid {code}"),
        (gpu.vendor == AMD, "has a page of memory that could not be retired"),
        (True, "has a memory row that could not be replaced"),
    )
    summary = f"{gpu_text(device)} ({ranks_text(finding.ranks)}) {what[0]}"
    if finding.victims:
        summary += f"; {waits_text(finding.victims)} for {verb(finding.ranks, 'it', 'them')}"
    return Said(
        summary,
        tuple(
            f"Xid {xid.code}: {HARDWARE.get(xid.code, 'see the NVIDIA Xid list')}"
            for xid in xids[-XIDS_MOST:]
        ),
        f"take {quoted(device.host)} out of the job; check {command(HEALTH, gpu)}",
    )


# -- `gpu-shared`, `gpu-busy`, `gpu-memory-low` and `gpu-throttled`


def in_use(finding: Finding, seen: InUse, at: Context) -> Said:
    """What makes a GPU slower than it could be."""
    return _IN_USE[finding.kind](finding, seen, at)


def _shared(finding: Finding, seen: InUse, at: Context) -> Said:
    free = free_gpus(seen.device.host, at.snapshot, at.policy)
    return Said(
        f"{ranks_text(finding.ranks)} share {gpu_text(seen.device)}; {free_text(free)}",
        _memory_of(finding, seen, at),
        ONE_GPU_EACH
        if free
        else "there are more ranks than GPUs: start fewer (--nproc-per-node), or limit each rank:"
        " torch.cuda.set_per_process_memory_fraction(0.4)",
    )


def _busy(finding: Finding, seen: InUse, at: Context) -> Said:
    others = lasting_strangers(seen.device, at.policy)
    summary, lines = f"is also used by other processes: {holders_text(others)}", list[str]()
    late = gpu_late(finding.ranks, at.snapshot)
    if late is not None:
        ratio = late.others_watts / late.power_watts if late.power_watts else 0.0
        summary += f"; {waits_text(late.waiters)} for it in NCCL"
        lines.append(
            f"the GPUs of {ranks_text(late.waiters)} are 100% busy at {ratio:.0%} of its power, for"
            f" {late.seconds:.0f} s"
        )
    pids = " ".join(str(other.pid) for other in others[:PIDS_MOST])
    return Said(
        f"{gpu_text(seen.device)} ({ranks_text(finding.ranks)}) {summary}",
        (*_memory_of(finding, seen, at), *lines),
        f"end them if they are yours: kill {pids}; else use another GPU:"
        f" {free_text(free_gpus(seen.device.host, at.snapshot, at.policy))}",
    )


def _low(finding: Finding, seen: InUse, at: Context) -> Said:
    device, ranks = seen.device, finding.ranks
    cudas = [cuda for rank in ranks if (cuda := at.snapshot.rank(rank).gpu.cuda) is not None]
    reserved = sum(cuda.reserved_bytes or 0 for cuda in cudas)
    spare = reserved - sum(cuda.allocated_bytes or 0 for cuda in cudas)
    others = lasting_strangers(device, at.policy)
    held = size(sum(other.used_bytes or 0 for other in others))
    advice = that_hold(
        (others, f"other processes hold {held} of it: {quoted(holders_text(others))}"),
        (
            len(ranks) > 1,
            f"limit each of {ranks_text(ranks)}:"
            f" torch.cuda.set_per_process_memory_fraction({0.9 / len(ranks):.2f})",
        ),
        (
            reserved and spare > at.policy.of(GpuLow).spare_ratio * reserved,
            f"{size(spare)} is reserved but not in use: try"
            " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ),
        (
            True,
            "use a smaller batch, activation checkpointing or a sharded model: the next larger"
            " batch may run out of memory",
        ),
    )
    total, retried = device.gpu.total_bytes or 0, device.refused_lately
    text = (
        f"{gpu_text(device)} ({ranks_text(ranks)}) is nearly full:"
        f" {size(total - (device.gpu.used_bytes or 0))} of {size(total)} left"
    )
    if retried:
        allocations = verb(retried, "allocation", "allocations")
        text += f", {retried:,} torch {allocations} had to be retried recently"
    return Said(text, _memory_of(finding, seen, at), advice[0])


def _throttled(finding: Finding, seen: InUse, at: Context) -> Said:
    device, gpu = seen.device, seen.device.gpu
    against = "the job's other GPUs of this model run" if seen.usual_mhz else "it could run"
    heat = f"{gpu.celsius} C, " if gpu.celsius is not None else ""
    cap = f" of {gpu.power_cap_watts:.0f}" if gpu.power_cap_watts else ""
    watts = f"{gpu.power_watts:.0f}{cap} W, " if gpu.power_watts is not None else ""
    usual_mhz = seen.usual_mhz or gpu.sm_max_mhz or 0
    stands = age_text(at, device.throttled_since_unix_ns or 0)
    return Said(
        f"{gpu_text(device)} ({ranks_text(finding.ranks)}) is held at {gpu.sm_mhz} MHz by"
        f" {why_held(gpu) or 'its driver'}; {against} at {usual_mhz:.0f}",
        (*_cost_lines(finding.ranks, at), f"{heat}{watts}for {stands}"),
        COOL.format(cooling=command(COOLING, gpu)),
    )


_IN_USE: dict[Kind, Writer] = {
    Kind.GPU_SHARED: _shared,
    Kind.GPU_BUSY: _busy,
    Kind.GPU_MEMORY_LOW: _low,
    Kind.GPU_THROTTLED: _throttled,
}


def _cost_lines(ranks: tuple[int, ...], at: Context) -> tuple[str, ...]:
    """The cost for the job: the present steps of these ranks, compared with their shortest ones."""
    steps = [
        (progress.step_ms, progress.step_best_ms)
        for progress in (at.snapshot.rank(rank).progress for rank in ranks)
        if progress.step_ms and progress.step_best_ms
    ]
    if not steps:
        return ()
    now, best = map(median, zip(*steps, strict=True))
    if now < at.policy.of(GpuThrottled).step_slower_factor * best:
        return ()
    return (
        f"a step takes {now:,.0f} ms; the shortest took {best:,.0f} ms ({1000 / now:.1f} it/s"
        f" instead of {1000 / best:.1f})",
    )


def _memory_of(finding: Finding, seen: InUse, at: Context) -> tuple[str, ...]:
    device, ranks = seen.device, finding.ranks
    lines = [
        line
        for rank in ranks[:RANKS_MOST]
        for line in _memory_lines(at.snapshot.rank(rank), device)
    ]
    if extra := [number for number in device.ranks if number not in ranks]:
        lines.append(
            f"{ranks_text(extra)} {verb(extra, 'has', 'have')} a context there too, but"
            f" {verb(extra, 'computes', 'compute')} on another GPU"
        )
    # The lines of ranks on one GPU are equal if torch has told nothing of the ranks.
    return tuple(dict.fromkeys(lines))


WRITERS: dict[type, Writer] = {Broken: broken, InUse: in_use}
AROUND: dict[type, Around] = {RefusedGpu: refused, Unavailable: unavailable}
