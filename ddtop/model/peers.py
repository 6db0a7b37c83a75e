"""Waits for single ranks: send, recv, and monitored_barrier, which gloo makes out of them.

A call is on the state page before it starts, with its peer and tag, so an open one is certain. Whether it can ever end is seen
on the peer's side: it can if the peer is in the opposite call with this rank and this tag. If the peer is anywhere else, the
wait is an edge to it. What remains uncertain: data that is on its way (a matched pair that stands is the network's), and a recv
from anybody, which waits for no one in particular.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddtop.model.facts import PeerWait, RankFacts, State
from ddtop.wire.records import P2P_CALLS, OpenCall

_OPPOSITE = {
    "send": ("recv", "irecv"),
    "isend": ("recv", "irecv"),
    "recv": ("send", "isend"),
    "irecv": ("send", "isend"),
}
BARRIER = "monitored_barrier"


def peer_waits_of(ranks: Mapping[int, RankFacts]) -> tuple[PeerWait, ...]:
    """All open waits for single ranks, one a rank and thread."""
    found = []
    for rank, facts in sorted(ranks.items()):
        if facts.gone or facts.state in (State.STOPPED, State.SILENT):
            continue
        for call in _innermost(facts):
            behind = _barrier_behind(ranks, rank) if call.name == BARRIER else _peer_behind(ranks, rank, call)
            if behind is not None:
                # A Work's wait stands as isend or irecv on the page; people call both of them send and recv.
                name = call.name.removeprefix("i") if call.name in _OPPOSITE else call.name
                found.append(PeerWait(rank, name, call.peer, call.tag, call.since_unix_ns, behind))
    return tuple(found)


def _innermost(facts: RankFacts) -> list[OpenCall]:
    """One call a thread: a recv that waits for its Work is on the page twice."""
    calls: dict[int, OpenCall] = {}
    for call in facts.open_calls:
        known = calls.get(call.thread_id)
        if call.name in P2P_CALLS and (known is None or call.since_unix_ns >= known.since_unix_ns):
            calls[call.thread_id] = call
    outer = {call.thread_id: call for call in facts.open_calls if call.name == BARRIER}
    return [outer.get(thread, call) for thread, call in calls.items()]


def _peer_behind(ranks: Mapping[int, RankFacts], rank: int, call: OpenCall) -> tuple[int, ...] | None:
    if call.peer is None or call.peer == rank:
        return None
    peer = ranks.get(call.peer)
    opposite = _OPPOSITE.get(call.name, ())
    if peer is not None and not peer.gone:
        for theirs in peer.open_calls:
            if theirs.name in opposite and theirs.peer in (rank, None) and theirs.tag == call.tag:
                return ()
    return (call.peer,)


def _barrier_behind(ranks: Mapping[int, RankFacts], rank: int) -> tuple[int, ...]:
    """Rank 0 waits for all others in turn, the others for rank 0."""
    if rank == 0:
        return tuple(other for other in sorted(ranks) if other != rank and not _in_barrier(ranks[other]))
    if all(_in_barrier(one) for one in ranks.values()):
        return ()
    return (0,)


def _in_barrier(facts: RankFacts) -> bool:
    return not facts.gone and any(call.name == BARRIER for call in facts.open_calls)
