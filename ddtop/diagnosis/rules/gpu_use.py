"""`gpu-shared`, `gpu-busy`, `gpu-memory-low` and `gpu-throttled`: GPUs that are slower for the job
than they could be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from ddtop.diagnosis.advice import ONE_GPU_EACH
from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import WARNING, Finding
from ddtop.diagnosis.gpus import (
    cooling,
    free_gpus,
    free_text,
    gpu_text,
    held_by_more_than_load,
    holders_text,
    lasting_strangers,
    memory_line,
    ranks_on,
    shares_by_wish,
    size,
    why_held,
)
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.straggler_cause import GPU, cause_of
from ddtop.model.state.facts import RankFacts, Snapshot
from ddtop.model.state.gpu_facts import Device
from ddtop.policy import Policy
from ddtop.words.ranks import ranks_text, verb
from ddtop.words.units import duration


def rule(context: Context) -> list[Finding]:
    """Findings for each GPU."""
    snapshot, policy = context.snapshot, context.policy
    if not snapshot.devices:
        return []
    found: list[Finding] = []
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
        found += _shared(device, ranks, snapshot, policy)
        found += _busy(device, ranks, snapshot, policy)
        found += _memory_low(device, ranks, snapshot, policy)
        found += _throttled(device, ranks, snapshot, policy, clocks)
    return found


def _stands_out(device: Device, policy: Policy) -> bool:
    """Whether it needs a closer look. Nearly no GPU does."""
    gpu = device.gpu
    if len(device.ranks) > 1 or device.foreign or device.throttled_since_unix_ns is not None:
        return bool(device.ranks)
    if gpu.used_bytes is None or not gpu.total_bytes:
        return False
    return gpu.total_bytes - gpu.used_bytes <= policy.gpu_memory_low_ratio * gpu.total_bytes


def _shared(
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
            "more ranks than GPUs: start fewer (--nproc-per-node), or limit each:"
            " torch.cuda.set_per_process_memory_fraction(0.4)"
        )
    yield _warning(
        Kind.GPU_SHARED, living, snapshot, text, _lines(device, living, snapshot), advice
    )


def _busy(
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
        f"end them if they are yours: kill {' '.join(str(one.pid) for one in others[:4])}; else"
        " take another GPU: "
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
    if left > policy.gpu_memory_low_ratio * gpu.total_bytes:
        return
    cudas = [cuda for rank in ranks if (cuda := snapshot.rank(rank).gpu.cuda) is not None]
    refused = device.refused_lately
    others = lasting_strangers(device, policy)
    # A full GPU alone is normal, because torch's allocator keeps its memory. Retries from a search
    # for the largest batch size are over.
    if refused < policy.gpu_retries and not others:
        return
    reserved = sum(cuda.reserved_bytes or 0 for cuda in cudas)
    spare = reserved - sum(cuda.allocated_bytes or 0 for cuda in cudas)
    if others:
        advice = (
            f"others have {size(sum(one.used_bytes or 0 for one in others))} of it:"
            f" {holders_text(others)}"
        )
    elif len(ranks) > 1:
        advice = (
            f"limit each of {ranks_text(ranks)}:"
            f" torch.cuda.set_per_process_memory_fraction({0.9 / len(ranks):.2f})"
        )
    elif reserved and spare > policy.gpu_spare_ratio * reserved:
        advice = (
            f"{size(spare)} is reserved and not in use:"
            " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    else:
        advice = (
            "a smaller batch, activation checkpointing or a sharded model: the next larger batch"
            " runs out of memory"
        )
    text = (
        f"{gpu_text(device)} ({ranks_text(ranks)}) is nearly full: {size(left)} of"
        f" {size(gpu.total_bytes)} left"
    )
    if refused:
        text += (
            f", {refused:,} {verb(range(refused), 'allocation', 'allocations')} of torch had to be"
            " retried lately"
        )
    yield _warning(
        Kind.GPU_MEMORY_LOW, ranks, snapshot, text, _lines(device, ranks, snapshot), advice
    )


def _throttled(
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
    advice = f"look at its cooling and power ({cooling(gpu)}); restart the job without that host"
    evidence = (*_slower(ranks, snapshot, policy), f"{heat}{watts}for {stands}")
    yield _warning(Kind.GPU_THROTTLED, ranks, snapshot, text, evidence, advice, since)


def _slower(ranks: tuple[int, ...], snapshot: Snapshot, policy: Policy) -> tuple[str, ...]:
    """The cost for the job: the present steps of these ranks, compared with their shortest ones."""
    steps = [
        (one.step_ms, one.step_best_ms)
        for one in (snapshot.rank(rank).progress for rank in ranks)
        if one.step_ms and one.step_best_ms
    ]
    if not steps:
        return ()
    now, best = (median(values) for values in zip(*steps, strict=True))
    if now < policy.step_slower_factor * best:
        return ()
    return (
        f"a step takes {now:,.0f} ms; the shortest took {best:,.0f} ms ({1000 / now:.1f} it/s"
        f" instead of {1000 / best:.1f})",
    )


def _clock_under_load(device: Device, snapshot: Snapshot, policy: Policy) -> float | None:
    """The usual clock of the job's other GPUs of this model that draw as much power. None for fewer
    than three.
    """
    least = policy.gpu_load_ratio * (device.power_mean_watts or device.gpu.power_watts or 0.0)
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


def fold(context: Context, own: list[Finding]) -> list[Finding]:
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
    kept = [one for one in own if one.kind != Kind.GPU_THROTTLED or not set(one.ranks) <= explained]
    return [
        *context.found,
        *(_awaited(one, snapshot) if one.kind == Kind.GPU_BUSY else one for one in kept),
    ]


def _is_explained(rank: RankFacts, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether the straggler finding of this rank names its GPU."""
    return rank.gpu_late is not None or (
        rank.late is not None and cause_of(rank, rank.late, snapshot, policy).word == GPU
    )


def _awaited(busy: Finding, snapshot: Snapshot) -> Finding:
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
            f"{ranks_text(extra)} {has} a context there too, and {verb(extra, 'its', 'their')} own"
            " GPU elsewhere"
        )
    return tuple(lines)


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
