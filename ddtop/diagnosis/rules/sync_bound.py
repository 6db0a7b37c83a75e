"""`sync-bound`: no rank is late, and much of each step is communication."""

from __future__ import annotations

from statistics import median

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import WARNING, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.pressure import delay_of
from ddtop.diagnosis.straggler_cause import flame
from ddtop.model.state.facts import RankFacts, Snapshot
from ddtop.model.state.straggler_facts import Balance
from ddtop.policy import Policy
from ddtop.words.ranks import ranks_text
from ddtop.words.sentences import about, names_of_groups


def rule(context: Context) -> list[Finding]:
    """One finding for the largest group whose steps are mostly collectives. Silent if ranks wait
    for each other.
    """
    snapshot, policy = context.snapshot, context.policy
    on_nccl = {group.name for group in snapshot.groups if "nccl" in group.backend}
    for balance in sorted(snapshot.balances, key=lambda one: -len(one.ranks)):
        if balance.group in on_nccl:
            continue
        members = [snapshot.rank(number) for number in balance.ranks]
        share = _communicating(members, balance, policy)
        if (
            balance.per_step < policy.sync_bound_calls
            or balance.reduce_ratio < policy.sync_bound_reduce_ratio
        ):
            continue
        if share is not None and share >= policy.sync_bound_ratio:
            return [_finding(balance, members, share, snapshot, policy)]
    return []


def _communicating(members: list[RankFacts], balance: Balance, policy: Policy) -> float | None:
    """The share of the time in collectives, without waiting for the last rank to arrive. None if
    the ranks count no steps.
    """
    if any(
        rank.gone
        or rank.late is not None
        or not rank.progress.step_ms
        or rank.comm.wait_ratio is None
        for rank in members
    ):
        return None
    ratios = [rank.comm.wait_ratio or 0.0 for rank in members]
    # If one of the ranks hardly waits, the network is not the reason.
    return (
        min(median(ratios), policy.sync_bound_uneven_factor * min(ratios)) - balance.waiting_ratio
    )


def _advice(op: str | None) -> str:
    if op == "barrier":
        return "leave the barriers out: each collective waits for all ranks by itself"
    return (
        "put small tensors into one (flatten them, DDP does), reduce metrics every few steps,"
        " accumulate gradients with no_sync()"
    )


def _finding(
    balance: Balance, members: list[RankFacts], share: float, snapshot: Snapshot, policy: Policy
) -> Finding:
    group = names_of_groups(snapshot.groups).get(balance.group, balance.group)
    lead = members[0]
    crowded = median([delay_of(one) for one in members])
    op = next((one.last_op for one in lead.comm.groups if one.group == balance.group), None)
    places = flame(lead, policy)
    pending = median([one.comm.wait_ratio or 0.0 for one in members])
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
                "a collective was pending in"
                f" {pending:.0%} of the looks, waiting"
                f" for the last rank to arrive explains {balance.waiting_ratio:.0%}"
            ),
            (
                (f"the last one was {op}; " if op else "")
                + f"{balance.per_step * 1000 / balance.step_ms:.0f} collectives a second"
            ),
            *([f"rank {lead.rank}: {', '.join(places)}"] if places else []),
            *(
                [
                    f"the ranks also waited {crowded:.0%} of the time for a CPU, which makes each"
                    " collective take longer"
                ]
                if crowded >= policy.sync_bound_crowded_ratio
                else []
            ),
        ),
        advice=_advice(op),
        group=balance.group,
    )
