"""What is said of ranks that are late, and of steps that are mostly communication or waiting."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ddtop.diagnosis.gpus import device_of, held_by_more_than_load, lasting_strangers
from ddtop.diagnosis.rules.straggler import Communication, Imbalance, SyncBound
from ddtop.diagnosis.shortage import delay_of
from ddtop.diagnosis.straggler_cause import (
    ANSWER,
    COMPUTES,
    CPU,
    GC,
    GIL,
    HELD,
    LIMIT,
    LOADER,
    MEMORY,
    PROGRAMS,
    PYTHON,
    SHARED,
    TAKEN,
    THROTTLED,
    UNKNOWN,
    Cause,
    SpotLimits,
    cause_of,
    is_bound,
    share_of,
)
from ddtop.model.facts import Balance, Device, GpuLate, Late, RankFacts
from ddtop.model.stragglers import LateByStack
from ddtop.policy import Policy
from ddtop.say.places import where_text
from ddtop.say.said import (
    Context,
    Finding,
    Kind,
    Said,
    Writer,
    about,
    group_text,
    long_size,
    marked,
    share,
    that_hold,
    waits_text,
)
from ddtop.say.topics.gpus import CLOCKS, COOL, COOLING, command, gpu_text, holders_text, why_held
from ddtop.say.topics.resources import running_text
from ddtop.wire.records import ACTIVITIES, HostLoad, ProcessLoad, Spot, by_function
from ddtop.words.sentences import ranks_text, verb

_LEAST_SHARE = 0.01
"""Of a step that is left to the others; less is not measured."""
RANKS_MOST = 4
NOT_MEASURED = "not measured"
"""Part of the text of a cause that no measurement explains."""


# -- Why a rank is late: the end of a sentence, after "it", and what to do

_CAUSES = {
    LOADER: (
        "waits {share} of the time for its DataLoader{workers}, the others wait less",
        "give its loader more workers, or look at its data: `ddtop explain input-bound`",
    ),
    ANSWER: (
        "waits {share} of the time for another program, in {spot}",
        "request the next answer while the ranks compute, or make that program faster",
    ),
    GC: (
        "spends {share} of the time in garbage collection",
        "call gc.freeze() after start-up, gc.disable(), and gc.collect() at the same step on all"
        " ranks",
    ),
    GIL: (
        "runs C code that holds the GIL in {share} of the samples{seen_at}",
        "that call computes outside Python: make it cheaper, move it into a DataLoader worker, or"
        " release the GIL in it",
    ),
    TAKEN: (
        "has another thread that computes in Python at {share} of the samples, in {spot}: both take"
        " the GIL in turns",
        "do what {spot} does in a process of its own (multiprocessing, a worker of the DataLoader),"
        " or less often",
    ),
    THROTTLED: (
        "is throttled {share} of the time by the CPU quota{quota} of its cgroup",
        "raise the CPU limit of its container, or start fewer threads and workers in it",
    ),
    SHARED: (
        "shares its GPU with {holders}",
        "see `ddtop gpus` on its host: end these processes if they are yours, else use another GPU",
    ),
    HELD: (
        "runs on a GPU that {why} holds at {mhz} MHz; the others' GPUs run at {usual:.0f}",
        COOL,
    ),
    COMPUTES: (
        "computes longer on its GPU: the others' GPUs are 100% busy at {amount_share} of its power,"
        " so they wait in NCCL",
        "does rank {rank} have more to compute (longer sequences, more tokens for its experts, an"
        " extra loss)? If not, compare its GPU with the others': {clocks}",
    ),
    CPU: (
        "waits {share} of the time for a CPU{crowd}",
        "see what else runs there (top -H), and give the rank its own cores: OMP_NUM_THREADS,"
        " taskset, --cpus-per-task",
    ),
    PROGRAMS: (
        "waits {share} of the time for a CPU; other programs {take}",
        "end the other programs on that host (top), or give the ranks their own CPUs: taskset,"
        " --exclusive, --cpus-per-task",
    ),
    MEMORY: (
        "reads {pages:.0f} pages a second back from disk: memory is low{stall}",
        "free memory on that host, or use fewer workers and smaller caches there: `free -h`,"
        " `vmstat 1`",
    ),
    LIMIT: ("has nearly reached its memory limit", ""),
    PYTHON: (
        "spends {share} of the time {does}in {spot}{beside}",
        "look at {spot}: what does this rank do there more often, or for longer, than the others?",
    ),
    UNKNOWN: (
        f"is slow, and the cause is {NOT_MEASURED}",
        "see where it spends its time: `ddtop stacks` a few times, or py-spy top on its pid;"
        " compare its host with the others",
    ),
}
_DOES = {True: "computing ", False: "asleep or waiting ", None: ""}


def cause_text(cause: Cause, rank: RankFacts, at: Context) -> tuple[str, str]:
    text, advice = _CAUSES[cause.word]
    usual, spot = cause.usual or 0.0, _spot(cause.spot) if cause.spot is not None else ""
    loader, report = rank.loader.report, rank.process.report
    quota = report.load.quota_cores if report is not None and report.load is not None else None
    details = {
        "rank": rank.rank,
        "share": about(cause.amount),
        "amount": cause.amount,
        "amount_share": share(cause.amount),
        "pages": round(cause.amount, -1),
        "usual": usual,
        "spot": spot,
        "seen_at": f", seen at {spot}" if spot else "",
        "beside": f", the others {about(usual)}" if cause.usual is not None else "",
        "does": _DOES[cause.computes],
        "workers": f" with num_workers={loader.workers}" if loader is not None else "",
        "quota": f" of {quota:g} cores" if quota else "",
        **_of_host(usual, rank, at),
        **(_of_gpu(cause.device, at.policy) if cause.device is not None else {}),
    }
    return text.format_map(details), advice.format_map(details)


def _of_host(cores: float, rank: RankFacts, at: Context) -> dict[str, str]:
    """`cores`: how many other programs use there."""
    host = at.snapshot.host_of(rank)
    if host is None:
        return {"crowd": "", "stall": ""}
    load, process = host.load or HostLoad(), rank.process.report
    own = process.load if process is not None and process.load is not None else ProcessLoad()
    steal, stall = load.steal_ratio or 0.0, load.memory_stall_ratio or 0.0
    crowd = that_hold(
        (
            is_bound(rank, host),
            f"; it is bound to {verb(own.cpus_count or 0, 'CPU', 'CPUs')} {own.cpus}",
        ),
        # The number of threads differs between samples, so it is only in the evidence.
        (
            (load.runnable or 0) > host.cores,
            f"; {host.host} has more threads to run than cores ({host.cores})",
        ),
        (steal >= at.policy.throttled_told_ratio, f"; the hypervisor takes {about(steal)}"),
    )
    some = f"run on {host.host} too"
    return {
        "crowd": "".join(crowd),
        "stall": f" ({host.host} stalls {about(stall)} of the time for it)" if stall else "",
        "take": f"take {cores:.0f} of the {host.cores} CPUs of {host.host}" if cores >= 1 else some,
    }


def _of_gpu(device: Device, policy: Policy) -> dict[str, object]:
    return {
        "holders": holders_text(lasting_strangers(device, policy)),
        "why": why_held(device.gpu),
        "mhz": device.gpu.sm_mhz,
        "cooling": command(COOLING, device.gpu),
        "clocks": command(CLOCKS, device.gpu),
    }


# -- `straggler`


def late(_: Finding, seen: Late, at: Context) -> Said:
    """Whom the others wait for, by the times of arrival: what that costs, and why."""
    ranks, ratio, snapshot = seen.ranks, seen.share_ratio, at.snapshot
    causes = {
        number: cause_text(
            cause_of(snapshot.rank(number), seen, snapshot, at.policy), snapshot.rank(number), at
        )
        for number in ranks[:RANKS_MOST]
    }
    cause, advice = causes[ranks[0]]
    cost = f"{_ms(seen.cost_ms)} of each {_ms(seen.step_ms)} step for {verb(ranks, 'it', 'them')}"
    cost += f" ({share(ratio)})"
    if not seen.counted:
        cost = f"{share(ratio)} of the time for {verb(ranks, 'it', 'them')}"
    lines = []
    for number, (text, __) in causes.items():
        rank = snapshot.rank(number)
        times = 1 / max(1 - ratio, _LEAST_SHARE)
        scores = f"its own work takes {times:.1f} times as long as that of the others"
        if best_ms := rank.progress.step_best_ms:
            best = f"{min(1.0, best_ms / seen.step_ms):.0%} of its own best"
            scores += f", {best} (a step of {_ms(best_ms)})"
        lines += [f"rank {number}: {text}; {scores}", *_flame_lines(rank, "last 30 s", at)]
    host = snapshot.host_of(snapshot.rank(ranks[0]))
    if host is not None and host.load is not None and (host.load.runnable or 0) > host.cores:
        lines.append(running_text(host))
    for number in seen.waiters[:1]:
        lines += _flame_lines(snapshot.rank(number), "which waits", at)
    return Said(
        f"{_are_stragglers(ranks)}: {waits_text(seen.waiters)} {cost}"
        f"; {verb(ranks, 'it', f'rank {ranks[0]}')} {cause}",
        (_measured_text(seen, at), *lines),
        advice,
    )


def _are_stragglers(ranks: tuple[int, ...]) -> str:
    return f"{ranks_text(ranks)} {verb(ranks, 'is a straggler', 'are stragglers')}"


def _measured_text(seen: Late, at: Context) -> str:
    others = "another host" if seen.hosts_apart == 1 else f"{seen.hosts_apart} other hosts"
    text = (
        f"late in {seen.late_ratio:.0%} of the last {seen.steps}"
        f" {'steps' if seen.counted else 'collectives'}, by the times at which each rank enqueued"
        f" its collectives of {group_text(at, seen.group)}; median cost {_ms(seen.cost_ms)} of"
        f" {_ms(seen.step_ms)}"
    )
    more = that_hold(
        (
            seen.hosts > 1,
            f"{seen.hosts} hosts compared, their clocks agree to {_ms(seen.error_ms)}",
        ),
        (
            seen.hosts_apart,
            f"ranks of {others} are not compared: their clock offsets are not known well enough",
        ),
    )
    return "; ".join((text, *more))


def _flame_lines(rank: RankFacts, when: str, at: Context) -> list[str]:
    places = flame(rank, at.policy)
    return [f"rank {rank.rank}, {when}: {', '.join(places)}"] if places else []


def flame(rank: RankFacts, policy: Policy, most: int = 3) -> list[str]:
    """`62% in Augment.rotate (aug.py:88)`: where the samples of the last half minute found the
    rank, most first.
    """
    return [
        f"{share_of(spot, rank):.0%} in {_spot(spot)}"
        for spot in by_function(rank.reported.spots)[:most]
        if share_of(spot, rank) >= policy.of(SpotLimits).least_ratio
    ]


def _spot(spot: Spot) -> str:
    # Of <locals> the innermost name is the one that is in the file.
    return (
        f"{spot.function.rpartition('<locals>.')[2]} ({spot.file.rpartition('/')[2]}:{spot.line})"
    )


def _ms(value: float) -> str:
    return marked(f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms")


def late_gpu(_: Finding, seen: GpuLate, at: Context) -> Said:
    """Whose GPU the others wait for, by the power that the GPUs draw."""
    ranks, waiters = seen.ranks, seen.waiters
    device = device_of(at.snapshot.rank(ranks[0]), at.snapshot)
    its, gpus = verb(ranks, "its", "their"), verb(ranks, "its GPU", "their GPUs")
    slow = seen.sm_mhz < at.policy.gpu_slow_ratio * seen.others_mhz
    if slow and device is not None and held_by_more_than_load(device.gpu):
        why = (
            f"{gpus} {verb(ranks, 'is', 'are')} held at {seen.sm_mhz:.0f} MHz by"
            f" {why_held(device.gpu)}, the others run at {seen.others_mhz:.0f};"
            f" {waits_text(waiters)} for {verb(ranks, 'it', 'them')} in NCCL"
        )
        advice = COOL.format(cooling=command(COOLING, device.gpu))
    else:
        why = (
            f"{gpus} {verb(ranks, 'computes', 'compute')} while {verb(waiters, 'that', 'those')} of"
            f" {waits_text(waiters)} in NCCL, 100% busy at"
            f" {share(seen.others_watts / seen.power_watts)} of {its} power"
        )
        gpu = command(CLOCKS, device.gpu) if device is not None else ""
        advice = _CAUSES[COMPUTES][1].format(rank=ranks[0], clocks=gpu) if gpu else ""
    return Said(
        f"{_are_stragglers(ranks)}: {why}",
        (
            f"over the last {seen.seconds:.0f} s, and in each quarter of that time, GPUs of the"
            f" same model in {group_text(at, seen.group)}: {its} GPU drew"
            f" {seen.power_watts:.0f} W at {seen.sm_mhz:.0f} MHz, the others"
            f" {seen.others_watts:.0f} W at {seen.others_mhz:.0f} MHz, all busy the whole time",
            "the CPU side of all ranks enqueues its collectives at the same time, so arrival times"
            " do not show this wait, and its cost is not measured",
            *(line for number in ranks[:RANKS_MOST] for line in _gpu_lines(number, at)),
        ),
        advice,
    )


def _gpu_lines(number: int, at: Context) -> Iterator[str]:
    device = device_of(at.snapshot.rank(number), at.snapshot)
    if device is not None:
        gpu, held = device.gpu, why_held(device.gpu)
        parts = [f"{gpu.celsius} C"] if gpu.celsius is not None else []
        parts += [f"power cap {gpu.power_cap_watts:.0f} W"] if gpu.power_cap_watts else []
        down = f"its clocks are held down by {held}" if held else "nothing holds its clocks down"
        yield f"rank {number}, {gpu_text(device)}: {', '.join((*parts, down))}"


def late_by_stack(_: Finding, seen: LateByStack, at: Context) -> Said:
    """Whom the others wait for, by many looks at their stacks."""
    first, late, waiters = at.snapshot.rank(seen.ranks[0]), ranks_text(seen.ranks), seen.waiters
    look = first.comm.outside
    spot = f"; rank {first.rank} is {where_text(first)}" if look and look.kind is None else ""
    return Said(
        f"{_are_stragglers(seen.ranks)}, judged by stacks: {ranks_text(waiters)}"
        f" {verb(waiters, 'is', 'are')} in a collective in at least {share(seen.wait_ratio)} of the"
        f" looks, {late} in {share(seen.call_ratio)}{spot}",
        (
            f"at least {seen.looks} looks at the main thread of each rank over"
            f" {seen.seconds:.0f} s; a rank that is late hardly waits, and the others wait for it"
            " in each step",
            "only ranks started with DDTOP=1 report when they arrive in collectives, so the cost is"
            " not measured",
        ),
        f"ddtop stacks --pid {first.pid} shows where rank {first.rank} spends its time; start the"
        " next run with DDTOP=1 to see the cost per step",
    )


# -- `sync-bound`, `transfer-bound` and `imbalance`


def communication(finding: Finding, seen: Communication, at: Context) -> Said:
    """How much of each step is communication, and of what."""
    balance, ratio = seen
    members = [at.snapshot.rank(number) for number in balance.ranks]
    lead, group = members[0], group_text(at, balance.group)
    crowded = median([delay_of(rank) for rank in members])
    pending = median([member.comm.wait_ratio or 0.0 for member in members])
    op = next((one.last_op for one in lead.comm.groups if one.group == balance.group), None)
    places = flame(lead, at.policy)
    size = f", of {long_size(round(balance.call_bytes))}" if balance.call_bytes else ""
    summary = f"{ranks_text(balance.ranks)} spend {about(ratio)} of the time in "
    if finding.kind == Kind.TRANSFER_BOUND:
        hosts = {member.host for member in members if member.host}
        speed = balance.step_bytes / (ratio * balance.step_ms / 1000)
        summary += (
            f"transfers, and no rank is late: {long_size(round(balance.step_bytes))} of {group} in"
            f" each step of {marked(f'{balance.step_ms:.0f} ms')}, {long_size(round(speed))}/s"
            f" {f'between {len(hosts)} hosts' if len(hosts) > 1 else 'on one host'}"
        )
        advice = (
            "send less: accumulate gradients (no_sync), send bfloat16 (a DDP communication hook);"
            " or faster: see that the ranks use the fast interface (GLOO_SOCKET_IFNAME), or NCCL"
        )
    else:
        summary += (
            f"communication: {balance.per_step} collectives of {group} in each step of"
            f" {marked(f'{balance.step_ms:.0f} ms')}"
        )
        advice = (
            "remove the barriers: each collective waits for all ranks anyway"
            if op == "barrier"
            else "combine small tensors into one (flatten them, as DDP does; a larger"
            " bucket_cap_mb there), remove barriers that a step does not need, reduce metrics only"
            " every few steps, accumulate gradients with no_sync()"
        )
    lines = [
        f"a collective was pending in {pending:.0%} of the looks; waiting for the last rank to"
        f" arrive explains {balance.waiting_ratio:.0%}",
        (f"the last one was {op}; " if op else "")
        + f"{balance.per_step * 1000 / balance.step_ms:.0f} collectives a second{size}",
    ]
    lines += that_hold(
        (places, f"rank {lead.rank}: {', '.join(places)}"),
        (
            crowded >= at.policy.of(SyncBound).crowded_ratio,
            f"the ranks also waited {crowded:.0%} of the time for a CPU, which makes each"
            " collective take longer",
        ),
    )
    return Said(summary, tuple(lines), advice)


def imbalance(_: Finding, seen: Balance, at: Context) -> Said:
    """What each step waits for, where it is another rank each time."""
    ratios = [at.snapshot.rank(number).reported.activity_ratios for number in seen.ranks]
    shares = sorted(
        (
            (median(each), name)
            for each, name in zip(zip(*ratios, strict=False), ACTIVITIES, strict=False)
        ),
        reverse=True,
    )
    least = at.policy.of(Imbalance).phase_ratio
    spent = [f"{ratio:.0%} {name}" for ratio, name in shares if ratio >= least]
    return Said(
        f"each step waits for some rank, and each time for another: {ranks_text(seen.ranks)} lose"
        f" {about(seen.usual_ratio)} of the time, {_ms(seen.usual_ratio * seen.step_ms)} of each"
        f" {_ms(seen.step_ms)} step",
        (
            "by the times at which each rank enqueued its collectives of"
            f" {group_text(at, seen.group)}: no rank was the last in more than"
            f" {seen.last_ratio:.0%} of {seen.steps} steps",
            *([f"where the ranks spend their time: {', '.join(spent)}"] if spent else []),
        ),
        "give each rank as much work in each step: batches by number of tokens, samples of similar"
        " length together, gc.collect() on all ranks at the same step",
    )


WRITERS: dict[type, Writer] = {
    Balance: imbalance,
    Communication: communication,
    GpuLate: late_gpu,
    Late: late,
    LateByStack: late_by_stack,
}
