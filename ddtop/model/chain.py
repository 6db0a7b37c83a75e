"""The wait chain of a rank: what it waits for, and what that one waits for."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from ddtop.model.account import other_threads
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.wire.records import KEY, PROCESS, Link


def chain_of(rank: RankFacts) -> tuple[Link, ...]:
    """What it waits for, the nearest first: in Python, then in the kernel."""
    in_python, process = rank.reported.chain, rank.process.report
    if process is None or not process.chain or (in_python and in_python[-1].resource == KEY):
        return in_python
    last, first = in_python[-1:], process.chain[0]
    if last and first.resource == PROCESS:
        # Both are the process that has what the program waits for.
        named = msgspec.structs.replace(first, resource=last[0].resource, named=last[0].named)
        return (*in_python[:-1], named, *process.chain[1:])
    return in_python if last and last[0].circle else in_python + process.chain


def waiting_end(snapshot: Snapshot, rank: RankFacts, waiters: Collection[int]) -> RankFacts | None:
    """The rank at the end of its chain, if that one waits for it; else None."""
    last = next(reversed(chain_of(rank)), None)
    waits = last is not None and last.rank is not None and last.rank in waiters
    return snapshot.rank(last.rank) if waits and last and last.rank is not None else None


def closes_circle(rank: RankFacts, end: RankFacts | None = None) -> bool:
    """Whether its chain comes back to itself. `end`: the rank at the end that waits for it.

    Between processes that is only sure where no other thread of the process runs the program: such
    a thread might go on.
    """
    last = next(reversed(chain_of(rank)), None)
    if last is None or not (last.circle or end is not None):
        return False
    stacks = (end or rank).dump.stacks
    alone = stacks is not None and bool(stacks.method) and not other_threads(stacks)
    return alone or (last.circle and last.pid is None)
