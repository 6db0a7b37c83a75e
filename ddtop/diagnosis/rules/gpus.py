"""Findings about GPUs: two ranks on one, its errors, ranks without one, and how it is used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from ddtop.diagnosis.evidence import ONE_GPU_EACH
from ddtop.diagnosis.finding import CRITICAL, WARNING, Context, Finding
from ddtop.diagnosis.gpus import (
    cooling,
    device_of,
    free_gpus,
    free_text,
    gpu_text,
    has_mixed_models,
    health,
    held_by_more_than_load,
    holders_text,
    lasting_strangers,
    memory_line,
    ranks_of,
    ranks_on,
    shares_by_wish,
    size,
    strangers,
    visible_name,
    why_held,
)
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.straggler_cause import OF_GPU, cause_of
from ddtop.model.facts import Device, RankFacts, Snapshot
from ddtop.model.gpus import VISIBLE
from ddtop.policy import Limits, Policy
from ddtop.wire.records import AMD
from ddtop.words.sentences import quoted, ranks_text, verb
from ddtop.words.units import duration

# -- `gpu-shared` if NCCL refuses it: two ranks are on one GPU, and a rank crashes


# Older versions of NCCL name two ranks, 2.30 names none. Source: the texts in libnccl.so.
_UNNAMED = "multiple ranks are using the same gpu"
_DUPLICATE = re.compile(
    r"duplicate GPU detected ?: ?rank (\d{1,7}) and rank (\d{1,7})", re.IGNORECASE
)


def gpu_duplicate(context: Context) -> list[Finding]:
    """At most one finding: the crash that names the two ranks."""
    for crash in context.found:
        if crash.kind != Kind.RANK_CRASHED or not crash.ranks:
            continue
        ranks = _ranks_named(context.snapshot, crash.ranks[0])
        if not ranks:
            continue
        victims = tuple(rank for rank in crash.victims if rank not in ranks)
        what = f"{ranks_text(ranks)} are on the same GPU"
        if len(ranks) == 1:
            what = f"{ranks_text(ranks)} is on the GPU of another rank"
        summary = f"{what}, and NCCL refuses this"
        changed = replace(
            crash, kind=Kind.GPU_SHARED, severity=CRITICAL, ranks=ranks, victims=victims
        )
        return [replace(changed, summary=summary, advice=ONE_GPU_EACH)]
    return []


def _ranks_named(snapshot: Snapshot, crashed: int) -> tuple[int, ...]:
    """The ranks on one GPU, from the exception of the rank that crashed; empty if it is another
    exception.
    """
    exception = snapshot.rank(crashed).reported.exception
    text = exception.text if exception is not None else ""
    if match := _DUPLICATE.search(text):
        return tuple(sorted({int(match[1]), int(match[2])}))
    if _UNNAMED not in text.lower():
        return ()
    shared = [ranks_on(device, snapshot) for device in snapshot.devices if crashed in device.ranks]
    return max(shared, key=len, default=()) or (crashed,)


def fold_duplicate(context: Context, findings: list[Finding]) -> list[Finding]:
    """All findings, without the crash, which is reported with its cause. There is at most one
    crash."""
    crashes = {
        finding.identity
        for finding in context.found
        if findings and finding.kind == Kind.RANK_CRASHED
    }
    return [findings[0] if finding.identity in crashes else finding for finding in context.found]


# -- `gpu-error`: a GPU of the job has failed. It is lost, has an uncorrectable memory error, or
#    the driver reports an error (Xid)


HARDWARE = {
    46: "the GPU stopped processing",
    48: "double bit memory error",
    61: "internal fault",
    62: "internal fault",
    64: "a memory row could not be replaced",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    110: "security fault",
    119: "its GSP does not answer",
    120: "its GSP failed",
    140: "unrecovered memory error",
    143: "it could not be initialised",
}
"""Xids after which the GPU does not continue, with shortened texts of NVIDIA's list."""
PROGRAM = frozenset({13, 31, 43, 45, 68, 69})
"""Xids of a program's own faults (a bad address, an assert): the rank's exception says more."""
_EXPLAINED = frozenset(
    {
        Kind.NOT_IN_COLLECTIVE,
        Kind.COLLECTIVE_STUCK,
        Kind.RANK_CRASHED,
        Kind.COMM_ERROR,
        Kind.INTERPRETER_FROZEN,
    }
)


def gpu_error(context: Context) -> list[Finding]:
    """One finding for each GPU."""
    snapshot = context.snapshot
    return [
        finding
        for device in snapshot.devices
        if (finding := _error_finding(device, snapshot)) is not None
    ]


def fold_error(context: Context, own: list[Finding]) -> list[Finding]:
    """All findings, without the consequences of a failed GPU: its rank is elsewhere or crashes, or
    all ranks wait for each other.
    """
    findings = context.found
    critical = [error for error in own if error.severity == CRITICAL]
    if not critical:
        return [*findings, *own]
    failed = {rank for error in critical for rank in error.ranks}
    kept, victims = [], set[int]()
    for finding in findings:
        if finding.kind in _EXPLAINED and set(finding.ranks) <= failed:
            victims |= set(finding.victims)
        else:
            kept.append(finding)
    first, *others = critical
    waiting = tuple(sorted(victims - failed))
    waits = (
        f"; {ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} for"
        f" {verb(first.ranks, 'it', 'them')}"
        if waiting
        else ""
    )
    first = replace(first, victims=waiting, summary=first.summary + waits)
    return [*kept, first, *others, *(error for error in own if error.severity != CRITICAL)]


def _error_finding(device: Device, snapshot: Snapshot) -> Finding | None:
    gpu = device.gpu
    if not (gpu.lost or gpu.xids or device.ecc_new or gpu.remap_failed):
        return None
    ranks = ranks_of(device, snapshot)
    # Errors from before the start of these ranks do not count; the ranks may have been restarted
    # because of them.
    begun = min(
        (hello.started_unix_ns for rank in ranks if (hello := snapshot.rank(rank).hello)), default=0
    )
    xids = [xid for xid in gpu.xids if xid.code not in PROGRAM and xid.unix_ns >= begun]
    if not ranks or not (gpu.lost or xids or device.ecc_new or gpu.remap_failed):
        return None
    hard = [xid for xid in xids if xid.code in HARDWARE]
    if gpu.lost:
        what = "no longer answers"
    elif hard:
        what = f"has failed: Xid {hard[-1].code}, {HARDWARE[hard[-1].code]}"
    elif device.ecc_new:
        what = (
            f"has {device.ecc_new} uncorrectable memory"
            f" {verb(device.ecc_new, 'error', 'errors')} since this job began"
        )
    elif xids:
        what = f"reports Xid {xids[-1].code}"
    else:
        what = (
            "has a page of memory that could not be retired"
            if gpu.vendor == AMD
            else "has a memory row that could not be replaced"
        )
    critical = gpu.lost or bool(hard) or bool(device.ecc_new)
    return Finding(
        kind=Kind.GPU_ERROR,
        severity=CRITICAL if critical else WARNING,
        ranks=ranks,
        victims=(),
        since_unix_ns=xids[0].unix_ns if xids else snapshot.time_unix_ns,
        summary=f"{gpu_text(device)} ({ranks_text(ranks)}) {what}",
        evidence=tuple(
            f"Xid {xid.code}: {HARDWARE.get(xid.code, 'see the NVIDIA Xid list')}"
            for xid in xids[-4:]
        ),
        advice=f"take {quoted(device.host)} out of the job; {health(gpu)}",
    )


# -- `gpu-unavailable`: a rank could not use its GPU. The finding says which process uses it, and
#    which GPUs are free
#
# Torch raises an exception, which ends the rank. This rule adds the cause to the crash that
# `departures` has found.


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
    "run ddtop gpus on its host to see which processes hold the GPUs; nvidia-smi -q -d COMPUTE"
    " shows the compute mode of NVIDIA GPUs"
)


def gpu_unavailable(context: Context) -> list[Finding]:
    """The crashes whose cause is a GPU, with that cause."""
    crashes = [
        finding for finding in context.found if finding.kind == Kind.RANK_CRASHED and finding.ranks
    ]
    explained = [(finding, _with_cause(finding, context)) for finding in crashes]
    return [new for crash, new in explained if new is not crash]


def fold_unavailable(context: Context, findings: list[Finding]) -> list[Finding]:
    """All findings, without the crash, which is reported with its cause."""
    by_rank = {finding.ranks: finding for finding in findings}
    return [
        by_rank.get(finding.ranks, finding) if finding.kind == Kind.RANK_CRASHED else finding
        for finding in context.found
    ]


def _with_cause(crash: Finding, context: Context) -> Finding:
    rank = context.snapshot.rank(crash.ranks[0])
    text = rank.reported.exception.text if rank.reported.exception is not None else ""
    if not text:
        return crash
    device = device_of(rank, context.snapshot)
    if _MEMORY.search(text):
        return _of_memory(crash, rank, device, context)
    if _ORDINAL.search(text):
        why = f"rank {rank.rank} asked for a GPU that it does not have"
        seen = _visible_text(rank)
        if seen:
            why += f": {seen}"
        advice = (
            "start at most as many ranks per host as it has visible GPUs, and use LOCAL_RANK, not"
            " RANK, in set_device"
        )
        return _finding(crash, rank, device, context, why, advice)
    if _BUSY.search(text):
        why = f"rank {rank.rank} could not use its GPU: it is in use"
        if device is not None and device.gpu.exclusive:
            why += " (exclusive mode: one process only)"
        return _finding(crash, rank, device, context, why, "")
    if _NONE.search(text):
        why = f"rank {rank.rank} finds no GPU: {text[:80]}"
        advice = (
            "check nvidia-smi on its host, CUDA_VISIBLE_DEVICES, --gpus of the container, --gres"
            " of the job, and that torch is built with CUDA"
        )
        if _is_of_amd(text, device):
            advice = (
                "check amd-smi on its host, HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES,"
                " --device=/dev/kfd and /dev/dri of the container, --gres of the job, and that"
                " torch is built with ROCm"
            )
        return _finding(crash, rank, device, context, why, advice)
    return crash


def _of_memory(crash: Finding, rank: RankFacts, device: Device | None, context: Context) -> Finding:
    others = strangers(device, context.policy) if device is not None else ()
    sharing = (
        [number for number in device.ranks if number != rank.rank] if device is not None else []
    )
    if others or (sharing and not rank.progress.iteration):
        why = f"rank {rank.rank} found too little free memory on its GPU"
        return _finding(crash, rank, device, context, why, "")
    # No other process uses the GPU, so the program itself needs too much memory: add the numbers.
    line = memory_line(rank, device)
    advice = (
        "the rank itself uses the memory: try a smaller batch, activation checkpointing, or"
        " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True if much more is reserved than allocated"
    )
    return replace(crash, evidence=(*crash.evidence, *([line] if line else [])), advice=advice)


def _finding(
    crash: Finding,
    rank: RankFacts,
    device: Device | None,
    context: Context,
    why: str,
    advice: str,
) -> Finding:
    evidence = list(crash.evidence)
    free = free_gpus(rank.host, context.snapshot, context.policy)
    if device is not None:
        # The context of a display server or a notebook keeps no rank out, except in exclusive mode.
        others = device.foreign
        if not device.gpu.exclusive:
            others = strangers(device, context.policy) or tuple(
                process for process in others if process.used_bytes is None
            )
        ours = [number for number in device.ranks if number != rank.rank]
        held = [f"by {holders_text(others)}"] if others else []
        held += [f"by rank {number} of this job" for number in ours[:2]]
        if held:
            why += f"; {gpu_text(device)} is held {' and '.join(held)}"
        line = memory_line(rank, device)
        evidence += [line] if line else []
        why += f"; {free_text(free)}"
        pids = " ".join(str(process.pid) for process in others[:4])
        numbers = ",".join(str(gpu.index) for gpu in free)
        name = visible_name(free)
        cuda = name == "CUDA_VISIBLE_DEVICES"
        order = (
            "CUDA_DEVICE_ORDER=PCI_BUS_ID "
            if cuda and has_mixed_models(rank.host, context.snapshot)
            else ""
        )
        steps = [f"start it on a free one: {order}{name}={numbers}"] if free else []
        steps += [f"or end the process that holds it, if it is yours: kill {pids}"] if pids else []
        steps += ["give each rank its own: torch.cuda.set_device(LOCAL_RANK)"] if ours else []
        advice = advice or "; ".join(steps).removeprefix("or ")
    else:
        evidence.append(
            "it is not known which process holds the GPU: ddtop has no data from the driver of"
            " that host"
        )
    return replace(
        crash,
        kind=Kind.GPU_UNAVAILABLE,
        severity=CRITICAL,
        summary=why + _others_text(crash),
        evidence=tuple(evidence),
        advice=advice or _ADVICE,
    )


def _others_text(crash: Finding) -> str:
    """The part of the summary about the other ranks."""
    _, found, rest = crash.summary.partition("; ")
    return f"; {rest}" if found and crash.victims else ""


def _is_of_amd(text: str, device: Device | None) -> bool:
    return "HIP" in text or "ROCm" in text or (device is not None and device.gpu.vendor == AMD)


def _visible_text(rank: RankFacts) -> str:
    hello = rank.hello
    if hello is None:
        return ""
    parts = [f"local rank {hello.local_rank}"] if hello.local_rank is not None else []
    for name in VISIBLE:
        seen = hello.environment.get(name)
        parts += [f"{name}={seen}"] if seen is not None else []
    return ", ".join(parts)


# -- `gpu-shared`, `gpu-busy`, `gpu-memory-low` and `gpu-throttled`: GPUs that are slower for the
#    job than they could be


@dataclass(frozen=True)
class GpuLow(Limits, of=Kind.GPU_MEMORY_LOW, was="gpu_"):
    """`gpu-memory-low`."""

    memory_low_ratio: float = 0.03
    """Share of a GPU's memory that is left, where allocations failed or others hold a part. A full
    GPU alone is how torch works."""
    retries: int = 3
    """Allocations within half a minute that succeeded only after cached memory had been released,
    or not at all. One or two are a large batch."""
    spare_ratio: float = 0.2
    """Share of what torch has reserved that is not in use: this much is fragmentation."""


@dataclass(frozen=True)
class GpuThrottled(Limits, of=Kind.GPU_THROTTLED, was=""):
    """`gpu-throttled`."""

    step_slower_factor: float = 1.25
    """A step so much longer than the shortest is a line of evidence. Below that it is noise."""
    gpu_load_ratio: float = 0.85
    """Share of a GPU's power. GPUs that draw less have less to do and run faster for that, so their
    clocks are no measure."""


def gpu_use(context: Context) -> list[Finding]:
    """Findings for each GPU."""
    snapshot, policy = context.snapshot, context.policy
    if not snapshot.devices:
        return []
    findings: list[Finding] = []
    clocks: dict[str, float] | None = None
    for device in snapshot.devices:
        if not _stands_out(device, policy) or device.gpu.mig:
            # For a GPU with MIG instances the findings are about the instances.
            continue
        if clocks is None:
            clocks = _clocks(snapshot)
        ranks = ranks_on(device, snapshot)
        if not ranks or device.gpu.lost or all(snapshot.rank(rank).gone for rank in ranks):
            continue
        findings += _shared_findings(device, ranks, snapshot, policy)
        findings += _busy_findings(device, ranks, snapshot, policy)
        findings += _memory_low(device, ranks, snapshot, policy)
        findings += _throttled_findings(device, ranks, snapshot, policy, clocks)
    return findings


def _stands_out(device: Device, policy: Policy) -> bool:
    """Whether it needs a closer look. Nearly no GPU does."""
    gpu = device.gpu
    if len(device.ranks) > 1 or device.foreign or device.throttled_since_unix_ns is not None:
        return bool(device.ranks)
    if gpu.used_bytes is None or not gpu.total_bytes:
        return False
    return gpu.total_bytes - gpu.used_bytes <= policy.of(GpuLow).memory_low_ratio * gpu.total_bytes


def _shared_findings(
    device: Device, ranks: tuple[int, ...], snapshot: Snapshot, policy: Policy
) -> Iterator[Finding]:
    living = tuple(rank for rank in ranks if not snapshot.rank(rank).gone)
    if len(living) < 2 or shares_by_wish(device, living, snapshot):
        return
    free = free_gpus(device.host, snapshot, policy)
    text = f"{ranks_text(living)} share {gpu_text(device)}; {free_text(free)}"
    advice = ONE_GPU_EACH
    if not free:
        advice = (
            "there are more ranks than GPUs: start fewer (--nproc-per-node), or limit each rank:"
            " torch.cuda.set_per_process_memory_fraction(0.4)"
        )
    yield _warning(
        Kind.GPU_SHARED, living, snapshot, text, _lines(device, living, snapshot), advice
    )


def _busy_findings(
    device: Device, ranks: tuple[int, ...], snapshot: Snapshot, policy: Policy
) -> Iterator[Finding]:
    others = lasting_strangers(device, policy)
    if not others:
        return
    text = (
        f"{gpu_text(device)} ({ranks_text(ranks)}) is also used by other processes:"
        f" {holders_text(others)}"
    )
    advice = (
        f"end them if they are yours: kill {' '.join(str(other.pid) for other in others[:4])}; else"
        " use another GPU: "
    )
    advice += free_text(free_gpus(device.host, snapshot, policy))
    yield _warning(Kind.GPU_BUSY, ranks, snapshot, text, _lines(device, ranks, snapshot), advice)


def _memory_low(
    device: Device, ranks: tuple[int, ...], snapshot: Snapshot, policy: Policy
) -> Iterator[Finding]:
    gpu = device.gpu
    if gpu.used_bytes is None or not gpu.total_bytes:
        return
    left = gpu.total_bytes - gpu.used_bytes
    if left > policy.of(GpuLow).memory_low_ratio * gpu.total_bytes:
        return
    cudas = [cuda for rank in ranks if (cuda := snapshot.rank(rank).gpu.cuda) is not None]
    refused = device.refused_lately
    others = lasting_strangers(device, policy)
    # A full GPU alone is normal, because torch's allocator keeps its memory. Retries from a search
    # for the largest batch size are over.
    if refused < policy.of(GpuLow).retries and not others:
        return
    reserved = sum(cuda.reserved_bytes or 0 for cuda in cudas)
    spare = reserved - sum(cuda.allocated_bytes or 0 for cuda in cudas)
    if others:
        advice = (
            f"other processes hold {size(sum(other.used_bytes or 0 for other in others))} of it:"
            f" {quoted(holders_text(others))}"
        )
    elif len(ranks) > 1:
        advice = (
            f"limit each of {ranks_text(ranks)}:"
            f" torch.cuda.set_per_process_memory_fraction({0.9 / len(ranks):.2f})"
        )
    elif reserved and spare > policy.of(GpuLow).spare_ratio * reserved:
        advice = (
            f"{size(spare)} is reserved but not in use: try"
            " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    else:
        advice = (
            "use a smaller batch, activation checkpointing or a sharded model: the next larger"
            " batch may run out of memory"
        )
    text = (
        f"{gpu_text(device)} ({ranks_text(ranks)}) is nearly full: {size(left)} of"
        f" {size(gpu.total_bytes)} left"
    )
    if refused:
        text += (
            f", {refused:,} torch {verb(refused, 'allocation', 'allocations')} had to be retried"
            " recently"
        )
    yield _warning(
        Kind.GPU_MEMORY_LOW, ranks, snapshot, text, _lines(device, ranks, snapshot), advice
    )


def _throttled_findings(
    device: Device,
    ranks: tuple[int, ...],
    snapshot: Snapshot,
    policy: Policy,
    clocks: dict[str, float],
) -> Iterator[Finding]:
    gpu, since = device.gpu, device.throttled_since_unix_ns
    if (
        since is None
        or gpu.sm_mhz is None
        or snapshot.time_unix_ns - since < policy.gpu_throttled_s * 1e9
    ):
        return
    busy = device.util_mean_ratio if device.util_mean_ratio is not None else gpu.util_ratio
    if busy is not None and busy < policy.gpu_busy_ratio:
        return
    usual = clocks.get(gpu.name)
    against = "the job's other GPUs of this model run"
    if usual is None:
        # It is the only GPU of its model. Many GPUs run at their power cap.
        usual, against = float(gpu.sm_max_mhz or 0), "it could run"
        if not held_by_more_than_load(gpu):
            return
    if gpu.sm_mhz >= policy.gpu_slow_ratio * usual:
        return
    if not held_by_more_than_load(gpu):
        # GPUs that wait run faster; those that draw as much power do the same work.
        usual = _clock_under_load(device, snapshot, policy)
        if usual is None or gpu.sm_mhz >= policy.gpu_slow_ratio * usual:
            return
    text = (
        f"{gpu_text(device)} ({ranks_text(ranks)}) is held at {gpu.sm_mhz} MHz by"
        f" {why_held(gpu) or 'its driver'}; {against} at {usual:.0f}"
    )
    heat = f"{gpu.celsius} C, " if gpu.celsius is not None else ""
    cap = f" of {gpu.power_cap_watts:.0f}" if gpu.power_cap_watts else ""
    watts = f"{gpu.power_watts:.0f}{cap} W, " if gpu.power_watts is not None else ""
    stands = duration((snapshot.time_unix_ns - since) / 1e9)
    advice = f"check its cooling and power ({cooling(gpu)}); restart the job without that host"
    evidence = (*_cost_lines(ranks, snapshot, policy), f"{heat}{watts}for {stands}")
    yield _warning(Kind.GPU_THROTTLED, ranks, snapshot, text, evidence, advice, since)


def _cost_lines(ranks: tuple[int, ...], snapshot: Snapshot, policy: Policy) -> tuple[str, ...]:
    """The cost for the job: the present steps of these ranks, compared with their shortest ones."""
    steps = [
        (progress.step_ms, progress.step_best_ms)
        for progress in (snapshot.rank(rank).progress for rank in ranks)
        if progress.step_ms and progress.step_best_ms
    ]
    if not steps:
        return ()
    now, best = (median(values) for values in zip(*steps, strict=True))
    if now < policy.of(GpuThrottled).step_slower_factor * best:
        return ()
    return (
        f"a step takes {now:,.0f} ms; the shortest took {best:,.0f} ms ({1000 / now:.1f} it/s"
        f" instead of {1000 / best:.1f})",
    )


def _clock_under_load(device: Device, snapshot: Snapshot, policy: Policy) -> float | None:
    """The usual clock of the job's other GPUs of this model that draw as much power. None for fewer
    than three.
    """
    least = policy.of(GpuThrottled).gpu_load_ratio * (
        device.power_mean_watts or device.gpu.power_watts or 0.0
    )
    found = [
        one.gpu.sm_mhz
        for one in snapshot.devices
        if one.ranks
        and one is not device
        and one.gpu.name == device.gpu.name
        and one.gpu.sm_mhz is not None
        and (one.power_mean_watts or one.gpu.power_watts or 0.0) >= least
    ]
    return float(median(found)) if len(found) > 2 else None


def fold_use(context: Context, findings: list[Finding]) -> list[Finding]:
    """All findings. A GPU that causes a straggler is part of the straggler finding. Ranks that wait
    for a GPU that other processes use become victims here.
    """
    snapshot = context.snapshot
    slow = {
        rank
        for finding in context.found
        if finding.kind == Kind.STRAGGLER
        for rank in finding.ranks
    }
    explained = {
        number for number in slow if _is_explained(snapshot.rank(number), snapshot, context.policy)
    }
    kept = [
        finding
        for finding in findings
        if finding.kind != Kind.GPU_THROTTLED or not set(finding.ranks) <= explained
    ]
    return [
        *context.found,
        *(
            _with_waiters(finding, snapshot) if finding.kind == Kind.GPU_BUSY else finding
            for finding in kept
        ),
    ]


def _is_explained(rank: RankFacts, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether the straggler finding of this rank names its GPU."""
    return rank.gpu_late is not None or (
        rank.late is not None and cause_of(rank, rank.late, snapshot, policy).word in OF_GPU
    )


def _with_waiters(busy: Finding, snapshot: Snapshot) -> Finding:
    late = next(
        (late for rank in busy.ranks if (late := snapshot.rank(rank).gpu_late) is not None), None
    )
    if late is None:
        return busy
    ratio = late.others_watts / late.power_watts if late.power_watts else 0.0
    wait = f"{ranks_text(late.waiters)} {verb(late.waiters, 'waits', 'wait')} for it in NCCL"
    line = (
        f"the GPUs of {ranks_text(late.waiters)} are 100% busy at {ratio:.0%} of its power, for"
        f" {late.seconds:.0f} s"
    )
    return replace(
        busy,
        victims=late.waiters,
        summary=f"{busy.summary}; {wait}",
        evidence=(*busy.evidence, line),
    )


def _clocks(snapshot: Snapshot) -> dict[str, float]:
    """The usual SM clock by GPU model, of GPUs that work for the job. Only models with three GPUs
    or more.
    """
    found: dict[str, list[int]] = {}
    for device in snapshot.devices:
        if device.ranks and device.gpu.sm_mhz is not None and not device.gpu.parent:
            found.setdefault(device.gpu.name, []).append(device.gpu.sm_mhz)
    return {name: float(median(values)) for name, values in found.items() if len(values) > 2}


def _lines(device: Device, ranks: tuple[int, ...], snapshot: Snapshot) -> tuple[str, ...]:
    lines = [
        line for rank in ranks[:4] if (line := memory_line(snapshot.rank(rank), device)) is not None
    ]
    extra = [number for number in device.ranks if number not in ranks]
    if extra:
        has = verb(extra, "has", "have")
        lines.append(
            f"{ranks_text(extra)} {has} a context there too, but"
            f" {verb(extra, 'computes', 'compute')} on another GPU"
        )
    # The lines of ranks on one GPU are equal if torch has told nothing of the ranks.
    return tuple(dict.fromkeys(lines))


def _warning(
    kind: Kind,
    ranks: tuple[int, ...],
    snapshot: Snapshot,
    text: str,
    evidence: tuple[str, ...],
    advice: str,
    since: int | None = None,
) -> Finding:
    return Finding(kind, WARNING, ranks, (), since or snapshot.time_unix_ns, text, evidence, advice)
