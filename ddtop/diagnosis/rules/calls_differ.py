"""`calls-differ`: the ranks of a group no longer make the same calls. The job still runs, or hangs.

Calls with the same operation and size still complete, in pairs that do not belong together, until
one side has no call left. The ranks that are waited for then are innocent: the cause is the first
difference.
"""

from __future__ import annotations

from ddtop.diagnosis.finding import CRITICAL, WARNING, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.model.facts import Parting, Snapshot
from ddtop.words.sentences import made_text, names_of_groups, ranks_text, verb
from ddtop.words.units import duration, plural

ADVICE = (
    "make the same calls in the same order on all ranks: look for a condition before this call that"
    " is not the same everywhere (uneven batches, data, loss, clock, exceptions), and let one rank"
    " decide for all"
)


def hang(context: Context) -> list[Finding]:
    """The first difference in a group in which ranks now wait for ranks that do not come."""
    stuck = {blame.group for blame in context.snapshot.blames if blame.due}
    return [
        _finding(context.snapshot, parting, CRITICAL)
        for parting in context.snapshot.partings
        if parting.group in stuck
    ][:1]


def rule(context: Context) -> list[Finding]:
    """The first difference of each group, while the job still runs."""
    return [_finding(context.snapshot, parting, WARNING) for parting in context.snapshot.partings]


def _finding(snapshot: Snapshot, parting: Parting, severity: str) -> Finding:
    age = duration((snapshot.time_unix_ns - parting.since_unix_ns) / 1e9)
    group = names_of_groups(snapshot.groups).get(parting.group, parting.group)
    odd, others = ranks_text(parting.ranks), ranks_text(parting.others)
    majority = len(parting.ranks) < len(parting.others)
    spot = f"{parting.spot} of {group}"
    odd_call, usual_call = (
        made_text(parting.made, parting.instead),
        made_text(parting.instead, parting.made),
    )
    number = plural(abs(parting.more), "call")
    instead = f"{number} {'more' if parting.more > 0 else 'fewer'} than {others}"
    if parting.made.calls is None:
        instead += f", which {usual_call}"
    subject = (
        f"{odd} {verb(parting.ranks, 'has', 'have')}" if majority else f"{odd} and {others} have"
    )
    pronoun = verb(parting.ranks, "it", "they") if majority else odd
    held = [blame for blame in snapshot.blames if blame.due and blame.group == parting.group]
    waiting = sorted({rank for blame in held for rank in blame.waiters})
    stands = (
        f"; {ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} in #{held[0].seq}"
        if severity == CRITICAL
        else ""
    )
    return Finding(
        kind=Kind.CALLS_DIFFER,
        severity=severity,
        ranks=parting.ranks if majority else (),
        victims=tuple(rank for rank in waiting if rank not in parting.ranks),
        since_unix_ns=parting.since_unix_ns,
        summary=(
            f"{subject} been out of step since {spot} ({age}): {pronoun} {odd_call},"
            f" {instead}{stands}"
        ),
        # The same site twice: here its caller is always told.
        evidence=tuple(
            f"{ranks}: {made_text(site, site)} ({spot})"
            for ranks, site in ((odd, parting.made), (others, parting.instead))
        ),
        advice=ADVICE,
        group=parting.group,
        op=parting.made.op if parting.made.op == parting.instead.op else None,
        seq=parting.seq,
    )
