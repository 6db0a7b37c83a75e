"""Waits for single ranks: send, recv and monitored_barrier; and new_group, for which all must come.

A call is on the state page before it starts, with its peer and tag, so an open call is certain. It
can end if the peer is in the opposite call with this rank and this tag. If the peer is anywhere
else, the wait is an edge to the peer.

Two things remain uncertain: data on its way (a matched pair that is stuck is the network's fault),
and a recv from any rank, which waits for no one in particular.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from ddtop.model.chain import awaits_rpc, chain_of, serving_rank
from ddtop.model.ending import has_failed
from ddtop.model.facts import PeerWait, RankFields, State, Wait
from ddtop.model.wait_graph import STILL, AnyWait, condition_of
from ddtop.policy import Policy
from ddtop.wire.mpi import MpiCall, MpiComm, MpiPart, MpiState, MpiTraffic, is_outside
from ddtop.wire.names import (
    FINALIZE,
    GROUP_MAKERS,
    MPI_ANY_WAITS,
    MPI_COLLECTIVES,
    MPI_MAKERS,
    MPI_MEETINGS,
    MPI_RECEIVES,
    NAME_ONLY,
    OF_MEMBERS_ONLY,
    P2P_CALLS,
    RECEIVES,
    SENDS,
)
from ddtop.wire.records import (
    CONNECTION,
    FILE_LOCK,
    KEY,
    P2P,
    PIPE,
    PROCESS,
    TAKES,
    UNCLEAR,
    Collective,
    Exit,
    Group,
    GroupMade,
    GroupProgress,
    Link,
    OpenCall,
    OutsideLook,
    ProcessState,
    RankState,
    unpack,
)

_OF_TORCH = frozenset({"send", "recv", "isend", "irecv"})
BARRIER, RPC_CALL = "monitored_barrier", "an RPC"
RPC_SHUTDOWN = "rpc-shutdown"


def peer_waits_of(ranks: Mapping[int, RankFields]) -> tuple[PeerWait, ...]:
    """All open waits for single ranks, one for each rank and thread."""
    waits = []
    calling = sorted(rank for rank, facts in ranks.items() if facts.comm.open_calls)
    outside = [other for other in sorted(ranks) if not _in_barrier(ranks[other])] if calling else []
    known: dict[tuple[object, ...], tuple[int, ...]] = {}
    for rank in calling:
        facts = ranks[rank]
        if facts.gone or facts.agent.unheard or facts.state in (State.STOPPED, State.SILENT):
            continue
        for call in _innermost_calls(facts):
            behind = (
                _peer_behind(ranks, rank, call)
                if call.name != BARRIER
                else _barrier_behind(outside, rank)
                if call.tag != OF_MEMBERS_ONLY
                else None
            )
            if behind is not None:
                # The wait of a Work is isend or irecv on the page; people call both send and recv.
                name = call.name.removeprefix("i") if call.name in _OF_TORCH else call.name
                since = call.since_unix_ns
                waits.append(
                    PeerWait(
                        rank, name, call.peer, call.tag, since, behind, call.within, call.group
                    )
                )
        makes = _new_group(facts)
        if makes is not None:
            waits += _maker_waits(ranks, facts, makes, known)
    return tuple(waits)


def _innermost_calls(facts: RankFields) -> list[OpenCall]:
    """One call for each thread: a recv that waits for its Work is on the page twice."""
    calls: dict[int, OpenCall] = {}
    for call in facts.comm.open_calls:
        known = calls.get(call.thread_id)
        if call.within is not None:
            continue
        if call.name in P2P_CALLS and (known is None or call.since_unix_ns >= known.since_unix_ns):
            calls[call.thread_id] = call
    outer = {call.thread_id: call for call in facts.comm.open_calls if call.name == BARRIER}
    # MPI's Waitall waits for each request; a Waitany does not wait for any one of them.
    parts = [
        call
        for call in facts.comm.open_calls
        if call.within is not None and not call.any_of and call.name in P2P_CALLS
    ]
    return [*(outer.get(thread, call) for thread, call in calls.items()), *parts]


def _peer_behind(
    ranks: Mapping[int, RankFields], rank: int, call: OpenCall
) -> tuple[int, ...] | None:
    if call.peer is None or (call.peer == rank and (call.group is None or call.within is not None)):
        return None
    peer = ranks.get(call.peer)
    opposite = RECEIVES if call.name in SENDS else SENDS if call.name in RECEIVES else frozenset()
    if peer is not None and not peer.gone:
        has_come = _has_come(ranks[rank], peer, call)
        # In a ring of Sendrecv, the open send of a peer that waits itself may be an older message.
        if has_come is not False and any(
            theirs.name in opposite and theirs.peer in (rank, None) and _same_tag(theirs, call)
            for theirs in peer.comm.open_calls
        ):
            return ()
        if call.within is not None and has_come:
            return ()
    return (call.peer,)


def _same_tag(call: OpenCall, other: OpenCall) -> bool:
    """Whether the communicators are equal, and the tags are equal or one of them is any."""
    return call.group == other.group and (call.tag == other.tag or None in (call.tag, other.tag))


def _has_come(facts: RankFields, peer: RankFields, call: OpenCall) -> bool | None:
    """Whether the other side has begun as many of these requests as this one; None: not known.

    Then this request, one among others, is not the one that is missing.
    """
    if call.tag is None or facts.comm.mpi is None or peer.comm.mpi is None:
        return None
    ours = traffic_of(facts, call.group, call.peer, call.tag)
    theirs = traffic_of(peer, call.group, facts.rank, call.tag)
    if ours is None or theirs is None:
        return None
    return theirs.sent >= ours.received if call.name in RECEIVES else theirs.received >= ours.sent


def traffic_of(
    facts: RankFields, group: str | None, peer: int | None, tag: int | None
) -> MpiTraffic | None:
    """What this rank has begun to send and to receive with that peer and tag."""
    kept = facts.comm.mpi.traffic if facts.comm.mpi is not None else ()
    if takes_any(kept, group):
        return None
    return next(
        (
            traffic
            for traffic in kept
            if (traffic.group, traffic.peer, traffic.tag) == (group, peer, tag)
        ),
        None,
    )


def takes_any(kept: Iterable[MpiTraffic], group: str | None) -> bool:
    """Whether a rank has received from any rank or with any tag there: then its counts say nothing
    about one peer.
    """
    return any(
        traffic.received and traffic.group == group and None in (traffic.peer, traffic.tag)
        for traffic in kept
    )


def _barrier_behind(outside: list[int], rank: int) -> tuple[int, ...]:
    """Rank 0 waits for all others in turn, the others for rank 0."""
    if rank == 0:
        return tuple(other for other in outside if other != rank)
    return (0,) if outside else ()


def _new_group(facts: RankFields) -> OpenCall | None:
    """The call in which it makes a group."""
    return (
        next((call for call in facts.comm.open_calls if call.name in GROUP_MAKERS), None)
        if not facts.gone
        else None
    )


def _maker_waits(
    ranks: Mapping[int, RankFields],
    facts: RankFields,
    call: OpenCall,
    known: dict[tuple[object, ...], tuple[int, ...]],
) -> list[PeerWait]:
    """Its wait; none where only members come and it is not known who they are. `known`: the ranks
    that have not come, found once for all that wait for the same group."""
    noted, every = reversed(facts.comm.made or ()), call.tag != OF_MEMBERS_ONLY
    made = next((one for one in noted if (one.call, one.number) == (call.name, call.peer)), None)
    if made is None and not every:
        return []
    key = (made.key, made.passed, every) if made is not None else ()
    if key not in known:
        asked = sorted(ranks) if made is None or every else unpack(made.group).ranks
        known[key] = tuple([one for one in asked if not _has_made(ranks.get(one), made, every)])
    return [PeerWait(facts.rank, call.name, None, None, call.since_unix_ns, known[key], made=made)]


def _has_made(facts: RankFields | None, made: GroupMade | None, every: bool) -> bool:
    """Whether it has come to this group; a member that notes nothing is taken to have come."""
    if facts is None or facts.gone:
        return False
    if made is None or facts.comm.made is None:
        return not every or _new_group(facts) is not None
    return any(
        one.key == made.key and (every or one.passed == made.passed) for one in facts.comm.made
    )


def _in_barrier(facts: RankFields) -> bool:
    return not facts.gone and any(call.name == BARRIER for call in facts.comm.open_calls)


# -- Waits that one of several ranks can end: a receive from any rank, a Waitany
#
# A master in such a receive is idle, not blocked, as long as one of the others may still send. The
# receive becomes an edge of the graph only if all of them wait themselves, are stuck, or have
# ended: an edge to those that are stuck, otherwise to each of them. The ranks that may still send
# are found step by step: first those that wait for nobody, then those that wait only for these.


_AT_WORK = ("child", "pool", "future", "socket", "asyncio")
_NOT_AT_WORK = ("lock", "queue", "stdin", "debugger")
_NOT_AT_WORK_IN_KERNEL = ("futex", "pipe", "wait_for_partner")
"""The last is open() of a named pipe whose other end nobody has opened."""


@dataclass(frozen=True, slots=True)
class _Choice:
    rank: int
    call: OpenCall
    others: frozenset[int]


def any_waits_of(
    ranks: Mapping[int, RankFields],
    groups: Iterable[Group],
    waits: Iterable[Wait],
    peer_waits: Iterable[PeerWait],
    now_unix_ns: int,
    policy: Policy,
) -> tuple[PeerWait, ...]:
    """The receives that no rank can end any more; each waits for all ranks that might have."""
    choices = list(_choices(ranks, {group.name: group.ranks for group in groups}))
    if not choices:
        return ()
    stuck = {rank for rank, facts in ranks.items() if _is_stuck(facts, now_unix_ns, policy)}
    free = _free_ranks(ranks, choices, [*waits, *peer_waits], stuck)
    return tuple(
        PeerWait(
            choice.rank, choice.call.name, None, choice.call.tag, choice.call.since_unix_ns,
            tuple(
                sorted(choice.others & stuck or _ranks_here(ranks, choice.others) or choice.others)
            ),
            choice.call.within, choice.call.group,
        )
        for choice in choices
        if choice.others and not choice.others & free
    )  # fmt: skip


def is_choice(call: OpenCall) -> bool:
    """Whether one of several ranks can end it."""
    return call.any_of or (call.peer is None and call.name in RECEIVES and call.group is not None)


def _choices(
    ranks: Mapping[int, RankFields], members: Mapping[str, tuple[int, ...]]
) -> Iterable[_Choice]:
    for rank, facts in ranks.items():
        if facts.gone or facts.agent.unheard or not facts.comm.open_calls:
            continue
        found: dict[int, set[int]] = {}
        calls: dict[int, OpenCall] = {}
        for call in facts.comm.open_calls:
            if call.name in P2P_CALLS and is_choice(call):
                others = members.get(call.group or "", ()) if call.peer is None else (call.peer,)
                found.setdefault(call.thread_id, set()).update(others)
                calls[call.thread_id] = call
        for thread, other_ranks in found.items():
            yield _Choice(rank, calls[thread], frozenset(other_ranks - {rank}))


def _free_ranks(
    ranks: Mapping[int, RankFields],
    choices: list[_Choice],
    waits: list[Wait | PeerWait],
    stuck: set[int],
) -> set[int]:
    """Ranks that may still send: they neither wait nor are stuck, or wait only for such ranks."""
    of_all: dict[int, set[int]] = {}
    for wait in waits:
        of_all.setdefault(wait.rank, set()).update(wait.behind)
    of_any: dict[int, list[frozenset[int]]] = {}
    for choice in choices:
        of_any.setdefault(choice.rank, []).append(choice.others)
    held = of_all.keys() | of_any.keys() | stuck
    free = {rank for rank, facts in ranks.items() if rank not in held and not _has_left(facts)}
    undecided = {rank for rank in held - stuck if not _has_left(ranks[rank])}
    while True:
        more = {
            rank
            for rank in undecided
            if of_all.get(rank, set()) <= free
            and all(others & free for others in of_any.get(rank, ()))
        }
        if not more:
            return free
        free |= more
        undecided -= more


def _ranks_here(ranks: Mapping[int, RankFields], others: frozenset[int]) -> set[int]:
    """The ranks that have not ended; nothing more was expected from those that have."""
    return {rank for rank in others if rank in ranks and not _has_left(ranks[rank])}


def _is_stuck(facts: RankFields, now_unix_ns: int, policy: Policy) -> bool:
    """Whether it is where no work is done: in a lock, a pipe, a file.

    Workers that run other programs or talk to servers may be at one line too.
    """
    if (
        facts.comm.mpi is None
        or facts.reported.line_age_s is None
        or condition_of(facts, now_unix_ns, policy) != STILL
    ):
        return False
    if facts.reported.line_age_s > policy.working_critical_s:
        return True
    waits_on = facts.reported.waits_on
    wchan = (facts.process.report.wchan if facts.process.report is not None else None) or ""
    if waits_on in _AT_WORK or facts.reported.line_age_s < policy.still_limit_s:
        return False
    return waits_on in _NOT_AT_WORK or any(word in wchan for word in _NOT_AT_WORK_IN_KERNEL)


def _has_left(facts: RankFields) -> bool:
    """Whether it will send nothing more. What a stopped rank would do is not known."""
    exiting = facts.process.report is not None and facts.process.report.exiting
    return facts.gone or (
        facts.state is not State.STOPPED and (facts.reported.phase == "leaving" or exiting)
    )


# -- Waits of ranks that are read from outside. Their collectives are not counted, so the frames of
#    the main threads decide
#
# Frames do not show in which group a rank waits, nor for which ranks. So a rank in a call for other
# ranks is taken to wait for all ranks that are in no such call, but only if these frames can mean
# nothing else. A rank that leaves such calls again may belong to another group. A thread that runs
# at one line may be in the next call of the same kind at each look.


def stack_waits_of(
    ranks: Mapping[int, RankFields], now_unix_ns: int, policy: Policy
) -> tuple[PeerWait, ...]:
    """The wait of each rank that has been in one call for others without a break."""
    looks = {
        rank: facts.comm.outside for rank, facts in ranks.items() if facts.comm.outside is not None
    }
    if not looks:
        return ()
    waiting = [
        (rank, look)
        for rank, look in sorted(looks.items())
        if _is_waiting(ranks[rank], look, now_unix_ns, policy)
    ]
    if not waiting:
        return ()
    held = {rank for rank, _ in waiting}
    elsewhere = tuple(sorted(rank for rank in ranks if rank not in held))
    first_unix_ns = min(look.since_unix_ns or 0 for _, look in waiting)
    counted = not any(look.kind == P2P for look in looks.values())
    unknown = likely = runs = False
    for rank in elsewhere:
        facts, own = ranks[rank], looks.get(rank)
        if facts.gone or facts.state is State.STOPPED:
            continue
        certain = own is not None and _is_apart(own, counted, now_unix_ns, policy)
        seldom = own is not None and own.apart_looks >= policy.stack_apart_looks
        unknown |= own is None or _may_take_part(own, first_unix_ns) or not (certain or seldom)
        likely |= not certain
        runs |= own is not None and not own.asleep
    return tuple(
        PeerWait(
            rank,
            look.call or "a collective",
            None,
            None,
            look.since_unix_ns or now_unix_ns,
            () if unknown or (runs and not look.asleep) else elsewhere,
            by_stack=True,
            likely=likely,
        )
        for rank, look in waiting
    )


def _is_waiting(facts: RankFields, look: OutsideLook, now: int, policy: Policy) -> bool:
    if facts.gone or facts.agent.unheard or facts.state is State.STOPPED or not look.waits:
        return False
    return now - (look.since_unix_ns or now) >= policy.stack_wait_s * 1e9


def _may_take_part(look: OutsideLook, since_unix_ns: int) -> bool:
    """Whether it may be in the same calls as those that wait, or in calls of a group of its own.

    A rank that is in such a call only for a moment: the next look decides.
    """
    # The last condition: it has left a call since then.
    return look.waits or look.kind == UNCLEAR or (look.communicated_unix_ns or 0) > since_unix_ns


def _is_apart(look: OutsideLook, counted: bool, now: int, policy: Policy) -> bool:
    """Whether it is certain that it makes no such calls now: it sleeps, or gloo runs none in it.

    `counted`: nobody is in send or recv, which no thread of gloo's runs.
    """
    known = [look.since_unix_ns] if look.asleep else []
    known += [look.quiet_since_unix_ns] if counted else []
    return any(at is not None and now - at >= policy.stack_wait_s * 1e9 for at in known)


# -- What a rank does in MPI, in the terms of process groups and calls, so that one graph serves
#    both
#
# The agent reports it, and the relay also reads it from the state page. The newer of the two
# counts, because the agent cannot report during calls that hold the GIL. A blocking collective is
# open on its communicator; a Wait is open in every operation of its requests.


def newest_state(
    state: RankState, process: ProcessState | None, ended: Exit | None = None
) -> MpiState | None:
    """What is known of the rank's MPI: the newer look, with the details that only the agent has.

    For a rank that has ended: the last content of its page.
    """
    mpi_state, outside = state.mpi, process.mpi if process is not None else None
    outside = (ended.mpi if ended is not None else None) or outside
    if mpi_state is None or outside is None or outside.unix_ns <= mpi_state.unix_ns:
        return mpi_state or outside
    calls = tuple(_with_dtype(call, mpi_state.calls) for call in outside.calls)
    return msgspec.structs.replace(
        outside,
        calls=calls,
        done=mpi_state.done,
        traffic=mpi_state.traffic,
        failed=mpi_state.failed,
    )


def _with_dtype(call: MpiCall, calls: tuple[MpiCall, ...]) -> MpiCall:
    same = next(
        (
            known
            for known in calls
            if (known.thread_id, known.serial) == (call.thread_id, call.serial)
        ),
        None,
    )
    return (
        call
        if same is None
        else msgspec.structs.replace(call, dtype=same.dtype, nbytes=same.nbytes)
    )


def with_calls(state: RankState, mpi: MpiState | None) -> RankState:
    """The rank's state with what it does in MPI."""
    if mpi is None:
        return state
    open_now: dict[str, tuple[int, list[Collective]]] = {}
    calls: list[OpenCall] = []
    begun = {(part.group, part.seq): part for part in mpi.done}
    for call in mpi.calls:
        for part in _parts(call):
            if part.group is not None and part.seq is not None and not is_outside(part.group):
                since, collectives = open_now.get(part.group, (call.since_unix_ns, []))
                # The wait for a nonblocking one knows neither its root nor its length.
                start = begun.get((part.group, part.seq), part)
                collectives.append(_collective(part if part.peer is not None else start, call))
                open_now[part.group] = min(since, call.since_unix_ns), collectives
            else:
                within = call.name if call.parts else None
                calls.append(
                    OpenCall(
                        part.name, call.since_unix_ns, part.peer, part.tag, call.thread_id,
                        part.group, within, call.name in MPI_ANY_WAITS,
                    )
                )  # fmt: skip
    groups = tuple(_progress(comm, open_now.get(comm.name)) for comm in mpi.comms)
    done = tuple(
        _completed_collective(part)
        for part in mpi.done
        if part.seq is not None and not _is_open(part, open_now.get(part.group or ""))
    )
    finalizing = mpi.finalize_since_unix_ns is not None
    return msgspec.structs.replace(
        state,
        groups=state.groups + groups,
        open_collectives=state.open_collectives
        + tuple(collective for _, collectives in open_now.values() for collective in collectives),
        retired_collectives=state.retired_collectives + done,
        open_calls=state.open_calls + tuple(calls),
        activity="collective" if mpi.calls else state.activity,
        phase="leaving" if finalizing else state.phase,
    )


def is_inside(mpi: MpiState | None) -> bool:
    """Whether it is in a call of MPI: however much CPU that takes, it waits."""
    return mpi is not None and bool(mpi.calls or mpi.finalize_since_unix_ns is not None)


def _parts(call: MpiCall) -> tuple[MpiPart, ...]:
    if call.parts:
        # A send may have been buffered long ago: what has not arrived is what holds it.
        return tuple(sorted(call.parts, key=lambda part: part.name not in MPI_RECEIVES))
    seq = call.seq if call.name in MPI_COLLECTIVES else None
    return (MpiPart(call.name, call.group, seq, call.peer, call.tag, call.nbytes),)


def _collective(part: MpiPart, call: MpiCall) -> Collective:
    assert part.group is not None
    assert part.seq is not None
    sizes = ((part.nbytes,),) if part.nbytes is not None else ()
    dtypes = (f"bytes of {call.dtype}" if call.dtype else "bytes",) if sizes else ()
    return Collective(
        part.group, part.name, part.seq, part.seq, sizes, dtypes, "started", call.since_unix_ns,
        thread_id=call.thread_id, root=part.peer,
    )  # fmt: skip


def _completed_collective(part: MpiPart) -> Collective:
    sizes = ((part.nbytes,),) if part.nbytes is not None else ()
    seq = part.seq or 0
    return Collective(
        part.group or "",
        part.name,
        seq,
        seq,
        sizes,
        ("bytes",) if sizes else (),
        "completed",
        root=part.peer,
    )


def _is_open(part: MpiPart, open_now: tuple[int, list[Collective]] | None) -> bool:
    return open_now is not None and any(collective.seq == part.seq for collective in open_now[1])


def _progress(comm: MpiComm, open_now: tuple[int, list[Collective]] | None) -> GroupProgress:
    if open_now is None:
        return GroupProgress(comm.name, comm.enqueued, comm.completed, 0, None, comm.last_op)
    since, collectives = open_now
    first = min(collectives, key=lambda collective: collective.seq)
    enqueued = max(comm.enqueued, first.seq)
    return GroupProgress(comm.name, enqueued, first.seq - 1, 0, since, first.op)


# -- Waits without numbers: MPI_Finalize, and calls on windows and files known only by name
#
# MPI_Finalize is collective, so a rank in it waits for all ranks that have not come to it.
#
# Every program whose ranks have unequal work ends like this. So only a rank without progress counts
# as the reason for the wait, and only if no rank waits for one that is in Finalize. If one does,
# the rank that came to Finalize too early is the one to name, or the rank that waits has another
# cause. It is not known for which ranks a Win.Fence waits. If all others make no progress outside
# MPI, it can only be for them.


def unnumbered_waits_of(
    ranks: Mapping[int, RankFields],
    waits: Iterable[Wait],
    peer_waits: Iterable[PeerWait],
    now_unix_ns: int,
    policy: Policy,
) -> tuple[PeerWait, ...]:
    """Waits for ranks without progress, of ranks in MPI_Finalize or in a call without numbers."""
    found = _in_finalize(ranks, waits, peer_waits, now_unix_ns, policy)
    return found or _in_named(ranks, now_unix_ns, policy) or _in_makers(ranks, waits)


def _in_finalize(
    ranks: Mapping[int, RankFields],
    waits: Iterable[Wait],
    peer_waits: Iterable[PeerWait],
    now_unix_ns: int,
    policy: Policy,
) -> tuple[PeerWait, ...]:
    since = {
        rank: at
        for rank, facts in ranks.items()
        if not facts.agent.unheard and (at := _finalizing_since(facts)) is not None
    }
    # A rank that raised and stays there has a rule of its own.
    if not since or any(has_failed(ranks[rank]) for rank in since):
        return ()
    held = set()
    every: tuple[AnyWait, ...] = (*waits, *peer_waits)
    for wait in every:
        if not since.keys().isdisjoint(wait.behind):
            return ()
        held.add(wait.rank)
    behind = tuple(
        sorted(
            rank
            for rank, facts in ranks.items()
            if rank not in since
            and rank not in held
            and facts.comm.mpi is not None
            and not facts.gone
            and condition_of(facts, now_unix_ns, policy) == STILL
        )
    )
    if not behind:
        return ()
    return tuple(
        PeerWait(rank, FINALIZE, None, None, at, behind) for rank, at in sorted(since.items())
    )


def _in_named(
    ranks: Mapping[int, RankFields], now_unix_ns: int, policy: Policy
) -> tuple[PeerWait, ...]:
    # It is not known who shares the window, or a file that is being opened: all other ranks have to
    # be stuck.
    inside: dict[int, MpiCall] = {}
    still = set()
    for rank, facts in ranks.items():
        if facts.gone or facts.agent.unheard or facts.comm.mpi is None:
            return ()
        named = (call for call in facts.comm.mpi.calls if call.name in NAME_ONLY)
        call = next((call for call in named if call.group is None), None)
        if call is not None:
            inside[rank] = call
        elif not facts.comm.mpi.calls and condition_of(facts, now_unix_ns, policy) == STILL:
            still.add(rank)
        else:
            return ()
    if not inside or not still:
        return ()
    behind = tuple(sorted(still))
    return tuple(
        PeerWait(rank, call.name, None, None, call.since_unix_ns, behind)
        for rank, call in inside.items()
    )


def _in_makers(ranks: Mapping[int, RankFields], waits: Iterable[Wait]) -> tuple[PeerWait, ...]:
    """All ranks make communicators, and none of them is late for one: then they do not make the
    same ones. What is exchanged there takes milliseconds."""
    inside: dict[int, MpiCall] = {}
    for rank, facts in ranks.items():
        calls = facts.comm.mpi.calls if facts.comm.mpi is not None and not facts.gone else ()
        call = next((call for call in calls if call.name in MPI_MAKERS), None)
        if call is None or is_outside(call.group):
            # The other world may not have come.
            return ()
        inside[rank] = call
    meet = any(call.name in MPI_MEETINGS for call in inside.values())
    if len(inside) < 2 or not meet or any(wait.behind for wait in waits):
        return ()
    # Each waits for all others. That the first waits for all, and all for the first, says the same
    # with few edges.
    first, *others = inside
    behind = {first: tuple(others)}
    return tuple(
        PeerWait(rank, call.name, None, None, call.since_unix_ns, behind.get(rank, (first,)))
        for rank, call in inside.items()
    )


def _finalizing_since(facts: RankFields) -> int | None:
    """Since when it has been in MPI_Finalize, or in the exit of an interpreter that ends with it.

    Unix ns; None if it is in neither.
    """
    if facts.comm.mpi is None or facts.gone:
        return None
    if facts.comm.mpi.finalize_since_unix_ns is not None:
        return facts.comm.mpi.finalize_since_unix_ns
    if facts.reported.phase == "leaving":
        return facts.reported.phase_since_unix_ns
    return (
        facts.agent.heard_unix_ns
        if facts.process.report is not None and facts.process.report.exiting
        else None
    )


# -- Waits for an answer of a rank that is no call of a group: of torch.distributed.rpc, a request
#    over a socket or a pipe, a lock file, a key of the store
#
# torch does not tell to whom a call of RPC went, nor who sets a key. If only one rank waits for
# nobody, it is that one. One call may be the whole training, so that is a wait only while that rank
# makes no progress. And what it does may wait for a rank that has not called yet, as a parameter
# server does, so all others must wait for answers or have nothing to do.


KEPT, ASKED, GIVEN = "store.wait", "a request", "a wait for its lock"
ANSWERS = {KEY: KEPT, CONNECTION: ASKED, PIPE: ASKED, PROCESS: ASKED, FILE_LOCK: GIVEN}
"""`PeerWait.call` of a wait whose chain leads to another rank, or to the store."""


def answer_waits_of(
    ranks: Mapping[int, RankFields], waits: Iterable[AnyWait], now_unix_ns: int, policy: Policy
) -> tuple[PeerWait, ...]:
    """Waits for the only rank that waits for nobody and stands still. `waits`: the others. A rank
    whose main thread is in one of them may work in another thread."""
    living = {rank: facts for rank, facts in sorted(ranks.items()) if not facts.gone}
    if any(facts.state is State.JOINING for facts in living.values()):
        # A rank that joins asks the store of another one, and may wait for ranks not known yet.
        return ()
    serving = serving_rank(living.values())
    calls = {
        rank: call
        for rank, facts in living.items()
        if (call := _awaits(facts, serving)) is not None
    }
    roots = [facts for rank, facts in living.items() if rank not in calls and not _rests(facts)]
    if not calls or len(roots) != 1 or condition_of(roots[0], now_unix_ns, policy) != STILL:
        return ()
    (root,) = roots
    if any(wait.rank == root.rank for wait in waits):
        return ()
    found = []
    for rank, call in calls.items():
        facts = living[rank]
        place = facts.reported.place
        busy = (facts.process.cpu_ratio or 0.0) >= policy.cpu_working_ratio
        # One that wakes again and again gets its answers, or makes its requests in one line.
        busy |= (facts.process.wakes_per_s or 0.0) >= policy.poll_wakes_per_s
        if busy or place is None:
            return ()
        moved = [place.since_unix_ns, facts.progress.last_unix_ns, root.progress.last_unix_ns]
        since = max((at for at in moved if at is not None), default=now_unix_ns)
        found.append(PeerWait(rank, call, root.rank, None, since, (root.rank,)))
    return tuple(found)


def _awaits(facts: RankFields, serving: RankFields | None) -> str | None:
    """In what it waits for another rank; None if it does not, as far as is known."""
    if serving is not None:
        return RPC_CALL if facts is not serving and awaits_rpc(facts) else None
    first = next(iter(chain_of(facts)), None)
    call = ANSWERS.get(first.resource) if first is not None and first.does != TAKES else None
    return call if first and (first.resource == KEY or _of_other(first, facts)) else None


def _of_other(link: Link, facts: RankFields) -> bool:
    return link.rank not in (None, facts.rank)


def _rests(facts: RankFields) -> bool:
    """It has nothing more to do: its worker of torch.distributed.rpc ends with the last one."""
    return facts.reported.place is not None and facts.reported.place.waits_on == RPC_SHUTDOWN
