"""`straggler`, `sync-bound`, `transfer-bound`, `imbalance`: the job could move faster."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from ddtop.diagnosis.rule import (
    CRITICAL,
    INFO,
    MOVES,
    WARNING,
    Context,
    Explanation,
    Finding,
    Kind,
    Limits,
    Policy,
    RuleRow,
    waits_are_explained,
)
from ddtop.diagnosis.shortage import delay_of, threads_delay_of, used_cores_of
from ddtop.diagnosis.straggler_cause import LIMIT, cause_of, share_of
from ddtop.model.facts import Balance, GpuLate, Late, RankFacts, Snapshot
from ddtop.model.stragglers import late_of

# -- `straggler`: the job makes progress, but in most steps all ranks wait for the same ranks


@dataclass(frozen=True)
class Cost(Limits, of="cost"):
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
    return found + [_by_gpu(late, snapshot) for late in late_gpus if not late.others_there]


def _by_gpu(late: GpuLate, snapshot: Snapshot) -> Finding:
    """A finding without a cost: the CPU side of all ranks moves together, and the wait of a kernel
    cannot be measured.
    """
    since = snapshot.time_unix_ns - int(late.seconds * 1e9)
    return Finding(
        Kind.STRAGGLER, WARNING, late.ranks, late.waiters, since, group=late.group, seen=late
    )


def _finding(late: Late, snapshot: Snapshot, policy: Policy) -> Finding:
    own = not all(
        cause_of(snapshot.rank(number), late, snapshot, policy).foreign for number in late.ranks
    )
    much = late.share_ratio > policy.of(Cost).critical_ratio
    return Finding(
        kind=Kind.STRAGGLER,
        severity=CRITICAL if own and much else WARNING,
        ranks=late.ranks,
        victims=late.waiters,
        since_unix_ns=late.unix_ns - int(late.late_ratio * late.steps * late.step_ms * 1e6),
        group=late.group,
        seen=late,
    )


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
    since = snapshot.time_unix_ns - int(late.seconds * 1e9)
    return [Finding(Kind.STRAGGLER, WARNING, late.ranks, late.waiters, since, seen=late)]


# -- `sync-bound` and `transfer-bound`: no rank is late, and much of each step is communication


@dataclass(frozen=True)
class SyncBound(Limits, of=Kind.SYNC_BOUND):
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
    """A job this young imports, distributes weights, and its first steps are not a rhythm."""


class Communication(NamedTuple):
    """The share of their time in which the ranks of a group communicate and do not wait."""

    balance: Balance
    ratio: float


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
            kind, found = (
                Kind.TRANSFER_BOUND,
                _transfers(members, balance, share, snapshot, policy),
            )
        else:
            kind = Kind.SYNC_BOUND
            found = (
                balance.per_step >= limits.calls
                and share >= limits.ratio
                and all(rank.progress.step_ms for rank in members)
            )
        if found:
            window_s = members[0].reported.window_s or 0.0
            return [
                Finding(
                    kind=kind,
                    severity=WARNING,
                    ranks=balance.ranks,
                    victims=(),
                    since_unix_ns=balance.unix_ns - int(window_s * 1e9),
                    group=balance.group,
                    seen=Communication(balance, share),
                )
            ]
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
        since = balance.unix_ns - int(balance.steps * balance.step_ms * 1e6)
        return [
            Finding(
                Kind.IMBALANCE, INFO, (), balance.ranks, since, group=balance.group, seen=balance
            )
        ]
    return []


ROWS = (
    RuleRow(
        rule,
        (Kind.STRAGGLER,),
        "when the ranks arrive in collectives; power and clocks of their GPUs",
        unless=MOVES,
    ),
    RuleRow(
        straggler_by_stack,
        (Kind.STRAGGLER,),
        "how often each rank is found in a collective, for ranks that are read from outside",
        unless=(*MOVES, waits_are_explained),
    ),
    RuleRow(
        communication,
        (Kind.SYNC_BOUND, Kind.TRANSFER_BOUND),
        "the share of the time in collectives after all ranks have arrived, and their sizes",
        needs=("balances",),
        silenced_by=("oversubscribed",),
        unless=MOVES,
    ),
    RuleRow(
        imbalance,
        (Kind.IMBALANCE,),
        "which rank arrives last in each step, and how long the others wait",
        needs=("balances",),
        silenced_by=(
            "straggler",
            "straggler_by_stack",
            "input_bound",
            "oversubscribed",
            "communication",
        ),
        unless=MOVES,
    ),
)
PAGES = (
    Explanation(
        kind=Kind.STRAGGLER,
        severity="warning; critical if this alone costs more than half of the step",
        brief="in most steps all ranks wait for the same rank",
        meaning=(
            "All ranks leave a collective together, so the slowest one sets the speed, and the step"
            " time is the same on every rank. Only the waits show which rank is slow: it hardly"
            " waits, and the others wait for it in every step."
        ),
        found=(
            (
                "If sampled waits differ between ranks, the agents read torch's flight recorder"
                " once. It has the exact time of each collective on each rank."
            ),
            (
                "The rank must be late in {straggler.late_ratio} of at least {straggler.steps}"
                " steps, by at least {straggler.ratio} of the step and {straggler.least_ms}, far"
                " more often than by chance. Below {straggler_strong_ratio} a second read must"
                " agree. If a different rank is last each time, or only one step is long, there is"
                " no straggler."
            ),
            (
                "The cause is what takes this rank longer than the others: a loader (if theirs are"
                " busy for less than {loading.busy_ratio} of the time), CPU, memory, garbage"
                " collection, GIL, a line of Python, a slower GPU. If other programs take its CPU,"
                " or answer it late, it is only a warning."
            ),
            (
                "With NCCL the CPU side of all ranks moves together, so ddtop compares GPUs of the"
                " same model, for four times {gpu_mean_s}. The GPUs that wait spin: they are"
                " {gpu_wait_busy_ratio} busy but draw {gpu_wait_power_ratio} of the straggler's"
                " power, or {gpu-wait.below_peak_ratio} of their own peak while heat slows the"
                " straggler."
            ),
        ),
        steps=(
            (
                "The finding names the function. What does this rank do there that the others do"
                " not? You can gain at most its share of the step."
            ),
            (
                "Loader: see input-bound. CPU: see what else runs on its cores:\ntop -H; taskset"
                " -cp PID"
            ),
            (
                "Garbage collection: call gc.freeze() after start-up, and gc.collect() on all"
                " ranks at the same step."
            ),
            (
                "If all ranks run the same code, compare its host and GPU with another rank's"
                " (clocks, heat, other jobs)."
            ),
        ),
        before=("if rank == 0:", "    write_metrics(step)        # all others wait in every step"),
        after=(
            "if rank == 0 and step % 100 == 0:",
            "    queue.put(step)            # a thread writes them",
        ),
    ),
    Explanation(
        kind=Kind.IMBALANCE,
        severity="info",
        brief="each step waits for some rank, each time for another",
        meaning=(
            "No rank is slow, but in each step one has more to do than the others, which wait for"
            " it: longer samples, a garbage collection, more tokens for its experts. Nobody is at"
            " fault, and the time is lost all the same."
        ),
        found=(
            (
                "ddtop compares when the ranks arrive in their collectives. In the usual step a"
                " rank waits for the last one for {imbalance.ratio} of the time, over"
                " {imbalance.steps} steps or more, and no rank is the last in more than"
                " {imbalance.last_ratio} of them. The samples of the agents must agree."
            ),
            (
                "Silent while a straggler, a slow loader, a lack of CPUs or communication explains"
                " the waits, and for the stages of a pipeline."
            ),
        ),
        steps=(
            "Fill batches by number of tokens, not of samples; or sort samples by length.",
            "Collect garbage on all ranks at once:\ngc.disable(); ...; gc.collect()",
            "Accumulate gradients: over several batches the differences average out.",
            "Mixture of experts: look at the tokens per expert (capacity, balancing loss).",
        ),
        no_demo="what it costs is a choice of the program, and nothing is broken",
    ),
    Explanation(
        kind=Kind.SYNC_BOUND,
        severity="warning",
        brief="much of each step is communication, and no rank is late",
        meaning=(
            "The ranks arrive together, and the time goes into the collectives themselves. Each"
            " collective has a fixed cost, so many small ones cost more than the transfer of their"
            " data."
        ),
        found=(
            (
                "A rank spends at least {sync-bound.ratio} of its time in collectives, not"
                " counting the wait for the last rank to arrive (from torch's flight recorder). It"
                " makes at least {sync-bound.calls} collective calls per step, and nearly all of"
                " them are all_reduce, broadcast or barrier. A sharded model gathers by design, so"
                " gathers are not judged."
            ),
        ),
        steps=(
            "Reduce metrics as one tensor, and only every few steps.",
            (
                "If you reduce gradients yourself, flatten them into one tensor, or let DDP do it"
                " (bucket_cap_mb)."
            ),
            "Accumulate gradients: model.no_sync() on all but the last micro-batch.",
            "Remove barrier() where a collective follows anyway.",
        ),
        before=("for p in model.parameters():", "    dist.all_reduce(p.grad)"),
        after=("model = DistributedDataParallel(model)   # a few buckets, in backward",),
    ),
    Explanation(
        kind=Kind.TRANSFER_BOUND,
        severity="warning",
        brief="large tensors take most of each step, no rank is late",
        meaning=(
            "The ranks arrive together, and then wait until their data has been sent. The network"
            " is slow for what the job sends, or the ranks use a slow interface."
        ),
        found=(
            (
                "Collectives have {transfer-bound.call_bytes} of input or more in the mean, and"
                " take {transfer-bound.ratio} of the time, not counting the wait for the last rank"
                " to arrive (from torch's flight recorder). Where the ranks may compute meanwhile,"
                " as in backward, they must take {transfer-bound.overlapped_ratio}."
            ),
            (
                "A job younger than {transfer-bound.job_s} is not judged, and neither are NCCL,"
                " sharded models, and hosts with more ranks than CPUs."
            ),
        ),
        steps=(
            (
                "Which interface do the ranks use, and how fast is it?\nip -br addr; ethtool eth0"
                " | grep Speed"
            ),
            "Name the fast one: GLOO_SOCKET_IFNAME=ib0. On GPUs use NCCL.",
            "Accumulate gradients: model.no_sync() on all but the last micro-batch.",
            "Send half as much:\nmodel.register_comm_hook(None, default_hooks.bf16_compress_hook)",
        ),
        no_demo="it takes a slow network",
    ),
)
