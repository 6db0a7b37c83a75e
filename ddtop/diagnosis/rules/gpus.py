"""Findings about GPUs: two ranks on one, its errors, ranks without one, and how it is used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from ddtop.diagnosis.gpus import (
    device_of,
    held_by_more_than_load,
    lasting_strangers,
    ranks_of,
    ranks_on,
    shares_by_wish,
    strangers,
)
from ddtop.diagnosis.rule import (
    CRITICAL,
    WARNING,
    Context,
    Explanation,
    Finding,
    Kind,
    Limits,
    Policy,
    RuleRow,
    job_has_ended,
)
from ddtop.diagnosis.straggler_cause import OF_GPU, cause_of
from ddtop.model.errors import Says, sharing_a_gpu
from ddtop.model.facts import Device, GpuLate, RankFacts, Snapshot
from ddtop.wire.records import Xid

# -- `gpu-shared` if NCCL refuses it: two ranks are on one GPU, and a rank crashes


class RefusedGpu(NamedTuple):
    """The crash of a rank on the GPU of another."""

    finding: Finding


def gpu_duplicate(context: Context) -> list[Finding]:
    """At most one finding: the crash that names the two ranks."""
    for crash in context.found:
        if crash.kind != Kind.RANK_CRASHED or not crash.ranks:
            continue
        ranks = _ranks_named(context.snapshot, crash.ranks[0])
        if ranks:
            changed = replace(crash, kind=Kind.GPU_SHARED, severity=CRITICAL, ranks=ranks)
            victims = tuple(rank for rank in crash.victims if rank not in ranks)
            return [replace(changed, victims=victims, seen=RefusedGpu(crash))]
    return []


def _ranks_named(snapshot: Snapshot, crashed: int) -> tuple[int, ...]:
    """The ranks on one GPU, from the exception of the rank that crashed; empty if it is another
    exception.
    """
    exception = snapshot.rank(crashed).reported.exception
    text = exception.text if exception is not None else ""
    if not Says.GPU_SHARED.within(text):
        return ()
    shared = [ranks_on(device, snapshot) for device in snapshot.devices if crashed in device.ranks]
    return sharing_a_gpu(text) or max(shared, key=len, default=()) or (crashed,)


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


class Broken(NamedTuple):
    """A GPU that has failed, and what its driver has reported since its ranks were started."""

    device: Device
    xids: tuple[Xid, ...]


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
    first = replace(first, victims=tuple(sorted(victims - failed)))
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
    critical = gpu.lost or device.ecc_new or any(xid.code in HARDWARE for xid in xids)
    return Finding(
        kind=Kind.GPU_ERROR,
        severity=CRITICAL if critical else WARNING,
        ranks=ranks,
        victims=(),
        since_unix_ns=xids[0].unix_ns if xids else snapshot.time_unix_ns,
        seen=Broken(device, tuple(xids)),
    )


# -- `gpu-unavailable`: a rank could not use its GPU. The finding says which process uses it, and
#    which GPUs are free
#
# Torch raises an exception, which ends the rank. This rule adds the cause to the crash that
# `departures` has found.


class Unavailable(NamedTuple):
    """The crash of a rank that could not use its GPU, and what its exception says of it."""

    finding: Finding
    why: Says


def gpu_unavailable(context: Context) -> list[Finding]:
    """The crashes whose cause is a GPU, with that cause."""
    return [
        new
        for crash in context.found
        if crash.kind == Kind.RANK_CRASHED
        and crash.ranks
        and (new := _with_cause(crash, context)) is not None
    ]


def fold_crash(context: Context, findings: list[Finding]) -> list[Finding]:
    """All findings, without the crashes that are reported with their cause."""
    by_crash = {
        one.seen.finding.identity: one
        for one in findings
        if isinstance(one.seen, (RefusedGpu, Unavailable))
    }
    return [by_crash.get(finding.identity, finding) for finding in context.found]


def _with_cause(crash: Finding, context: Context) -> Finding | None:
    rank = context.snapshot.rank(crash.ranks[0])
    text = rank.reported.exception.text if rank.reported.exception is not None else ""
    why = next((says for says in _WHY if says.within(text)), None)
    if why is None:
        return None
    seen = Unavailable(crash, why)
    if why is Says.GPU_MEMORY and not _others_hold_it(rank, context):
        # The program itself needs too much memory.
        return replace(crash, seen=seen)
    return replace(crash, kind=Kind.GPU_UNAVAILABLE, severity=CRITICAL, seen=seen)


_WHY = (Says.GPU_MEMORY, Says.NO_SUCH_GPU, Says.GPU_BUSY, Says.NO_GPU)


def _others_hold_it(rank: RankFacts, context: Context) -> bool:
    """Whether others use its GPU: other programs, or ranks while it has made no step."""
    device = device_of(rank, context.snapshot)
    if device is None:
        return False
    shared = any(number != rank.rank for number in device.ranks)
    return bool(strangers(device, context.policy)) or (shared and not rank.progress.iteration)


# -- `gpu-shared`, `gpu-busy`, `gpu-memory-low` and `gpu-throttled`: GPUs that are slower for the
#    job than they could be


@dataclass(frozen=True)
class GpuLow(Limits, of=Kind.GPU_MEMORY_LOW):
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
class GpuThrottled(Limits, of=Kind.GPU_THROTTLED):
    """`gpu-throttled`."""

    step_slower_factor: float = 1.25
    """A step so much longer than the shortest is a line of evidence. Below that it is noise."""
    gpu_load_ratio: float = 0.85
    """Share of a GPU's power. GPUs that draw less have less to do and run faster for that, so their
    clocks are not a measure."""


class InUse(NamedTuple):
    """A GPU that is slower for its ranks than it could be.

    `usual_mhz`: the clock of the job's other GPUs of its model. 0: it is the only one.
    """

    device: Device
    usual_mhz: float = 0.0


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
        now, seen, others = snapshot.time_unix_ns, InUse(device), lasting_strangers(device, policy)
        living = tuple(rank for rank in ranks if not snapshot.rank(rank).gone)
        if len(living) > 1 and not shares_by_wish(device, living, snapshot):
            findings.append(Finding(Kind.GPU_SHARED, WARNING, living, (), now, seen=seen))
        if others:
            late = gpu_late(ranks, snapshot)
            waiters = late.waiters if late is not None else ()
            findings.append(Finding(Kind.GPU_BUSY, WARNING, ranks, waiters, now, seen=seen))
        # A full GPU alone is normal, because torch's allocator keeps its memory. Retries from a
        # search for the largest batch size are over.
        retried = device.refused_lately >= policy.of(GpuLow).retries
        if _is_full(device, policy) and (retried or others):
            findings.append(Finding(Kind.GPU_MEMORY_LOW, WARNING, ranks, (), now, seen=seen))
        since = device.throttled_since_unix_ns
        if since is not None and (held := _held(device, since, snapshot, policy, clocks)):
            findings.append(
                Finding(Kind.GPU_THROTTLED, WARNING, ranks, (), since or now, seen=held)
            )
    return findings


def _stands_out(device: Device, policy: Policy) -> bool:
    """Whether it needs a closer look. Nearly no GPU does."""
    if len(device.ranks) > 1 or device.foreign or device.throttled_since_unix_ns is not None:
        return bool(device.ranks)
    return _is_full(device, policy)


def _is_full(device: Device, policy: Policy) -> bool:
    used, total = device.gpu.used_bytes, device.gpu.total_bytes
    if used is None or not total:
        return False
    return total - used <= policy.of(GpuLow).memory_low_ratio * total


def _held(
    device: Device, since_unix_ns: int, snapshot: Snapshot, policy: Policy, clocks: dict[str, float]
) -> InUse | None:
    """The GPU, if its clock is low although it works."""
    gpu = device.gpu
    if gpu.sm_mhz is None or snapshot.time_unix_ns - since_unix_ns < policy.gpu_throttled_s * 1e9:
        return None
    busy = device.util_mean_ratio if device.util_mean_ratio is not None else gpu.util_ratio
    if busy is not None and busy < policy.gpu_busy_ratio:
        return None
    usual, by_more = clocks.get(gpu.name), held_by_more_than_load(gpu)
    # Many GPUs run at their power cap: one without another of its model is held by more.
    if usual is None and not by_more:
        return None
    if gpu.sm_mhz >= policy.gpu_slow_ratio * (usual if usual is not None else gpu.sm_max_mhz or 0):
        return None
    if not by_more:
        # GPUs that wait run faster; those that draw as much power do the same work.
        usual = _clock_under_load(device, snapshot, policy)
        if usual is None or gpu.sm_mhz >= policy.gpu_slow_ratio * usual:
            return None
    return InUse(device, usual or 0.0)


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
    """All findings. A GPU that causes a straggler is part of the straggler finding."""
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
    return [*context.found, *kept]


def _is_explained(rank: RankFacts, snapshot: Snapshot, policy: Policy) -> bool:
    """Whether the straggler finding of this rank names its GPU."""
    return rank.gpu_late is not None or (
        rank.late is not None and cause_of(rank, rank.late, snapshot, policy).word in OF_GPU
    )


def gpu_late(ranks: Iterable[int], snapshot: Snapshot) -> GpuLate | None:
    """What shows that other GPUs wait for those of these ranks."""
    return next((late for rank in ranks if (late := snapshot.rank(rank).gpu_late)), None)


def _clocks(snapshot: Snapshot) -> dict[str, float]:
    """The usual SM clock by GPU model, of GPUs that work for the job. Only models with three GPUs
    or more.
    """
    found: dict[str, list[int]] = {}
    for device in snapshot.devices:
        if device.ranks and device.gpu.sm_mhz is not None and not device.gpu.parent:
            found.setdefault(device.gpu.name, []).append(device.gpu.sm_mhz)
    return {name: float(median(values)) for name, values in found.items() if len(values) > 2}


ROWS = (
    RuleRow(
        gpu_unavailable,
        (Kind.GPU_UNAVAILABLE, Kind.RANK_CRASHED),
        "the exception of a rank that crashed, and which processes hold its GPU",
        fold=fold_crash,
    ),
    RuleRow(
        gpu_duplicate,
        (Kind.GPU_SHARED,),
        "the exception of a rank that crashed",
        fold=fold_crash,
    ),
    RuleRow(
        gpu_error,
        (Kind.GPU_ERROR,),
        "errors that the driver reports (Xid, ECC, a lost GPU)",
        needs=("devices",),
        fold=fold_error,
    ),
    RuleRow(
        gpu_use,
        (Kind.GPU_SHARED, Kind.GPU_BUSY, Kind.GPU_MEMORY_LOW, Kind.GPU_THROTTLED),
        "processes, memory and clocks of each GPU",
        needs=("devices",),
        unless=(job_has_ended,),
        fold=fold_use,
    ),
)
PAGES = (
    Explanation(
        kind=Kind.GPU_UNAVAILABLE,
        severity="critical",
        brief="a rank could not use its GPU",
        meaning=(
            "CUDA did not give the GPU to the rank: another process holds it, its memory is in"
            " use, or no GPU has that number. The rank fails when it starts, and the others wait"
            " for it until the timeout."
        ),
        found=(
            (
                "ddtop reads it from the rank's exception (busy or unavailable, invalid device"
                " ordinal, no CUDA GPUs, out of memory)."
            ),
            (
                "The driver lists which processes hold the GPU and which GPUs are free. Out of"
                " memory counts only if other processes hold at least {gpu_foreign_ratio} of the"
                " GPU's memory, or if another rank uses the GPU before the first iteration."
            ),
        ),
        steps=(
            "Which processes use the GPUs of this host, and which GPUs are free?\nddtop gpus",
            "If a process of your last run is still there, end it:\nkill PID",
            "Start on free GPUs:\nCUDA_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node 2 train.py",
            "Exclusive mode allows only one process on a GPU:\nnvidia-smi -q -d COMPUTE",
        ),
        before=("torch.cuda.set_device(rank)              # the number in the whole job",),
        after=('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',),
        no_demo="it takes a GPU that somebody else holds",
    ),
    Explanation(
        kind=Kind.GPU_BUSY,
        severity="warning",
        brief="processes outside the job use a rank's GPU",
        meaning=(
            "A process outside the job computes or holds memory on the GPU of a rank. The two take"
            " turns, so the rank is slow in every step and the others wait for it. The rank also"
            " has less memory."
        ),
        found=(
            (
                "For {gpu.foreign_s} the driver has listed a process that holds at least"
                " {gpu_foreign_ratio} of the memory. The process is not a rank or a child of a"
                " rank, and the job's launcher did not start it. The server of NVIDIA's MPS does"
                " not count."
            ),
        ),
        steps=(
            (
                "Find out whose process it is and when it started:\nps -o"
                " user,pid,ppid,lstart,args -p PID"
            ),
            "If an older run left it behind (its parent has ended), end it:\nkill PID",
            "If it belongs to someone else, use another GPU:\nddtop gpus",
        ),
        no_demo="it takes a GPU that somebody else uses",
    ),
    Explanation(
        kind=Kind.GPU_SHARED,
        severity="warning; critical if NCCL refuses it",
        brief="two ranks of the job share one GPU",
        meaning=(
            "Each rank should have its own GPU. Two ranks on one GPU share its time and its"
            ' memory, while another GPU may be idle. NCCL refuses such a group ("Duplicate GPU'
            ' detected").'
        ),
        found=(
            (
                "Torch reports the same GPU in both ranks, or the driver lists both processes on"
                " it. Two MIG instances are two GPUs. If NVIDIA's MPS serves the GPU, the sharing"
                " is intended and ddtop does not report it."
            ),
        ),
        steps=(
            "Does each rank select its GPU by LOCAL_RANK, before it creates its first tensor?",
            "Does the launcher start more ranks than the host has GPUs?\nnvidia-smi -L",
            (
                "If you want this (a test on one GPU), limit the memory of each rank:\npython -c"
                " 'import torch; help(torch.cuda.set_per_process_memory_fraction)'"
            ),
        ),
        before=('model.to("cuda")                         # every rank: GPU 0',),
        after=('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))', 'model.to("cuda")'),
        no_demo="it takes a GPU",
    ),
    Explanation(
        kind=Kind.GPU_MEMORY_LOW,
        severity="warning",
        brief="a GPU's memory is nearly full, and allocations fail",
        meaning=(
            "Torch keeps the memory that it has allocated, so a full GPU by itself is normal. But"
            " here torch already had to retry allocations, which costs time in every step, or"
            " other processes hold part of the memory. The next larger batch may run out of"
            " memory."
        ),
        found=(
            (
                "At most {gpu-memory-low.memory_low_ratio} of the GPU's memory is left. In"
                " addition, within four times {gpu_mean_s} torch had to free its cache to get"
                " memory {gpu-memory-low.retries} times, or an allocation failed; or other"
                " processes hold at least {gpu_foreign_ratio}."
            ),
            (
                "If more than {gpu-memory-low.spare_ratio} is reserved but not allocated, the"
                " memory is fragmented."
            ),
        ),
        steps=(
            "Against fragmentation:\nexport PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            (
                "If several processes use the GPU, limit the share of each one:\n"
                "torch.cuda.set_per_process_memory_fraction(0.4)"
            ),
            (
                "Otherwise use less memory: a smaller batch, activation checkpointing, a sharded"
                " optimizer."
            ),
            "What uses the memory?\ntorch.cuda.memory_summary()",
        ),
        no_demo="it takes a GPU",
    ),
    Explanation(
        kind=Kind.GPU_THROTTLED,
        severity="warning",
        brief="a GPU runs at lower clocks than the job's other GPUs",
        meaning=(
            "Heat, power or the hardware's own protection lowers the clocks of this GPU. It"
            " computes more slowly than the others, and they wait for it in every step."
        ),
        found=(
            (
                "The driver reports such a reason in every sample for {gpu_throttled_s}, and the SM"
                " clock is below {gpu_slow_ratio} of the clock of the job's other GPUs of the same"
                " model. If the job has no other GPU of that model, ddtop compares the GPU with its"
                " own maximum, and a power cap does not count as a reason. A GPU at its power cap"
                " is compared only with GPUs that draw at least {gpu-throttled.gpu_load_ratio} of"
                " its power, because the others may run faster while they wait. Idle GPUs are not"
                " judged."
            ),
            (
                "If other ranks wait for this GPU, the finding is straggler, and the clock is its"
                " cause."
            ),
        ),
        steps=(
            "What lowers the clocks?\nnvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"
            "\namd-smi metric --power --temperature --clock",
            "Check fans, air flow and hot neighbours. Compare it with the other GPUs of that host.",
            "Start without that host, and have it checked.",
        ),
        no_demo="it takes a GPU that is too hot, or out of power",
    ),
    Explanation(
        kind=Kind.GPU_ERROR,
        severity="critical; a warning while the GPU still works",
        brief="a GPU of the job has failed",
        meaning=(
            "The driver reports that the GPU has an error: it has fallen off the bus, its memory"
            " has an uncorrectable error, or a link is down. If its ranks then hang in a kernel or"
            " crash, that is a consequence."
        ),
        found=(
            (
                "The driver reports an event (Xid) while the job runs, it counts uncorrectable"
                " errors, or the GPU no longer answers. Xids that the program itself causes (a bad"
                " address, an assert) do not count; the rank's exception explains those."
            ),
        ),
        steps=(
            "What does the kernel say?\ndmesg | grep -i xid",
            "Take the host out of the job and restart from the last checkpoint.",
            "Check the GPU's state, and whether it needs a reset:\nnvidia-smi -q -d "
            "ECC,ROW_REMAPPER\namd-smi metric --ecc",
        ),
        no_demo="it takes a GPU that fails",
    ),
)
