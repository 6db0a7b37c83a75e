"""`not-in-collective` and `interpreter-frozen` if the waiting ranks cannot report, because C code
holds their GIL, or because they have no agent.

NCCL's own thread reports which ranks have enqueued a collective and which have not. The rule makes
a finding only if all ranks that have enqueued it are silent and NCCL has reported the same twice; a
training loop in C would launch more collectives in between. For ranks that are read from outside,
their stacks must show that they have been in one call without a break.
"""

from __future__ import annotations

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.evidence import place_line, process_line
from ddtop.diagnosis.finding import CRITICAL, WARNING, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.nccl import launched_less, ras_lines
from ddtop.model.state.facts import RankFacts, Snapshot, State
from ddtop.policy import Policy
from ddtop.words.ranks import ranks_text, verb
from ddtop.words.units import duration


def rule(context: Context) -> list[Finding]:
    """At most one finding: about the first communicator for which NCCL shows this."""
    snapshot, policy = context.snapshot, context.policy
    answer = snapshot.ras
    if answer is None or answer.why is not None or (snapshot.ras_age_s or 0.0) > policy.ras_fresh_s:
        return []
    same_s = (answer.same_ms or 0) / 1000
    for op, late, waiters in launched_less(snapshot, answer):
        roots, others = (
            [snapshot.rank(rank) for rank in late],
            [snapshot.rank(rank) for rank in waiters],
        )
        if any(_is_out(one) for one in roots):
            continue
        if same_s >= policy.ras_same_s and all(_is_frozen(one) for one in others):
            at = snapshot.time_unix_ns - int(((snapshot.ras_age_s or 0.0) + same_s) * 1e9)
            return [_finding(snapshot, op, roots, waiters, at, policy)]
        stayed_s = min((_stayed_s(one, snapshot) for one in others), default=0.0)
        if stayed_s >= policy.still_limit_s:
            at = snapshot.time_unix_ns - int(stayed_s * 1e9)
            return [_finding(snapshot, op, roots, waiters, at, policy, stayed_s)]
    return []


def _stayed_s(rank: RankFacts, snapshot: Snapshot) -> float:
    """For how long a rank that is read from outside has been in one call that may be for others."""
    look = rank.comm.outside
    if rank.gone or look is None or look.kind is None or look.since_unix_ns is None:
        return 0.0
    return (snapshot.time_unix_ns - look.since_unix_ns) / 1e9


def _is_frozen(rank: RankFacts) -> bool:
    return rank.state is State.SILENT and not rank.gone


def _is_out(rank: RankFacts) -> bool:
    """Whether another rule reports it, or nothing is known of it."""
    return rank.gone or rank.state is State.STOPPED or rank.hello is None or rank.agent.unheard


def _finding(
    snapshot: Snapshot,
    op: str,
    roots: list[RankFacts],
    waiters: tuple[int, ...],
    since: int,
    policy: Policy,
    stayed_s: float | None = None,
) -> Finding:
    """`stayed_s`: how long the waiters have been in the same call, as seen from outside."""
    ranks, first = tuple(one.rank for one in roots), roots[0]
    frozen = all(_is_frozen(one) for one in roots)
    if stayed_s is not None:
        why = f"by their stacks these have not moved on for {duration(stayed_s)}"
    else:
        held_s = min(snapshot.rank(rank).agent.report_age_s or 0.0 for rank in waiters)
        why = f"C code has held the GIL there for {duration(held_s)}"
    lines = [
        process_line(first, policy),
        place_line(first) if not frozen else None,
        *ras_lines(snapshot, policy)[:3],
    ]
    how = "--native " if frozen else ""
    return Finding(
        kind=Kind.INTERPRETER_FROZEN if frozen else Kind.NOT_IN_COLLECTIVE,
        severity=WARNING if any(one.process.working for one in roots) else CRITICAL,
        ranks=ranks,
        victims=waiters,
        since_unix_ns=since,
        summary=(
            f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} not enqueued the {op} that"
            f" {ranks_text(waiters)} {verb(waiters, 'waits', 'wait')} in, NCCL says; {why}"
        ),
        evidence=tuple(line for line in lines if line is not None),
        advice=f"see where {ranks_text(ranks[:1])} is stuck: py-spy dump {how}--pid {first.pid}",
        op=op,
    )
