"""`calls-differ`: the ranks of a group no longer make the same calls. The job still runs, or hangs.

Calls with the same operation and size still complete, in pairs that do not belong together, until
one side has no call left. The ranks that are waited for then are innocent: the cause is the first
difference.
"""

from __future__ import annotations

from typing import NamedTuple

from ddtop.diagnosis.rule import (
    CAUSES,
    CRITICAL,
    RUNS,
    WARNING,
    Context,
    Explanation,
    Finding,
    Kind,
    RuleRow,
)
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


ROWS = (
    RuleRow(
        hang,
        (Kind.CALLS_DIFFER,),
        "the calls that each rank made after another one for the first time, and who waits",
        needs=("partings", "blames"),
        silenced_by=CAUSES,
        unless=RUNS,
        may_be_earlier=True,
    ),
    RuleRow(
        rule,
        (Kind.CALLS_DIFFER,),
        "the calls that each rank made after another one for the first time",
        needs=("partings",),
        silenced_by=(*CAUSES, "hang"),
        unless=RUNS,
    ),
)
PAGES = (
    Explanation(
        kind=Kind.CALLS_DIFFER,
        severity="warning, critical once ranks wait",
        brief="a rank made one call more or less than the others",
        meaning=(
            "The ranks of a group must make the same calls in the same order. Here one of them made"
            " calls too many or too few. Calls with the same operation and size still complete, so"
            " the job goes on, with wrong numbers, until one side has no call left. The ranks that"
            " are waited for then are innocent."
        ),
        found=(
            (
                "Each rank notes its turns: calls that follow another call for the first time."
                " Ranks in step make their turns at the same sequence numbers. The first turn that"
                " some members made and others did not is the first difference. A loop that has"
                " made a call equally often each time turns where it makes it more or less often."
            ),
            (
                "A call from another line is not a difference if it may replace the call of the"
                " others: only a turn that has changed the number of calls counts. The steps of the"
                " optimizer are compared in the same way, by their lines and the calls between."
            ),
            (
                "It is told after {calls-differ.settled_s}. The smaller side is at fault; if both"
                " sides have equally many ranks, nobody is. The page of the group shows both lines."
            ),
        ),
        steps=(
            (
                "Look at both lines, and for the condition before them: it depends on the rank, its"
                " data or its clock."
            ),
            "Let one rank decide, and broadcast the decision.",
            "A step that is tried again must be tried again on all ranks.",
        ),
        before=(
            "if rank == 0 and step % 60 == 0:",
            "    log_mean(loss)          # has an all_reduce inside",
        ),
        after=(
            "if step % 60 == 0:",
            "    mean = log_mean(loss)   # all ranks call it",
            "    if rank == 0: print(mean)",
        ),
    ),
)
