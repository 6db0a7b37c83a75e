"""`io-stall`: the main thread stays in one uninterruptible sleep (state D), and its I/O does not
progress.

A rank that writes a large checkpoint is often in state D too, but it wakes up and its counters
grow. For a rank whose file server is dead, neither happens. Even SIGKILL does not end it before the
server answers.
"""

from __future__ import annotations

from ddtop.diagnosis.activity import classify, where
from ddtop.diagnosis.context import Context
from ddtop.diagnosis.evidence import place_line, process_line, stack_lines
from ddtop.diagnosis.finding import CRITICAL, WARNING, Finding
from ddtop.diagnosis.kernel_wait import may_be_io
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.waiters import waits_clause
from ddtop.model.state.facts import Blame, RankFacts, Snapshot
from ddtop.model.waits.wait_graph import GONE, LOST, STOPPED, waiters_of
from ddtop.policy import Policy
from ddtop.words.ranks import ranks_text, verb
from ddtop.words.units import duration


def rule(context: Context) -> list[Finding]:
    """One finding for the ranks that others wait for, one for those that nobody waits for yet."""
    snapshot, policy = context.snapshot, context.policy
    now = snapshot.time_unix_ns
    blames = {
        blame.root: blame
        for blame in snapshot.blames
        if blame.condition not in (GONE, STOPPED, LOST)
        and now - blame.since_unix_ns >= policy.still_limit_s * 1e9
    }
    awaited, alone = [], []
    for rank in snapshot.ranks:
        since = None if rank.gone else rank.process.stalled_since_unix_ns
        if since is None or not may_be_io(rank.process.report):
            continue
        if rank.rank in blames and now - since >= policy.still_limit_s * 1e9:
            awaited.append(rank)
        elif now - since >= policy.stall_alone_limit_s * 1e9:
            alone.append(rank)
    found = [_finding(snapshot, CRITICAL, awaited, blames, policy)] if awaited else []
    return [*found, _finding(snapshot, WARNING, alone, {}, policy)] if alone else found


def _finding(
    snapshot: Snapshot,
    severity: str,
    stalled: list[RankFacts],
    blames: dict[int, Blame],
    policy: Policy,
) -> Finding:
    now = snapshot.time_unix_ns
    ranks = tuple(rank.rank for rank in stalled)
    since = min(rank.process.stalled_since_unix_ns or now for rank in stalled)
    lead = stalled[0]
    wchan = lead.process.report.wchan if lead.process.report is not None else None
    summary = (
        f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} been in uninterruptible sleep"
        f" ({wchan or 'state D'}) for {duration((now - since) / 1e9)}, {where(lead, policy)}"
    )
    mine = [blames[rank] for rank in ranks if rank in blames]
    first = min(mine, key=lambda blame: blame.since_unix_ns) if mine else None
    victims = tuple(sorted(waiters_of(mine) - set(ranks)))
    if first is not None:
        summary += f"; {waits_clause(snapshot, first, ranks, victims)}"
    lines = [
        line
        for rank in stalled[:4]
        for line in (process_line(rank, policy), place_line(rank), *stack_lines(rank, policy))
    ]
    return Finding(
        kind=Kind.IO_STALL,
        severity=severity,
        ranks=ranks,
        victims=victims,
        since_unix_ns=since,
        summary=summary,
        evidence=tuple(line for line in lines if line is not None),
        advice=_advice(lead, policy),
        group=first.group if first else None,
        op=first.op if first else None,
        seq=first.seq if first else None,
    )


def _advice(rank: RankFacts, policy: Policy) -> str:
    if classify(rank, policy).word == "child":
        return f"see what its child waits for: ps -o pid,stat,wchan:32,args --ppid {rank.pid}"
    return (
        "fix the file server or disk behind it (dmesg names it); kill -9 has no effect before it"
        " answers"
    )
