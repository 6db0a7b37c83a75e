"""`wait-cycle` and `unmatched-p2p`: ranks that wait for each other, and for nobody else.

A cycle has no end to blame, so each wait on it is looked at: a send or recv whose peer sits in a collective, or that meets a
call of its peer with another tag, cannot match, and that call is the news. Where every wait is as good as the other, all ranks
of the cycle are named.
"""

from __future__ import annotations

from ddtop.diagnosis.finding import CRITICAL, Finding
from ddtop.diagnosis.words import collective_text, duration, file_line, names_of_groups, peer_text, ranks_text, verb
from ddtop.model.align import edges_of
from ddtop.model.facts import PeerWait, Snapshot, Wait
from ddtop.model.policy import Policy

_PAIRS = ({"send", "recv"},)


def rule(snapshot: Snapshot, policy: Policy) -> list[Finding]:
    """One finding a cycle whose waits have all stood for long enough."""
    found = []
    for cycle in snapshot.cycles:
        inside = set(cycle)
        collective = [wait for wait in snapshot.waits if wait.rank in inside and inside & set(wait.behind)]
        single = [wait for wait in snapshot.peer_waits if wait.rank in inside and inside & set(wait.behind)]
        # The cycle is as old as the wait that closed it.
        since = max([wait.since_unix_ns for wait in collective] + [wait.since_unix_ns for wait in single])
        if snapshot.time_unix_ns - since <= policy.still_limit_s * 1e9:
            continue
        odd = _cannot_match(single, {wait.rank for wait in single})
        if odd:
            found.append(_unmatched(snapshot, cycle, since, odd))
        else:
            found.append(_cycle(snapshot, cycle, since, collective, single))
    return found


def _cannot_match(single: list[PeerWait], in_single: set[int]) -> list[PeerWait]:
    """The calls that no move of their peer's present call can answer."""
    to_collective = [wait for wait in single if not any(peer in in_single for peer in wait.behind)]
    if to_collective:
        return to_collective
    by_rank = {wait.rank: wait for wait in single}
    other_tag = []
    for wait in single:
        peer = by_rank.get(wait.peer) if wait.peer is not None else None
        if peer is not None and peer.peer == wait.rank and {wait.call, peer.call} in _PAIRS and wait.tag != peer.tag:
            other_tag.append(wait)
    return other_tag


def _unmatched(snapshot: Snapshot, cycle: tuple[int, ...], since: int, odd: list[PeerWait]) -> Finding:
    ranks = tuple(sorted({wait.rank for wait in odd}))
    first = odd[0]
    lines = [_says(snapshot, rank) for rank in cycle[:8]]
    instead = _instead(snapshot, first, {wait.rank: wait for wait in odd})
    return Finding(
        kind="unmatched-p2p",
        severity=CRITICAL,
        ranks=ranks,
        victims=tuple(rank for rank in _held_up(snapshot, cycle) if rank not in ranks),
        since_unix_ns=since,
        summary=f"rank {first.rank} waits in {peer_text(first)}{_spot(snapshot, first.rank)}, but {instead}; "
        f"nothing moves for {duration((snapshot.time_unix_ns - since) / 1e9)}",
        evidence=tuple(lines),
        advice="make peer and tag of the send and the recv equal, and let both ranks take the same branch",
        op=first.call,
    )


def _instead(snapshot: Snapshot, wait: PeerWait, odd: dict[int, PeerWait]) -> str:
    peer = wait.behind[0]
    theirs = odd.get(peer)
    if theirs is not None:
        return f"rank {peer} is in {peer_text(theirs)}{_spot(snapshot, peer)}: the tags differ"
    return f"{_says(snapshot, peer)}, where it waits for {ranks_text([wait.rank])}"


def _cycle(
    snapshot: Snapshot, cycle: tuple[int, ...], since: int, collective: list[Wait], single: list[PeerWait]
) -> Finding:
    lines = [_says(snapshot, rank) for rank in cycle]
    shown = "; ".join(lines[:3]) + ("; ..." if len(lines) > 3 else "")
    groups = sorted({wait.group for wait in collective})
    if single:
        advice = (
            "let neighbours go in opposite order (one sends first, one receives first), or use one batch_isend_irecv"
        )
    else:
        advice = "use the groups in the same order on all ranks"
    return Finding(
        kind="wait-cycle",
        severity=CRITICAL,
        ranks=cycle,
        victims=tuple(rank for rank in _held_up(snapshot, cycle) if rank not in cycle),
        since_unix_ns=since,
        summary=f"{ranks_text(cycle)} {verb(cycle, 'waits', 'wait')} for each other for "
        f"{duration((snapshot.time_unix_ns - since) / 1e9)}: {shown}",
        evidence=tuple(lines[:16]),
        advice=advice,
        group=groups[0] if len(groups) == 1 else None,
    )


def _held_up(snapshot: Snapshot, cycle: tuple[int, ...]) -> list[int]:
    """The cycle, and all whose waits lead into it."""
    edges = edges_of(snapshot.waits, snapshot.peer_waits)
    found = set(cycle)
    while more := {rank for rank, others in edges.items() if others & found} - found:
        found |= more
    return sorted(found)


def _says(snapshot: Snapshot, rank: int) -> str:
    """`rank 1 waits in recv from rank 0 (pipe.py:31)`."""
    names = names_of_groups(snapshot.groups)
    parts = [peer_text(wait) for wait in snapshot.peer_waits if wait.rank == rank and wait.behind]
    parts += [
        collective_text(wait.op, wait.seq, names.get(wait.group, wait.group))
        for wait in snapshot.waits
        if wait.rank == rank and wait.behind
    ]
    return f"rank {rank} waits in {' and '.join(parts[:2]) or 'a call'}{_spot(snapshot, rank)}"


def _spot(snapshot: Snapshot, rank: int) -> str:
    place = snapshot.rank(rank).place
    return f" ({file_line(place)} {place.function})" if place is not None else ""
