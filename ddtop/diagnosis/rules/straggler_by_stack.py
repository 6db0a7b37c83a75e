"""`straggler` among ranks that were started without ddtop, from many samples of their stacks.

It is always a warning, because its cost cannot be measured from outside.
"""

from __future__ import annotations

from ddtop.diagnosis.activity import where
from ddtop.diagnosis.context import Context
from ddtop.diagnosis.finding import WARNING, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.model.stragglers.by_stack import late_of
from ddtop.words.ranks import ranks_text, verb


def rule(context: Context) -> list[Finding]:
    """At most one finding."""
    snapshot, policy = context.snapshot, context.policy
    living = [rank for rank in snapshot.ranks if not rank.gone]
    late = late_of({rank.rank: rank.comm.outside for rank in living}, policy)
    if late is None or len(living) < snapshot.world_size:
        return []
    if any(rank.reported.phase == "leaving" for rank in living):
        # At the end of the job nobody waits for a rank that is done.
        return []
    first = snapshot.rank(late.ranks[0])
    look = first.comm.outside
    spot = f"; rank {first.rank} is {where(first, policy)}" if look and look.kind is None else ""
    waiters = f"{ranks_text(late.waiters)} {verb(late.waiters, 'is', 'are')}"
    return [
        Finding(
            kind=Kind.STRAGGLER,
            severity=WARNING,
            ranks=late.ranks,
            victims=late.waiters,
            since_unix_ns=snapshot.time_unix_ns - int(late.seconds * 1e9),
            summary=(
                f"{ranks_text(late.ranks)} {verb(late.ranks, 'is a straggler', 'are stragglers')},"
                f" by their stacks: {waiters} in a collective in {late.wait_ratio:.0%} of the looks"
                f" or more, {ranks_text(late.ranks)} in {late.call_ratio:.0%}{spot}"
            ),
            evidence=(
                (
                    f"{late.looks} looks or more at the main thread of each rank over"
                    f" {late.seconds:.0f} s; a rank that is late hardly waits, and the others wait"
                    " for it in each step"
                ),
                (
                    "the times at which ranks arrive in collectives are known of jobs that are"
                    " started with DDTOP=1 only, so the cost is not measured"
                ),
            ),
            advice=(
                f"ddtop stacks --pid {first.pid} shows where the time of rank {first.rank} goes;"
                " start the next run with DDTOP=1 to have the cost of each step"
            ),
        )
    ]
