"""`straggler`, `sync-bound`, `transfer-bound`, `imbalance`: the job could move faster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from ddtop.diagnosis.evidence import delay_of, threads_delay_of, used_cores_of
from ddtop.diagnosis.finding import CRITICAL, INFO, WARNING, Context, Finding
from ddtop.diagnosis.gpus import device_of, gpu_text, held_by_more_than_load, why_held
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.straggler_cause import (
    LIMIT,
    cause_of,
    cooling,
    flame,
    host_of,
    more_work,
    share_of,
)
from ddtop.model.facts import Balance, GpuLate, Late, RankFacts, Snapshot
from ddtop.model.stragglers import late_of
from ddtop.policy import Limits, Policy
from ddtop.say.places import where_text
from ddtop.wire.records import ACTIVITIES
from ddtop.words.sentences import about, names_of_groups, ranks_text, verb
from ddtop.words.units import long_size

# -- `straggler`: the job makes progress, but in most steps all ranks wait for the same ranks


@dataclass(frozen=True)
class Cost(Limits, of="cost", was="straggler_"):
    """What a straggler costs, as a share of the step."""

    critical_ratio: float = 0.5
    """Most of the step is waiting for one rank."""


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
    subject = f"{ranks_text(ranks)} {verb(ranks, 'is a straggler', 'are stragglers')}"
    it = verb(ranks, "it", "them")
    its = verb(ranks, "its GPU", "their GPUs")
    slow = late.sm_mhz < policy.gpu_slow_ratio * late.others_mhz
    if slow and device is not None and held_by_more_than_load(device.gpu):
        summary = (
            f"{subject}: {its} {verb(ranks, 'is', 'are')} held at {late.sm_mhz:.0f} MHz by"
            f" {why_held(device.gpu)}, the others run at {late.others_mhz:.0f};"
            f" {ranks_text(waiters)} {verb(waiters, 'waits', 'wait')} for {it} in NCCL"
        )
        advice = cooling(device)
    else:
        ratio = late.others_watts / late.power_watts
        summary = (
            f"{subject}: {its} {verb(ranks, 'computes', 'compute')} while"
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
                f"over the last {late.seconds:.0f} s, and in each quarter of that time, GPUs of"
                f" the same model in {group}: {verb(ranks, 'its', 'their')} GPU drew"
                f" {late.power_watts:.0f} W at {late.sm_mhz:.0f} MHz, the others"
                f" {late.others_watts:.0f} W at {late.others_mhz:.0f} MHz, all busy the whole time"
            ),
            (
                "the CPU side of all ranks enqueues its collectives at the same time, so arrival"
                " times do not show this wait, and its cost is not measured"
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
    parts.append(f"its clocks are held down by {held}" if held else "nothing holds its clocks down")
    return f"rank {number}, {gpu_text(device)}: {', '.join(parts)}"


def _finding(late: Late, snapshot: Snapshot, policy: Policy) -> Finding:
    ranks, share = late.ranks, late.share_ratio
    causes = {number: cause_of(snapshot.rank(number), late, snapshot, policy) for number in ranks}
    lead = causes[ranks[0]]
    waiters = f"{ranks_text(late.waiters)} {verb(late.waiters, 'waits', 'wait')}"
    it = verb(ranks, "it", f"rank {ranks[0]}")
    it_text = verb(ranks, "it", "them")
    cost = f"{_ms(late.cost_ms)} of each {_ms(late.step_ms)} step for {it_text} ({share:.0%})"
    own = not all(cause.foreign for cause in causes.values())
    cost = cost if late.counted else f"{share:.0%} of the time for {it_text}"
    summary = (
        f"{ranks_text(ranks)} {verb(ranks, 'is a straggler', 'are stragglers')}: {waiters} {cost}"
    )
    summary += f"; {it} {lead.text}"
    return Finding(
        kind=Kind.STRAGGLER,
        severity=CRITICAL if own and share > policy.of(Cost).critical_ratio else WARNING,
        ranks=ranks,
        victims=late.waiters,
        since_unix_ns=late.unix_ns - int(late.late_ratio * late.steps * late.step_ms * 1e6),
        summary=summary,
        evidence=(_measured_text(late, snapshot), *_lines(late, snapshot, policy)),
        advice=lead.advice,
        group=late.group,
    )


def _measured_text(late: Late, snapshot: Snapshot) -> str:
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
            f"; ranks of {others} are not compared: their clock offsets are not known well enough"
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


# -- `straggler` among ranks that were started without ddtop, from many samples of their stacks
#
# It is always a warning, because its cost cannot be measured from outside.


def straggler_by_stack(context: Context) -> list[Finding]:
    """At most one finding."""
    snapshot, policy = context.snapshot, context.policy
    living = [rank for rank in snapshot.ranks if not rank.gone]
    late = late_of({rank.rank: rank.comm.outside for rank in living}, policy)
    if late is None or len(living) < snapshot.world_size:
        return []
    if any(rank.reported.phase == "leaving" for rank in living):
        # At the end of the job nobody waits for a rank that is done.
        return []
    first = snapshot.rank(late.ranks[0])
    look = first.comm.outside
    spot = f"; rank {first.rank} is {where_text(first)}" if look and look.kind is None else ""
    waiters = f"{ranks_text(late.waiters)} {verb(late.waiters, 'is', 'are')}"
    return [
        Finding(
            kind=Kind.STRAGGLER,
            severity=WARNING,
            ranks=late.ranks,
            victims=late.waiters,
            since_unix_ns=snapshot.time_unix_ns - int(late.seconds * 1e9),
            summary=(
                f"{ranks_text(late.ranks)} {verb(late.ranks, 'is a straggler', 'are stragglers')},"
                f" judged by stacks: {waiters} in a collective in at least {late.wait_ratio:.0%}"
                f" of the looks, {ranks_text(late.ranks)} in {late.call_ratio:.0%}{spot}"
            ),
            evidence=(
                (
                    f"at least {late.looks} looks at the main thread of each rank over"
                    f" {late.seconds:.0f} s; a rank that is late hardly waits, and the others wait"
                    " for it in each step"
                ),
                (
                    "only ranks started with DDTOP=1 report when they arrive in collectives, so"
                    " the cost is not measured"
                ),
            ),
            advice=(
                f"ddtop stacks --pid {first.pid} shows where rank {first.rank} spends its time;"
                " start the next run with DDTOP=1 to see the cost per step"
            ),
        )
    ]


# -- `sync-bound` and `transfer-bound`: no rank is late, and much of each step is communication


@dataclass(frozen=True)
class SyncBound(Limits, of=Kind.SYNC_BOUND, was="sync_bound_"):
    """`sync-bound`."""

    ratio: float = 0.4
    """Share of a rank's time in collectives where all have arrived: communication, not waiting."""
    calls: int = 12
    """... and this many of them in a step. A few large ones are the price of the model's size, many
    small ones are not."""
    reduce_ratio: float = 0.75
    """... of which this share are all_reduce, barrier or have a root. Sharded models gather by
    design."""
    uneven_factor: float = 1.25
    """... and no rank communicates less than the usual one by more than this: a rank that hardly
    waits is not held up by the network."""
    crowded_ratio: float = 0.1
    """Share of the time that the ranks wait for a CPU. From here on that is reported beside the
    communication, which it makes longer."""


@dataclass(frozen=True)
class TransferBound(Limits, of=Kind.TRANSFER_BOUND):
    """`transfer-bound`."""

    ratio: float = 0.55
    """Share of the time in transfers: most of each step, over 10 s by what is pending and over 30 s
    by where the thread is. Large models on a good network spend 0.4."""
    overlapped_ratio: float = 0.85
    """... where the ranks may compute meanwhile. Backward, which hides it, is two thirds of a step,
    and three quarters if it computes activations again."""
    blocked_ratio: float = 0.5
    """Share of it in which the rank's thread was seen in the call: then it hides nothing."""
    call_bytes: float = 2.0**20
    """Input of a collective, in the mean. Below this its fixed cost is the larger part."""
    cpu_factor: float = 3.0
    """Threads of the ranks that are ready to run wait this many times as long as they run: then
    CPUs are short, not the network."""
    job_s: float = 20.0
    """A job this young imports, distributes weights, and its first steps are no rhythm."""


def communication(context: Context) -> list[Finding]:
    """One finding for the largest group whose steps are mostly collectives. Silent if ranks wait
    for each other.
    """
    snapshot, policy = context.snapshot, context.policy
    limits = policy.of(SyncBound)
    on_nccl = {group.name for group in snapshot.groups if "nccl" in group.backend}
    for balance in sorted(snapshot.balances, key=lambda each: -len(each.ranks)):
        if balance.group in on_nccl:
            continue
        members = [snapshot.rank(number) for number in balance.ranks]
        share = _communicating_ratio(members, balance, limits)
        if share is None or balance.reduce_ratio < limits.reduce_ratio:
            continue
        if balance.call_bytes >= policy.of(TransferBound).call_bytes:
            if _transfers(members, balance, share, snapshot, policy):
                return [_transfer_finding(balance, members, share, snapshot, policy)]
        elif (
            balance.per_step >= limits.calls
            and share >= limits.ratio
            and all(rank.progress.step_ms for rank in members)
        ):
            return [_sync_finding(balance, members, share, snapshot, policy)]
    return []


def _transfers(
    members: list[RankFacts], balance: Balance, share: float, snapshot: Snapshot, policy: Policy
) -> bool:
    limits = policy.of(TransferBound)
    for host, ranks in snapshot.by_host():
        if len(set(balance.ranks) & {rank.rank for rank in ranks}) > host.cores:
            # Their transfers take turns at the CPUs.
            return False
    wanting = sum(delay_of(rank) + threads_delay_of(rank) for rank in members)
    if wanting > limits.cpu_factor * sum(used_cores_of(rank) for rank in members):
        return False
    if _age_s(members, balance) < limits.job_s:
        return False
    blocked = median([_blocked_ratio(rank) for rank in members])
    if blocked < limits.blocked_ratio * share:
        return share >= limits.overlapped_ratio
    return min(share, blocked - balance.waiting_ratio) >= limits.ratio


def _age_s(members: list[RankFacts], balance: Balance) -> float:
    """For how long the youngest of them had run when the arrivals were read."""
    newest = balance.unix_ns
    began = max(rank.hello.started_unix_ns if rank.hello else newest for rank in members)
    return (newest - began) / 1e9


def _blocked_ratio(rank: RankFacts) -> float:
    spots = rank.reported.spots
    return sum(share_of(spot, rank) for spot in spots if spot.waits_on == "collective")


def _communicating_ratio(
    members: list[RankFacts], balance: Balance, limits: SyncBound
) -> float | None:
    """The share of the time in collectives, without waiting for the last rank to arrive. None if
    a rank is late, or not known.
    """
    if any(rank.gone or rank.late is not None or rank.comm.wait_ratio is None for rank in members):
        return None
    ratios = [rank.comm.wait_ratio or 0.0 for rank in members]
    # If one of the ranks hardly waits, the network is not the reason.
    return min(median(ratios), limits.uneven_factor * min(ratios)) - balance.waiting_ratio


def _advice(op: str | None) -> str:
    if op == "barrier":
        return "remove the barriers: each collective waits for all ranks anyway"
    return (
        "combine small tensors into one (flatten them, as DDP does; a larger bucket_cap_mb there),"
        " remove barriers that a step does not need, reduce metrics only every few steps,"
        " accumulate gradients with no_sync()"
    )


def _transfer_finding(
    balance: Balance, members: list[RankFacts], share: float, snapshot: Snapshot, policy: Policy
) -> Finding:
    found = _sync_finding(balance, members, share, snapshot, policy)
    group = names_of_groups(snapshot.groups).get(balance.group, balance.group)
    speed = balance.step_bytes / (share * balance.step_ms / 1000)
    hosts = sorted({member.host for member in members if member.host})
    where = f"between {len(hosts)} hosts" if len(hosts) > 1 else "on one host"
    return replace(
        found,
        kind=Kind.TRANSFER_BOUND,
        summary=(
            f"{ranks_text(balance.ranks)} spend {about(share)} of the time in transfers, and no"
            f" rank is late: {long_size(round(balance.step_bytes))} of {group} in each step of"
            f" {balance.step_ms:.0f} ms, {long_size(round(speed))}/s {where}"
        ),
        advice=(
            "send less: accumulate gradients (no_sync), send bfloat16 (a DDP communication hook);"
            " or faster: see that the ranks use the fast interface (GLOO_SOCKET_IFNAME), or NCCL"
        ),
    )


def _sync_finding(
    balance: Balance, members: list[RankFacts], share: float, snapshot: Snapshot, policy: Policy
) -> Finding:
    group = names_of_groups(snapshot.groups).get(balance.group, balance.group)
    lead = members[0]
    crowded = median([delay_of(rank) for rank in members])
    op = next(
        (progress.last_op for progress in lead.comm.groups if progress.group == balance.group), None
    )
    places = flame(lead, policy)
    pending = median([member.comm.wait_ratio or 0.0 for member in members])
    size = f", of {long_size(round(balance.call_bytes))}" if balance.call_bytes else ""
    return Finding(
        kind=Kind.SYNC_BOUND,
        severity=WARNING,
        ranks=balance.ranks,
        victims=(),
        since_unix_ns=balance.unix_ns - int((lead.reported.window_s or 0.0) * 1e9),
        summary=(
            f"{ranks_text(balance.ranks)} spend {about(share)} of the time in communication:"
            f" {balance.per_step} collectives of {group} in each step of {balance.step_ms:.0f} ms"
        ),
        evidence=(
            (
                f"a collective was pending in {pending:.0%} of the looks; waiting for the last"
                f" rank to arrive explains {balance.waiting_ratio:.0%}"
            ),
            (
                (f"the last one was {op}; " if op else "")
                + f"{balance.per_step * 1000 / balance.step_ms:.0f} collectives a second{size}"
            ),
            *([f"rank {lead.rank}: {', '.join(places)}"] if places else []),
            *(
                [
                    f"the ranks also waited {crowded:.0%} of the time for a CPU, which makes each"
                    " collective take longer"
                ]
                if crowded >= policy.of(SyncBound).crowded_ratio
                else []
            ),
        ),
        advice=_advice(op),
        group=balance.group,
    )


# -- `imbalance`: no rank is always late, but each step waits for some rank


@dataclass(frozen=True)
class Imbalance(Limits, of=Kind.IMBALANCE):
    """`imbalance`."""

    ratio: float = 0.2
    """Share of the usual step in which a rank waits for the last one. Ranks differ by data."""
    steps: int = 16
    """... over so many steps."""
    last_ratio: float = 0.7
    """No rank is the last in more of them. With two ranks chance reaches this once in 30 reads."""
    delay_ratio: float = 0.5
    """Waiting for a CPU explains it if it takes this part of it: then chance picks the last."""
    wait_ratio: float = 0.75
    """The samples of the last 10 s agree if they found this part of it."""
    phase_ratio: float = 0.05
    """Share of the time of a phase that is listed. Below it there are only a few samples."""
    job_s: float = 25.0
    """A job this young compiles, warms up and fills its caches, each rank in its own time."""


def imbalance(context: Context) -> list[Finding]:
    """One finding for the largest group, as an info: it may be what the data costs."""
    snapshot, limits = context.snapshot, context.policy.of(Imbalance)
    for balance in sorted(snapshot.balances, key=lambda each: -len(each.ranks)):
        members = [snapshot.rank(number) for number in balance.ranks]
        lost = balance.usual_ratio
        if lost < limits.ratio or balance.steps < limits.steps:
            continue
        if (
            balance.last_ratio > limits.last_ratio
            or _age_s(members, balance) < limits.job_s
            or any(rank.gone or rank.late is not None for rank in members)
            or median([rank.comm.wait_ratio or 0.0 for rank in members]) < limits.wait_ratio * lost
            or median([delay_of(rank) for rank in members]) > limits.delay_ratio * lost
        ):
            continue
        return [_imbalance_finding(balance, members, snapshot, limits)]
    return []


def _imbalance_finding(
    balance: Balance, members: list[RankFacts], snapshot: Snapshot, limits: Imbalance
) -> Finding:
    group = names_of_groups(snapshot.groups).get(balance.group, balance.group)
    lost_ms = balance.usual_ratio * balance.step_ms
    phases = zip(*[rank.reported.activity_ratios for rank in members], strict=False)
    shares = sorted(
        ((median(each), name) for each, name in zip(phases, ACTIVITIES, strict=False)),
        reverse=True,
    )
    spent = [f"{share:.0%} {name}" for share, name in shares if share >= limits.phase_ratio]
    return Finding(
        kind=Kind.IMBALANCE,
        severity=INFO,
        ranks=(),
        victims=balance.ranks,
        since_unix_ns=balance.unix_ns - int(balance.steps * balance.step_ms * 1e6),
        summary=(
            f"each step waits for some rank, and each time for another: {ranks_text(balance.ranks)}"
            f" lose {about(balance.usual_ratio)} of the time, {_ms(lost_ms)} of each"
            f" {_ms(balance.step_ms)} step"
        ),
        evidence=(
            (
                f"by the times at which each rank enqueued its collectives of {group}: no rank was"
                f" the last in more than {balance.last_ratio:.0%} of {balance.steps} steps"
            ),
            *([f"where the ranks spend their time: {', '.join(spent)}"] if spent else []),
        ),
        advice=(
            "give each rank as much work in each step: batches by number of tokens, samples of"
            " similar length together, gc.collect() on all ranks at the same step"
        ),
        group=balance.group,
    )
