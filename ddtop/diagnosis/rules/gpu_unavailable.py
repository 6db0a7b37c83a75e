"""`gpu-unavailable`: a rank could not use its GPU. The finding says which process uses it, and
which GPUs are free.

Torch raises an exception, which ends the rank. This rule adds the cause to the crash that
`departures` has found.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import CRITICAL, Finding
from ddtop.diagnosis.gpus import (
    device_of,
    free_gpus,
    free_text,
    gpu_text,
    holders_text,
    memory_line,
    mixed,
    strangers,
    visible_name,
)
from ddtop.diagnosis.kinds import Kind
from ddtop.model.gpus.owners import VISIBLE
from ddtop.model.state.facts import RankFacts, Snapshot
from ddtop.model.state.gpu_facts import Device
from ddtop.policy import Policy
from ddtop.wire.gpu import AMD

_BUSY = re.compile(r"devices?(\(s\))? (are|is|is/are) busy or unavailable", re.IGNORECASE)
_NONE = re.compile(
    r"no (CUDA|HIP) GPUs are available|found no NVIDIA driver|CUDA driver initialization failed|no"
    r" (CUDA|ROCm)-capable device|"
    r"system not yet initialized|CUDA unknown error",
    re.IGNORECASE,
)
_ORDINAL = re.compile(r"invalid device ordinal", re.IGNORECASE)
_MEMORY = re.compile(
    r"(CUDA|HIP) out of memory|(CUDA|HIP) error: out of memory|_STATUS_ALLOC_FAILED", re.IGNORECASE
)

_ADVICE = (
    "ddtop gpus on its host says who holds its GPUs; nvidia-smi -q -d COMPUTE says in which mode"
    " those of NVIDIA are"
)


def rule(context: Context) -> list[Finding]:
    """The crashes whose cause is a GPU, with that cause."""
    snapshot, policy = context.snapshot, context.policy
    crashes = [one for one in context.found if one.kind == Kind.RANK_CRASHED and one.ranks]
    explained = [(one, _with_cause(one, snapshot, policy)) for one in crashes]
    return [new for crash, new in explained if new is not crash]


def fold(context: Context, own: list[Finding]) -> list[Finding]:
    """All findings, without the crash, which is reported with its cause."""
    by_rank = {one.ranks: one for one in own}
    return [
        by_rank.get(one.ranks, one) if one.kind == Kind.RANK_CRASHED else one
        for one in context.found
    ]


def _with_cause(crash: Finding, snapshot: Snapshot, policy: Policy) -> Finding:
    rank = snapshot.rank(crash.ranks[0])
    text = rank.reported.exception.text if rank.reported.exception is not None else ""
    if not text:
        return crash
    device = device_of(rank, snapshot)
    if _MEMORY.search(text):
        return _of_memory(crash, rank, device, snapshot, policy)
    if _ORDINAL.search(text):
        why = f"rank {rank.rank} asked for a GPU that it does not have"
        seen = _visible(rank)
        if seen:
            why += f": {seen}"
        advice = (
            "give each host as many ranks as it has visible GPUs, and use LOCAL_RANK, not RANK,"
            " in set_device"
        )
        return _finding(crash, rank, device, snapshot, policy, why, advice)
    if _BUSY.search(text):
        why = f"rank {rank.rank} could not use its GPU: it is in use"
        if device is not None and device.gpu.exclusive:
            why += " (exclusive mode: one process only)"
        return _finding(crash, rank, device, snapshot, policy, why, "")
    if _NONE.search(text):
        why = f"rank {rank.rank} finds no GPU: {text[:80]}"
        advice = (
            "nvidia-smi on its host; CUDA_VISIBLE_DEVICES, --gpus of the container, --gres of the"
            " job; a torch built with CUDA"
        )
        if _is_of_amd(text, device):
            advice = (
                "amd-smi on its host; HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, --device=/dev/kfd"
                " and /dev/dri of the container, --gres of the job; a torch built with ROCm"
            )
        return _finding(crash, rank, device, snapshot, policy, why, advice)
    return crash


def _of_memory(
    crash: Finding, rank: RankFacts, device: Device | None, snapshot: Snapshot, policy: Policy
) -> Finding:
    others = strangers(device, policy) if device is not None else ()
    sharing = (
        [number for number in device.ranks if number != rank.rank] if device is not None else []
    )
    if others or (sharing and not rank.progress.iteration):
        why = f"rank {rank.rank} found too little free memory on its GPU"
        return _finding(crash, rank, device, snapshot, policy, why, "")
    # No other process uses the GPU, so the program itself needs too much memory: add the numbers.
    line = memory_line(rank, device)
    advice = (
        "it is the rank's own memory: a smaller batch, activation checkpointing, or"
        " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True where much more is reserved than"
        " allocated"
    )
    return replace(crash, evidence=(*crash.evidence, *([line] if line else [])), advice=advice)


def _finding(
    crash: Finding,
    rank: RankFacts,
    device: Device | None,
    snapshot: Snapshot,
    policy: Policy,
    why: str,
    advice: str,
) -> Finding:
    evidence = list(crash.evidence)
    free = free_gpus(rank.host, snapshot, policy)
    if device is not None:
        # The context of a display server or a notebook keeps no rank out, except in exclusive mode.
        others = device.foreign
        if not device.gpu.exclusive:
            others = strangers(device, policy) or tuple(
                one for one in others if one.used_bytes is None
            )
        ours = [number for number in device.ranks if number != rank.rank]
        held = [f"by {holders_text(others)}"] if others else []
        held += [f"by rank {number} of this job" for number in ours[:2]]
        if held:
            why += f"; {gpu_text(device)} is held {' and '.join(held)}"
        line = memory_line(rank, device)
        evidence += [line] if line else []
        why += f"; {free_text(free)}"
        pids = " ".join(str(one.pid) for one in others[:4])
        numbers = ",".join(str(gpu.index) for gpu in free)
        name = visible_name(free)
        cuda = name == "CUDA_VISIBLE_DEVICES"
        order = "CUDA_DEVICE_ORDER=PCI_BUS_ID " if cuda and mixed(rank.host, snapshot) else ""
        steps = [f"start it on a free one: {order}{name}={numbers}"] if free else []
        steps += [f"or end what holds it, if it is yours: kill {pids}"] if pids else []
        steps += ["give each rank its own: torch.cuda.set_device(LOCAL_RANK)"] if ours else []
        advice = advice or "; ".join(steps).removeprefix("or ")
    else:
        evidence.append(
            "who holds the GPU is not known: ddtop has no data from the driver of that host"
        )
    return replace(
        crash,
        kind=Kind.GPU_UNAVAILABLE,
        severity=CRITICAL,
        summary=why + _others(crash),
        evidence=tuple(evidence),
        advice=advice or _ADVICE,
    )


def _others(crash: Finding) -> str:
    """The part of the summary about the other ranks."""
    _, found, rest = crash.summary.partition("; ")
    return f"; {rest}" if found and crash.victims else ""


def _is_of_amd(text: str, device: Device | None) -> bool:
    return "HIP" in text or "ROCm" in text or (device is not None and device.gpu.vendor == AMD)


def _visible(rank: RankFacts) -> str:
    hello = rank.hello
    if hello is None:
        return ""
    parts = [f"local rank {hello.local_rank}"] if hello.local_rank is not None else []
    for name in VISIBLE:
        seen = hello.environment.get(name)
        parts += [f"{name}={seen}"] if seen is not None else []
    return ", ".join(parts)
