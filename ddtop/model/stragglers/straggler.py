"""Which ranks are stragglers now: the last reads of the arrivals, if later samples still agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

from ddtop.model.state import ratios
from ddtop.model.state.arrival_rounds import Round
from ddtop.model.state.facts import RankFields, State
from ddtop.model.state.memory import JobMemory, RankMemory
from ddtop.model.state.straggler_facts import Balance, Hold, Late, Pressure
from ddtop.model.stragglers import arrivals
from ddtop.policy import Policy
from ddtop.wire.records import Group


def mark_late(
    job: JobMemory, facts: dict[int, RankFields], now_unix_ns: int, policy: Policy
) -> tuple[Balance, ...]:
    """Mark the ranks that are late now in `facts`.

    Returns how even the ranks of each group are.
    """
    if not job.rounds:
        return ()
    rounds = arrivals.findings_of(
        job.rounds, job.groups.values(), _staged(job, facts, policy), policy
    )
    found: list[Late] = []
    # The last read may have met a noisy moment, or half of the ranks have answered so far. Then the
    # read before counts, as long as the samples agree.
    for newest in range(len(rounds) - 1, max(len(rounds) - 3, -1), -1):
        earlier = rounds[:newest]
        found = [
            one
            for one in rounds[newest].late
            if _still_holds(one, earlier, job, facts, now_unix_ns, policy)
        ]
        if rounds[newest].late:
            break
    found.sort(key=lambda late: -late.share_ratio)
    for late in found:
        for rank in late.ranks:
            one = facts[rank]
            one.late = late
            if one.state in (State.RUNNING, State.WAITING):
                one.state = State.STRAGGLER
        for rank in (*late.ranks, *late.waiters):
            if rank in facts:
                facts[rank].hold = _hold(job.ranks[rank], now_unix_ns, policy)
    oldest = now_unix_ns - policy.straggler_stale_s * 1e9
    balances = next((one.balances for one in reversed(rounds) if one.balances), ())
    return tuple(balance for balance in balances if balance.unix_ns >= oldest)


def pressure(memory: RankMemory, now_unix_ns: int, policy: Policy) -> Pressure | None:
    """What its host does to a rank; None where the relay does not measure it."""
    grown = (
        memory.load.grown(policy.oversubscribed_window_s, now_unix_ns)
        if memory.load is not None
        else None
    )
    if grown is None or grown[0] < policy.window_min_s:
        return None
    seconds, (delay_ns, faults, throttled_ns, threads_ns, used_ns) = grown
    load = memory.process.load if memory.process is not None else None
    if load is None:
        return None
    return Pressure(
        seconds=seconds,
        delay_ratio=min(1.0, delay_ns / (seconds * 1e9)) if load.run_delay_ns is not None else None,
        throttled_ratio=min(1.0, throttled_ns / (seconds * 1e9))
        if load.throttled_ns is not None
        else None,
        faults_per_s=faults / seconds if load.major_faults is not None else None,
        threads_delay_cores=threads_ns / (seconds * 1e9)
        if load.threads_delay_ns is not None
        else None,
        used_cores=used_ns / (seconds * 1e9),
    )


def _hold(memory: RankMemory, now_unix_ns: int, policy: Policy) -> Hold | None:
    grown = memory.counters.grown(policy.window_s, now_unix_ns)
    if grown is None:
        return None
    seconds, (_, held, gc_ns), looks = (
        grown[0],
        grown[1][ratios.AGENT],
        sum(grown[1][ratios.ACTIVITIES]),
    )
    spot = memory.state.held_spot if memory.state is not None else None
    return (
        Hold(seconds, min(1.0, held / looks), min(1.0, gc_ns / (seconds * 1e9)), spot)
        if looks
        else None
    )


def _staged(
    job: JobMemory, facts: Mapping[int, RankFields], policy: Policy
) -> Callable[[Group], bool]:
    """Whether two members of a group hand each other their work by send and recv.

    Then they wait for each other by design.
    """
    stages = [
        frozenset(group.ranks)
        for group in job.groups.values()
        if any(rank in facts and sends(facts[rank], group.name, policy) for rank in group.ranks)
    ]
    return lambda group: any(len(stage.intersection(group.ranks)) > 1 for stage in stages)


def sends(rank: RankFields, group: str, policy: Policy) -> bool:
    """Whether a good part of what it does in that group is send and recv."""
    return any(
        progress.group == group
        and max(progress.p2p_offset or 0, progress.p2p_calls)
        > policy.stages_ratio * progress.enqueued
        for progress in rank.comm.groups
    )


def _still_holds(
    late: Late,
    earlier: list[Round],
    job: JobMemory,
    facts: Mapping[int, RankFields],
    now_unix_ns: int,
    policy: Policy,
) -> bool:
    age_s = (now_unix_ns - late.unix_ns) / 1e9
    if age_s > policy.straggler_stale_s or any(
        rank not in facts or facts[rank].gone or facts[rank].agent.unheard for rank in late.ranks
    ):
        return False
    if all(_has_joined(facts.get(rank)) for rank in late.waiters):
        return False
    strong = late.share_ratio >= policy.straggler_strong_ratio
    # A neighbour that is busy for some seconds makes a rank late too.
    long = late.late_ratio * late.steps * late.step_ms / 1000 >= policy.straggler_span_s
    turns = _takes_turns(late, earlier, policy)
    apart_s = policy.straggler_crowded_apart_s if turns else _apart_s(late, facts, policy)
    if (late.few or not long or not strong or turns) and not _seen_before(late, earlier, apart_s):
        return False
    waiters = [
        ratio for rank in late.waiters if (ratio := _sampled(job, facts, rank, strong)) is not None
    ]
    own = [
        ratio for rank in late.ranks if (ratio := _sampled(job, facts, rank, strong)) is not None
    ]
    if not waiters or not own:
        return True
    return median(waiters) - max(own) >= policy.straggler_gone_ratio * late.share_ratio


def _has_joined(rank: RankFields | None) -> bool:
    """Whether it was out of data in the last half minute, and took part only so that the others
    could go on.

    Then it waited for nobody's slowness.
    """
    return rank is not None and any(spot.waits_on == "join" for spot in rank.reported.spots)


def _apart_s(late: Late, facts: Mapping[int, RankFields], policy: Policy) -> float:
    """How far apart two reads have to be to be independent, seconds.

    Other work on the host's cores lasts some seconds.
    """
    delays = [
        one.delay_ratio or 0.0
        for rank in late.ranks
        if (one := facts[rank].process.pressure) is not None
    ]
    crowded = late.share_ratio < policy.straggler_strong_ratio and any(
        delay >= late.share_ratio for delay in delays
    )
    return policy.straggler_crowded_apart_s if crowded else policy.straggler_rounds_apart_s


def _takes_turns(late: Late, earlier: list[Round], policy: Policy) -> bool:
    """Whether an earlier read was as sure of other ranks.

    Loaders that run dry in turn make one rank late for some seconds, then another.
    """
    return any(
        one.group == late.group
        and one.share_ratio >= policy.straggler_strong_ratio
        and not one.few
        and not set(one.ranks) & set(late.ranks)
        for found in earlier
        for one in found.late
    )


def _seen_before(late: Late, earlier: list[Round], apart_s: float) -> bool:
    """Whether an earlier read has named the same ranks."""
    return any(
        set(late.ranks) <= set(one.ranks) and late.unix_ns - one.unix_ns >= apart_s * 1e9
        for found in earlier
        for one in found.late
        if one.group == late.group
    )


def _sampled(
    job: JobMemory, facts: Mapping[int, RankFields], rank: int, strong: bool
) -> float | None:
    """How much it waits by the agent's samples.

    Over ten seconds where that shows the difference, otherwise over twenty.
    """
    if strong:
        return facts[rank].comm.wait_ratio if rank in facts else None
    memory = job.ranks.get(rank)
    return memory.wait_long_ratio if memory is not None else None
