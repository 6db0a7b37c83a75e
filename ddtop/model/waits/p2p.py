"""Waits for single ranks: send, recv and monitored_barrier; and new_group, for which all must come.

A call is on the state page before it starts, with its peer and tag, so an open call is certain. It
can end if the peer is in the opposite call with this rank and this tag. If the peer is anywhere
else, the wait is an edge to the peer.

Two things remain uncertain: data on its way (a matched pair that is stuck is the network's fault),
and a recv from any rank, which waits for no one in particular.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddtop.model.state.facts import PeerWait, RankFields, State
from ddtop.wire.calls import GROUP_MAKERS, OF_MEMBERS_ONLY, P2P_CALLS, RECEIVES, SENDS
from ddtop.wire.mpi import MpiTraffic
from ddtop.wire.records import OpenCall

_OF_TORCH = frozenset({"send", "recv", "isend", "irecv"})
BARRIER = "monitored_barrier"


def peer_waits_of(ranks: Mapping[int, RankFields]) -> tuple[PeerWait, ...]:
    """All open waits for single ranks, one for each rank and thread."""
    found = []
    calling = sorted(rank for rank, facts in ranks.items() if facts.comm.open_calls)
    outside = [other for other in sorted(ranks) if not _in_barrier(ranks[other])] if calling else []
    elsewhere = (
        tuple([other for other in sorted(ranks) if _new_group(ranks[other]) is None])
        if calling
        else ()
    )
    for rank in calling:
        facts = ranks[rank]
        if facts.gone or facts.agent.unheard or facts.state in (State.STOPPED, State.SILENT):
            continue
        for call in _innermost(facts):
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
                found.append(
                    PeerWait(
                        rank, name, call.peer, call.tag, since, behind, call.within, call.group
                    )
                )
        makes = _new_group(facts)
        if makes is not None and makes.tag != OF_MEMBERS_ONLY:
            found.append(PeerWait(rank, makes.name, None, None, makes.since_unix_ns, elsewhere))
    return tuple(found)


def _innermost(facts: RankFields) -> list[OpenCall]:
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
        for theirs in peer.comm.open_calls:
            if theirs.name in opposite and theirs.peer in (rank, None) and _same_tag(theirs, call):
                return ()
        if call.within is not None and _has_come(ranks[rank], peer, call):
            return ()
    return (call.peer,)


def _same_tag(one: OpenCall, other: OpenCall) -> bool:
    """Whether the communicators are equal, and the tags are equal or one of them is any."""
    return one.group == other.group and (one.tag == other.tag or None in (one.tag, other.tag))


def _has_come(facts: RankFields, peer: RankFields, call: OpenCall) -> bool:
    """Whether the other side has begun as many of these requests as this one.

    Then this request, one among others, is not the one that is missing.
    """
    if call.tag is None or facts.comm.mpi is None or peer.comm.mpi is None:
        return False
    ours = traffic_of(facts, call.group, call.peer, call.tag)
    theirs = traffic_of(peer, call.group, facts.rank, call.tag)
    if ours is None or theirs is None:
        return False
    return theirs.sent >= ours.received if call.name in RECEIVES else theirs.received >= ours.sent


def traffic_of(
    facts: RankFields, group: str | None, peer: int | None, tag: int | None
) -> MpiTraffic | None:
    """What this rank has begun to send and to receive with that peer and tag."""
    kept = facts.comm.mpi.traffic if facts.comm.mpi is not None else ()
    return next((one for one in kept if (one.group, one.peer, one.tag) == (group, peer, tag)), None)


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


def _in_barrier(facts: RankFields) -> bool:
    return not facts.gone and any(call.name == BARRIER for call in facts.comm.open_calls)
