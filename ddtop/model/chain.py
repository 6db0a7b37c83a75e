"""The wait chain of a rank: what it waits for, and what that one waits for."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from ddtop.model.account import other_threads
from ddtop.model.facts import RankFacts, RankFields, Snapshot
from ddtop.model.stacks import Owner, owner_of
from ddtop.wire.records import (
    BACKLOG,
    CALL,
    ITSELF,
    KEY,
    LOCK,
    PROCESS,
    RPC,
    Link,
    Place,
    ProcessState,
)


def chain_of(rank: RankFields) -> tuple[Link, ...]:
    """What it waits for, the nearest first: in Python, then in the kernel."""
    in_python, process = rank.reported.chain, _looked_at(rank)
    if in_python and in_python[0].resource == ITSELF:
        return _through_itself(in_python, process)
    if process is None or not process.chain or (in_python and in_python[-1].resource == KEY):
        return in_python
    last, first = in_python[-1:], process.chain[0]
    if last and (last[0].does == CALL or (last[0].resource == LOCK and last[0].who is None)):
        # The kernel says more of a lock than the text of the line.
        return in_python[:-1] + process.chain
    if last and first.resource == PROCESS:
        # Both are the process that has what the program waits for.
        named = msgspec.structs.replace(first, resource=last[0].resource, named=last[0].named)
        return (*in_python[:-1], named, *process.chain[1:])
    return in_python if last and last[0].circle else in_python + process.chain


def _looked_at(rank: RankFields) -> ProcessState | None:
    """Its process, if it has not come to another function since its chain was looked for."""
    process, place = rank.process.report, rank.reported.place
    looked = process.chain_unix_ns if process is not None else None
    came = place.since_unix_ns if place is not None else None
    return process if looked is None or came is None or came <= looked else None


def _through_itself(in_python: tuple[Link, ...], process: ProcessState | None) -> tuple[Link, ...]:
    """The chain in the kernel; where that comes back to the process, through the thread that should
    answer."""
    in_kernel = process.chain if process is not None else ()
    if process is None or not in_kernel or in_kernel[0].pid != process.pid:
        return in_kernel
    own = msgspec.structs.replace(
        in_kernel[0],
        who=in_python[0].who,
        place=in_python[0].place,
        pid=None,
        process=None,
        rank=None,
    )
    return (own, *in_python[1:])


def waiting_end(snapshot: Snapshot, rank: RankFacts, waiters: Collection[int]) -> RankFacts | None:
    """The rank at the end of its chain, if that one waits for it; else None. It must have waited,
    and the rank have stood at its line, when the chain was looked for: before that it may have had
    what it has given away since."""
    last = next(reversed(chain_of(rank)), None)
    if last is None or last.rank is None or last.rank not in waiters:
        return None
    at = rank.process.report.chain_unix_ns if rank.process.report is not None else None
    since = [wait.since_unix_ns for wait in snapshot.waits if wait.rank == last.rank]
    since += [wait.since_unix_ns for wait in snapshot.peer_waits if wait.rank == last.rank]
    place = rank.reported.place
    since += [place.line_since_unix_ns or 0] if place is not None else []
    return snapshot.rank(last.rank) if at is None or max(since, default=0) <= at else None


def inside_end(end: RankFields | None) -> tuple[Link, ...]:
    """The thread of this rank that should answer the ones which wait for it, and what that thread
    waits for, if the rank's main thread has it; else nothing."""
    in_python = end.reported.chain if end is not None else ()
    if len(in_python) > 1 and in_python[0].resource == ITSELF and in_python[-1].circle:
        return in_python
    return ()


def awaited_rank(snapshot: Snapshot, rank: RankFacts) -> RankFacts | None:
    """The last rank that is reached from chain to chain, if each ends at a living rank; None if its
    own chain ends at no rank, or if the chains come back."""
    passed = [rank]
    while (last := next(reversed(chain_of(passed[-1])), None)) and last.rank is not None:
        following = snapshot.rank(last.rank)
        if following in passed or following.gone:
            return None
        passed.append(following)
    return passed[-1] if passed[1:] else None


def closes_circle(rank: RankFacts, end: RankFacts | None = None) -> bool:
    """Whether its chain comes back to itself. `end`: the rank at the end that waits for it.

    Between processes that is only sure where no other thread of the process runs the program: such
    a thread might go on.
    """
    last = next(reversed(chain_of(rank)), None)
    if last is None or not (last.circle or end is not None) or last.does == BACKLOG:
        return False
    if inside_end(end):
        return True
    stacks = (end or rank).dump.stacks
    alone = stacks is not None and bool(stacks.method) and not other_threads(stacks)
    return alone or (last.circle and last.pid is None)


def follow_rpc(facts: Collection[RankFields]) -> None:
    """Give the ranks that wait for an RPC the rank that runs one, where only one does."""
    serving = serving_rank(facts)
    if serving is None:
        return
    link = Link(RPC, who=f"rank {serving.rank}", rank=serving.rank, place=_served_at(serving))
    for one in facts:
        if awaits_rpc(one):
            one.reported = msgspec.structs.replace(one.reported, chain=(link,))


def awaits_rpc(rank: RankFields) -> bool:
    """Whether it only waits for an answer. The wait of a future of torch has no frame in Python."""
    place, rpc = rank.reported.place, rank.comm.rpc
    waits = rpc is not None and bool(rpc.waits)
    return waits and place is not None and place.waits_on in ("rpc", None)


def serving_rank(facts: Iterable[RankFields]) -> RankFields | None:
    """The rank that runs calls of other workers, and waits for none, if only one does."""
    every = ((one, one.comm.rpc) for one in facts)
    serving = [one for one, rpc in every if rpc is not None and rpc.serves and not rpc.waits]
    return serving[0] if len(serving) == 1 and not serving[0].gone else None


def _served_at(rank: RankFields) -> Place | None:
    """Where the call runs: the program's line in a thread other than the main one."""
    stacks = rank.dump.stacks
    for thread in stacks.threads if stacks is not None else ():
        for frame in () if thread.main else thread.frames:
            if owner_of(frame) is Owner.USER:
                return Place(frame.function, frame.file, frame.line)
    return None
