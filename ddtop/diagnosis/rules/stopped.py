"""`rank-stopped`: state T or a frozen cgroup for two seconds. This is enough, because a stopped
rank can do nothing.
"""

from __future__ import annotations

from ddtop.diagnosis.context import Context
from ddtop.diagnosis.evidence import process_line
from ddtop.diagnosis.finding import CRITICAL, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.waiters import first_wait, waits_clause
from ddtop.model.state.facts import RankFacts, Snapshot, State
from ddtop.model.waits.wait_graph import waiters_of
from ddtop.words.ranks import ranks_text, verb
from ddtop.words.units import duration


def rule(context: Context) -> list[Finding]:
    """One finding for all ranks that are stopped."""
    snapshot, policy = context.snapshot, context.policy
    now = snapshot.time_unix_ns
    stopped = [
        rank
        for rank in snapshot.ranks
        if rank.state is State.STOPPED
        and rank.process.state_since_unix_ns is not None
        and now - rank.process.state_since_unix_ns >= policy.stopped_limit_s * 1e9
    ]
    if not stopped:
        return []
    ranks = tuple(rank.rank for rank in stopped)
    since = min(rank.process.state_since_unix_ns or now for rank in stopped)
    waiting = _waiting(snapshot, frozenset(ranks))
    how, advice = _how(stopped)
    summary = (
        f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} been {how} for"
        f" {duration((now - since) / 1e9)}"
    )
    wait = first_wait(snapshot, waiting, frozenset(ranks)) if waiting else None
    victims = tuple(rank.rank for rank in waiting)
    if wait is not None:
        summary += f"; {waits_clause(snapshot, wait, ranks, victims)}"
    evidence = tuple(
        line for rank in stopped[:8] if (line := process_line(rank, policy)) is not None
    )
    return [
        Finding(
            kind=Kind.RANK_STOPPED,
            severity=CRITICAL,
            ranks=ranks,
            victims=victims,
            since_unix_ns=since,
            summary=summary,
            evidence=evidence,
            advice=advice,
            group=wait.group if wait else None,
            op=wait.op if wait else None,
            seq=wait.seq if wait else None,
        )
    ]


def _waiting(snapshot: Snapshot, stopped: frozenset[int]) -> list[RankFacts]:
    """The ranks in a collective that a stopped rank holds up.

    A collective that all members have entered needs all of them. A rank that waits only for other
    ranks has another reason.
    """
    held_up = waiters_of(blame for blame in snapshot.blames if blame.root in stopped)
    return [
        rank
        for rank in snapshot.ranks
        if rank.wait is not None
        and rank.rank not in stopped
        and not rank.gone
        and (rank.rank in held_up or not rank.wait.behind)
    ]


def _how(stopped: list[RankFacts]) -> tuple[str, str]:
    """(what stopped it, how to let it continue)."""
    pids = [str(rank.process.report.pid) for rank in stopped if rank.process.report]
    held = {
        "frozen" if rank.process.report.frozen else rank.process.report.state
        for rank in stopped
        if rank.process.report
    }
    if held == {"frozen"}:
        thaw = "echo 0 > its cgroup.freeze (version 1: echo THAWED > freezer.state)"
        return "frozen by its cgroup", f"thaw it: {thaw}, the path is in /proc/{pids[0]}/cgroup"
    if held == {"t"}:
        return "held by a debugger", f"detach the debugger: grep TracerPid /proc/{pids[0]}/status"
    return "stopped (SIGSTOP or Ctrl-Z)", f"let it continue: kill -CONT {' '.join(pids[:16])}"
