"""`calls-differ`: the ranks of a group no longer make the same calls. The job still runs, or hangs.

Calls with the same operation and size still complete, in pairs that do not belong together, until
one side has no call left. The ranks that are waited for then are innocent: the cause is the first
difference.
"""

from __future__ import annotations

from typing import NamedTuple

from ddtop.diagnosis.finding import CRITICAL, WARNING, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.model.facts import Parting, Snapshot


class OutOfStep(NamedTuple):
    """A difference, and the ranks that wait in collective `waits_in` of that group."""

    parting: Parting
    waiting: tuple[int, ...]
    waits_in: int | None


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
    held = [blame for blame in snapshot.blames if blame.due and blame.group == parting.group]
    waiting = tuple(sorted({rank for blame in held for rank in blame.waiters}))
    return Finding(
        Kind.CALLS_DIFFER,
        severity,
        parting.ranks if len(parting.ranks) < len(parting.others) else (),
        tuple(rank for rank in waiting if rank not in parting.ranks),
        parting.since_unix_ns,
        group=parting.group,
        op=parting.made.op if parting.made.op == parting.instead.op else None,
        seq=parting.seq,
        seen=OutOfStep(parting, waiting, held[0].seq if held else None),
    )
