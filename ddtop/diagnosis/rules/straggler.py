"""`straggler`: the job moves, and at most steps all wait for the same ranks."""

from __future__ import annotations

from ddtop.diagnosis.finding import CRITICAL, WARNING, Finding
from ddtop.diagnosis.slow import cause_of, flame, host_of
from ddtop.diagnosis.words import names_of_groups, ranks_text, verb
from ddtop.model.facts import Snapshot
from ddtop.model.lateness import Late
from ddtop.model.policy import Policy


def rule(snapshot: Snapshot, policy: Policy) -> list[Finding]:
    """One finding for each set of late ranks."""
    lates = list(dict.fromkeys(rank.late for rank in snapshot.ranks if rank.late is not None))
    return [_finding(late, snapshot, policy) for late in lates]


def _finding(late: Late, snapshot: Snapshot, policy: Policy) -> Finding:
    ranks, share = late.ranks, late.share_ratio
    causes = {number: cause_of(snapshot.rank(number), late, snapshot) for number in ranks}
    lead = causes[ranks[0]]
    who = f"{ranks_text(late.waiters)} {verb(late.waiters, 'waits', 'wait')}"
    it = verb(ranks, "it", f"rank {ranks[0]}")
    it_text = verb(ranks, "it", "them")
    cost = f"{_ms(late.cost_ms)} of each {_ms(late.step_ms)} step for {it_text} ({share:.0%})"
    cost = cost if late.counted else f"{share:.0%} of the time for {it_text}"
    summary = f"{ranks_text(ranks)} {verb(ranks, 'comes', 'come')} last: {who} {cost}"
    summary += f"; {it} {lead.text}"
    return Finding(
        kind="straggler",
        severity=CRITICAL if share > policy.straggler_critical_ratio else WARNING,
        ranks=ranks,
        victims=late.waiters,
        since_unix_ns=late.unix_ns - int(late.late_ratio * late.steps * late.step_ms * 1e6),
        summary=summary,
        evidence=(_measured(late, snapshot), *_lines(late, snapshot)),
        advice=lead.advice,
        group=late.group,
    )


def _measured(late: Late, snapshot: Snapshot) -> str:
    group = names_of_groups(snapshot.groups).get(late.group, late.group)
    what = "steps" if late.counted else "collectives"
    text = (
        f"late in {late.late_ratio:.0%} of the last {late.steps} {what}, by the times at which each rank put in its collectives "
        f"of {group}; median cost {_ms(late.cost_ms)} of {_ms(late.step_ms)}"
    )
    if late.hosts > 1:
        text += f"; {late.hosts} hosts compared, their clocks agree to {_ms(late.error_ms)}"
    if late.hosts_apart:
        others = "another host" if late.hosts_apart == 1 else f"{late.hosts_apart} other hosts"
        text += f"; ranks of {others} are not compared: their clocks are not known well enough for this"
    return text


def _lines(late: Late, snapshot: Snapshot) -> list[str]:
    lines = []
    for number in late.ranks[:4]:
        rank = snapshot.rank(number)
        # 1 is as fast as the ranks that wait, and as it has been itself.
        scores = f"{1 - late.share_ratio:.2f} of the others' speed"
        if rank.step_best_ms:
            scores += f", {min(1.0, rank.step_best_ms / late.step_ms):.2f} of its own best (a step of {_ms(rank.step_best_ms)})"
        lines.append(f"rank {number}: {cause_of(rank, late, snapshot).text}; {scores}")
        if seen := flame(rank):
            lines.append(f"rank {number}, last 30 s: " + ", ".join(seen))
    host = host_of(snapshot.rank(late.ranks[0]), snapshot)
    if host is not None and host.load is not None and (host.load.runnable or 0) > host.cores:
        lines.append(
            f"{host.host}: {host.load.runnable} threads ran or wanted to at the last look, on {host.cores} cores"
        )
    if (first := next(iter(late.waiters), None)) is not None and (seen := flame(snapshot.rank(first))):
        lines.append(f"rank {first}, which waits: " + ", ".join(seen))
    return lines


def _ms(value: float) -> str:
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"
