"""`straggler`: the job makes progress, but in most steps all ranks wait for the same ranks."""

from __future__ import annotations

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import CRITICAL, WARNING, Finding
from ddtop.diagnosis.gpus import device_of, gpu_text, held_by_more_than_load, why_held
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.straggler_cause import (
    LIMIT,
    cause_of,
    cooling,
    flame,
    host_of,
    more_work,
)
from ddtop.model.state.facts import Snapshot
from ddtop.model.state.straggler_facts import GpuLate, Late
from ddtop.policy import Policy
from ddtop.words.ranks import ranks_text, verb
from ddtop.words.sentences import names_of_groups


def rule(context: Context) -> list[Finding]:
    """One finding for each set of late ranks, by arrival times and, on NCCL, by the power that
    their GPUs draw.
    """
    snapshot, policy = context.snapshot, context.policy
    lates = [
        late
        for late in dict.fromkeys(rank.late for rank in snapshot.ranks if rank.late is not None)
        # `memory-pressure` names the ranks that wait for one that is short of memory.
        if cause_of(snapshot.rank(late.ranks[0]), late, snapshot, policy).word != LIMIT
    ]
    late_gpus = dict.fromkeys(rank.gpu_late for rank in snapshot.ranks if rank.gpu_late is not None)
    found = [_finding(late, snapshot, policy) for late in lates]
    return found + [_by_gpu(late, snapshot, policy) for late in late_gpus if not late.others_there]


def _by_gpu(late: GpuLate, snapshot: Snapshot, policy: Policy) -> Finding:
    """A finding without a cost: the CPU side of all ranks moves together, and the wait of a kernel
    cannot be measured.
    """
    ranks, waiters = late.ranks, late.waiters
    device = device_of(snapshot.rank(ranks[0]), snapshot)
    who = f"{ranks_text(ranks)} {verb(ranks, 'is a straggler', 'are stragglers')}"
    it = verb(ranks, "it", "them")
    its = verb(ranks, "its GPU", "their GPUs")
    slow = late.sm_mhz < policy.gpu_slow_ratio * late.others_mhz
    if slow and device is not None and held_by_more_than_load(device.gpu):
        summary = (
            f"{who}: {its} {verb(ranks, 'is', 'are')} held at {late.sm_mhz:.0f} MHz by"
            f" {why_held(device.gpu)}, the others run at {late.others_mhz:.0f};"
            f" {ranks_text(waiters)} {verb(waiters, 'waits', 'wait')} for {it} in NCCL"
        )
        advice = cooling(device)
    else:
        ratio = late.others_watts / late.power_watts
        summary = (
            f"{who}: {its} {verb(ranks, 'computes', 'compute')} while"
            f" {verb(waiters, 'that', 'those')} of {ranks_text(waiters)}"
            f" {verb(waiters, 'waits', 'wait')} in NCCL, 100% busy at {ratio:.0%} of"
            f" {verb(ranks, 'its', 'their')} power"
        )
        advice = more_work(ranks[0], device) if device is not None else ""
    group = names_of_groups(snapshot.groups).get(late.group, late.group)
    return Finding(
        kind=Kind.STRAGGLER,
        severity=WARNING,
        ranks=ranks,
        victims=waiters,
        since_unix_ns=snapshot.time_unix_ns - int(late.seconds * 1e9),
        summary=summary,
        evidence=(
            (
                f"over the last {late.seconds:.0f} s and in each quarter of it, GPUs of one model"
                f" in {group}: {verb(ranks, 'its', 'their')} GPU drew {late.power_watts:.0f} W at"
                f" {late.sm_mhz:.0f} MHz, the others {late.others_watts:.0f} W at"
                f" {late.others_mhz:.0f} MHz, all busy all the time"
            ),
            (
                "the hosts enqueue their collectives at the same time, so arrival times say nothing"
                " about it, and its cost is not measured"
            ),
            *(line for number in ranks[:4] if (line := _gpu_line(number, snapshot)) is not None),
        ),
        advice=advice,
        group=late.group,
    )


def _gpu_line(number: int, snapshot: Snapshot) -> str | None:
    device = device_of(snapshot.rank(number), snapshot)
    if device is None:
        return None
    gpu, held = device.gpu, why_held(device.gpu)
    parts = [f"{gpu.celsius} C"] if gpu.celsius is not None else []
    parts += [f"power cap {gpu.power_cap_watts:.0f} W"] if gpu.power_cap_watts else []
    parts.append(f"its clocks are held by {held}" if held else "nothing holds its clocks")
    return f"rank {number}, {gpu_text(device)}: {', '.join(parts)}"


def _finding(late: Late, snapshot: Snapshot, policy: Policy) -> Finding:
    ranks, share = late.ranks, late.share_ratio
    causes = {number: cause_of(snapshot.rank(number), late, snapshot, policy) for number in ranks}
    lead = causes[ranks[0]]
    who = f"{ranks_text(late.waiters)} {verb(late.waiters, 'waits', 'wait')}"
    it = verb(ranks, "it", f"rank {ranks[0]}")
    it_text = verb(ranks, "it", "them")
    cost = f"{_ms(late.cost_ms)} of each {_ms(late.step_ms)} step for {it_text} ({share:.0%})"
    own = not all(cause.foreign for cause in causes.values())
    cost = cost if late.counted else f"{share:.0%} of the time for {it_text}"
    summary = f"{ranks_text(ranks)} {verb(ranks, 'is a straggler', 'are stragglers')}: {who} {cost}"
    summary += f"; {it} {lead.text}"
    return Finding(
        kind=Kind.STRAGGLER,
        severity=CRITICAL if own and share > policy.straggler_critical_ratio else WARNING,
        ranks=ranks,
        victims=late.waiters,
        since_unix_ns=late.unix_ns - int(late.late_ratio * late.steps * late.step_ms * 1e6),
        summary=summary,
        evidence=(_measured(late, snapshot), *_lines(late, snapshot, policy)),
        advice=lead.advice,
        group=late.group,
    )


def _measured(late: Late, snapshot: Snapshot) -> str:
    group = names_of_groups(snapshot.groups).get(late.group, late.group)
    what = "steps" if late.counted else "collectives"
    text = (
        f"late in {late.late_ratio:.0%} of the last {late.steps} {what}, by the times at which each"
        f" rank enqueued its collectives of {group}; median cost {_ms(late.cost_ms)} of"
        f" {_ms(late.step_ms)}"
    )
    if late.hosts > 1:
        text += f"; {late.hosts} hosts compared, their clocks agree to {_ms(late.error_ms)}"
    if late.hosts_apart:
        others = "another host" if late.hosts_apart == 1 else f"{late.hosts_apart} other hosts"
        text += (
            f"; ranks of {others} are not compared: the offsets of their clocks are not known well"
            " enough"
        )
    return text


def _lines(late: Late, snapshot: Snapshot, policy: Policy) -> list[str]:
    lines = []
    for number in late.ranks[:4]:
        rank = snapshot.rank(number)
        # 1 means as fast as the ranks that wait, or as fast as its own best.
        scores = f"{1 - late.share_ratio:.0%} of the others' speed"
        if best_ms := rank.progress.step_best_ms:
            scores += (
                f", {min(1.0, best_ms / late.step_ms):.0%} of its own best (a step of"
                f" {_ms(best_ms)})"
            )
        lines.append(f"rank {number}: {cause_of(rank, late, snapshot, policy).text}; {scores}")
        if seen := flame(rank, policy):
            lines.append(f"rank {number}, last 30 s: " + ", ".join(seen))
    host = host_of(snapshot.rank(late.ranks[0]), snapshot)
    if host is not None and host.load is not None and (host.load.runnable or 0) > host.cores:
        lines.append(
            f"{host.host}: {host.load.runnable} threads ran or were ready to run at the last look,"
            f" on {host.cores} cores"
        )
    if (first := next(iter(late.waiters), None)) is not None and (
        seen := flame(snapshot.rank(first), policy)
    ):
        lines.append(f"rank {first}, which waits: " + ", ".join(seen))
    return lines


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"
