"""`wait-cycle` and `unmatched-p2p`: ranks that wait for each other, and for nobody else.

No rank of a cycle can be blamed, so this rule checks each wait in it. A send or recv cannot match
if its peer is in a collective, or in a call with another tag; then the finding is about that call.
If one rank is in a collective of one group, and several wait for it in one of another group, it is
a `collective-mismatch` of that one. Otherwise it names all ranks of the cycle.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddtop.diagnosis.evidence import (
    LOCAL_GROUP_RULE,
    NEW_GROUP_RULE,
    SAME_CALLS,
    other_tag,
    stack_lines,
    too_few_receives,
    traffic_lines,
)
from ddtop.diagnosis.finding import CRITICAL, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.waiters import by_hand_line, group_by_hand, peer_text
from ddtop.model.facts import PeerWait, RankFacts, Snapshot, Wait
from ddtop.model.wait_graph import AnyWait, Graph
from ddtop.policy import Policy, Waits
from ddtop.wire.names import GROUP_MAKERS, RECEIVES, SENDS
from ddtop.wire.records import Group
from ddtop.words.sentences import (
    collective_text,
    file_line,
    names_of_groups,
    quoted,
    ranks_text,
    verb,
)
from ddtop.words.units import duration


@dataclass(frozen=True)
class Deadlock(Waits, of="deadlock", was=""):
    """`wait-cycle` and `unmatched-p2p`."""


def rule(context: Context) -> list[Finding]:
    """One finding for each cycle whose waits have all lasted long enough."""
    snapshot, policy = context.snapshot, context.policy
    findings = []
    alone = any(wait.behind == (wait.rank,) for wait in snapshot.peer_waits)
    about = _About(snapshot) if snapshot.cycles or alone else None
    for cycle in snapshot.cycles:
        assert about is not None
        inside = set(cycle)
        theirs = [
            wait
            for rank in cycle
            for wait in about.by_rank[rank]
            if not inside.isdisjoint(wait.behind)
        ]
        collective = sorted((wait for wait in theirs if isinstance(wait, Wait)), key=about.order)
        single = sorted((wait for wait in theirs if isinstance(wait, PeerWait)), key=about.order)
        # The cycle is as old as the wait that closed it.
        since = max(
            [wait.since_unix_ns for wait in collective] + [wait.since_unix_ns for wait in single]
        )
        if snapshot.time_unix_ns - since <= policy.wait_s(Deadlock) * 1e9:
            continue
        odd = _cannot_match(single, {wait.rank for wait in single})
        if odd:
            findings.append(_unmatched_finding(about, cycle, since, odd))
        elif not single and (lone := _one_against(collective)) is not None:
            findings.append(_elsewhere(about, cycle, since, lone))
        else:
            findings.append(_cycle(about, cycle, since, collective, single))
    if alone and about is not None:
        findings += _from_itself(about, policy)
    return findings + _made_in_other_order(snapshot, policy)


class _About:
    """The waits of a snapshot, by rank. There may be thousands of cycles."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.names = names_of_groups(snapshot.groups)
        self.by_rank: dict[int, list[AnyWait]] = {}
        self._order: dict[int, int] = {}
        every: tuple[AnyWait, ...] = (*snapshot.waits, *snapshot.peer_waits)
        for place, wait in enumerate(every):
            self._order[id(wait)] = place
            self.by_rank.setdefault(wait.rank, []).append(wait)
        self._graph = Graph(snapshot.waits, snapshot.peer_waits)

    def order(self, wait: AnyWait) -> int:
        """The position of this wait among all waits."""
        return self._order[id(wait)]

    def held_up(self, cycle: tuple[int, ...]) -> list[int]:
        """The ranks of the cycle, and all whose waits lead into it."""
        into = self._graph.leading_to(
            [number for rank in cycle for number in self._graph.of.get(rank, ())]
        )
        return sorted(self._graph.ranks_of(into).union(cycle))


def _cannot_match(single: list[PeerWait], in_single: set[int]) -> list[PeerWait]:
    """The calls that can never match the current call of their peer."""
    single = [wait for wait in single if wait.call not in GROUP_MAKERS]
    to_collective = [wait for wait in single if not any(peer in in_single for peer in wait.behind)]
    if to_collective:
        return to_collective
    return [wait for wait in single if _misses(wait, single) is not None]


def _misses(wait: PeerWait, others: list[PeerWait]) -> PeerWait | None:
    """The opposite call of the peer that is meant for this rank and has another tag or
    communicator.
    """
    for other in others:
        meant = other.rank == wait.peer and other.peer == wait.rank
        opposite = (wait.call in SENDS and other.call in RECEIVES) or (
            wait.call in RECEIVES and other.call in SENDS
        )
        if meant and opposite and (_other_tag(wait, other) or wait.group != other.group):
            return other
    return None


def _other_tag(wait: PeerWait, other: PeerWait) -> bool:
    return None not in (wait.tag, other.tag) and wait.tag != other.tag


def _from_itself(about: _About, policy: Policy) -> list[Finding]:
    """A rank that receives from itself although no message is on its way: only the waiting rank
    could send it.
    """
    findings = []
    for wait in about.snapshot.peer_waits:
        stands = about.snapshot.time_unix_ns - wait.since_unix_ns > policy.wait_s(Deadlock) * 1e9
        if wait.behind == (wait.rank,) and stands:
            findings.append(_unmatched_finding(about, (wait.rank,), wait.since_unix_ns, [wait]))
    return findings


def _unmatched_finding(
    about: _About, cycle: tuple[int, ...], since: int, odd: list[PeerWait]
) -> Finding:
    # A send may have been buffered, but an open receive has certainly received nothing.
    snapshot, first = about.snapshot, next((wait for wait in odd if wait.call in RECEIVES), odd[0])
    ranks = waiting = tuple(sorted({wait.rank for wait in odd}))
    subject = f"rank {first.rank} waits in {peer_text(first)}{_spot(snapshot, first.rank)}"
    if len(waiting) > 1 and len({wait.behind for wait in odd}) == 1:
        # It is less likely that several ranks have a call too many.
        ranks = first.behind
        calls = list(dict.fromkeys(map(peer_text, odd)))[:3]
        subject = f"{ranks_text(waiting)} wait in {' and '.join(calls)}"
    lines = [_wait_text(about, rank) for rank in cycle[:8]]
    instead = _instead_text(about, first, odd)
    if (stray := other_tag(snapshot, first)) is not None:
        instead += f", and {stray}"
    advice = (
        "check that each recv has its send, with the same peer and tag, and that both ranks take"
        " the same branch"
    )
    if (total := too_few_receives(snapshot, first)) is not None:
        instead += f"; {total}"
        advice = "receive once for each message: a receive from any rank takes only one"
    return Finding(
        kind=Kind.UNMATCHED_P2P,
        severity=CRITICAL,
        ranks=ranks,
        victims=tuple(sorted(set(about.held_up(cycle)) - set(ranks))),
        since_unix_ns=since,
        summary=(
            f"{subject}, but {instead};"
            f" no progress for {duration((snapshot.time_unix_ns - since) / 1e9)}"
        ),
        evidence=(*_sent_texts(snapshot, odd), *lines),
        advice=advice,
        op=first.call,
    )


def _sent_texts(snapshot: Snapshot, odd: list[PeerWait]) -> list[str]:
    """What has been sent. If there are receives, only these are shown, because the sends are the
    other side of the same messages.
    """
    receives = [wait for wait in odd if wait.call in RECEIVES] or odd
    return list(
        dict.fromkeys(line for wait in receives[:4] for line in traffic_lines(snapshot, wait))
    )


def _instead_text(about: _About, wait: PeerWait, odd: list[PeerWait]) -> str:
    peer = wait.behind[0]
    if peer == wait.rank:
        return "that is the rank itself, and it has sent itself nothing"
    theirs = _misses(wait, odd)
    if theirs is not None:
        differ = "tags" if _other_tag(wait, theirs) else "communicators"
        return (
            f"rank {peer} is in {peer_text(theirs)}{_spot(about.snapshot, peer)}: the {differ}"
            " differ"
        )
    waiting = sorted({one.rank for one in odd if one.behind == wait.behind})
    return f"{_wait_text(about, peer)}, where it waits for {ranks_text(waiting)}"


def _cycle(
    about: _About,
    cycle: tuple[int, ...],
    since: int,
    collective: list[Wait],
    single: list[PeerWait],
) -> Finding:
    snapshot = about.snapshot
    lines = [_wait_text(about, rank) for rank in cycle[:16]]
    shown = "; ".join(lines[:3]) + ("; ..." if len(lines) > 3 else "")
    stray_tags = [text for wait in single if (text := other_tag(snapshot, wait)) is not None]
    groups = sorted({wait.group for wait in collective})
    if stray_tags:
        shown += f"; but {stray_tags[0]}"
        lines += _sent_texts(snapshot, single)
        advice = "make the tags of send and recv match, or receive first what was sent first"
    elif single and not collective and all(wait.call in RECEIVES for wait in single):
        advice = (
            "no rank sends: check the source of each receive (does that neighbour send to this"
            " rank?), and let one rank send first"
        )
    elif (stray := _stray_send(single)) is not None and not collective:
        sender, peer, waiter = stray
        advice = (
            f"rank {sender} sends to rank {peer}, which receives from a different rank, while rank"
            f" {waiter} waits for a send from rank {sender}: check the peer of that send, or"
            " change the order of the calls on one of these ranks"
        )
    elif any(wait.call in GROUP_MAKERS for wait in single):
        advice = (
            LOCAL_GROUP_RULE
            if any(wait.made is not None and wait.made.local for wait in single)
            else NEW_GROUP_RULE
        )
    elif single:
        advice = (
            "give neighbours opposite orders (one sends first, one receives first), or use one "
            + (
                "Sendrecv"
                if any(wait.group is not None for wait in single)
                else "batch_isend_irecv"
            )
        )
    else:
        advice = "use the groups in the same order on all ranks, and leave out no call of them"
    return Finding(
        kind=Kind.WAIT_CYCLE,
        severity=CRITICAL,
        ranks=cycle,
        victims=tuple(sorted(set(about.held_up(cycle)) - set(cycle))),
        since_unix_ns=since,
        summary=(
            f"{ranks_text(cycle)} {verb(cycle, 'has', 'have')} waited for each other for "
            f"{duration((snapshot.time_unix_ns - since) / 1e9)}: {shown}"
        ),
        evidence=tuple(lines),
        advice=advice,
        group=groups[0] if len(groups) == 1 else None,
    )


def _made_in_other_order(snapshot: Snapshot, policy: Policy) -> list[Finding]:
    """Ranks that make groups by hand at one store, in different order.

    Nobody knows the members of such a group. But if the ranks that wait, in whatever group, are as
    many as each group has members, and have all of its numbers, then nobody else will come.
    """
    makers: dict[tuple[str, int], list[tuple[RankFacts, Group]]] = {}
    for rank in snapshot.ranks:
        group = group_by_hand(rank)
        if group is not None and group.foreign:
            makers.setdefault((group.foreign, group.size), []).append((rank, group))
    findings = []
    for (store, size), come in makers.items():
        names = {group.name for _, group in come}
        before = {made.group.name for rank, _ in come for made in (rank.comm.made or ())[:-1]}
        waited_s = min(rank.reported.line_age_s or 0.0 for rank, _ in come)
        if (
            len(names) < 2
            or not names.isdisjoint(before)
            or sorted(group.number for _, group in come) != list(range(size))
            or waited_s <= policy.wait_s(Deadlock)
        ):
            continue
        ranks = tuple(rank.rank for rank, _ in come)
        lines = [by_hand_line(rank) or "" for rank, _ in come[:8]]
        shown = ", ".join(f"rank {rank.rank} makes {group.name}" for rank, group in come[:3])
        waits = [wait for wait in snapshot.waits if not set(ranks).isdisjoint(wait.behind)]
        findings.append(
            Finding(
                kind=Kind.WAIT_CYCLE,
                severity=CRITICAL,
                ranks=ranks,
                victims=tuple(sorted({wait.rank for wait in waits}.difference(ranks))),
                since_unix_ns=snapshot.time_unix_ns - round(waited_s * 1e9),
                summary=(
                    f"{ranks_text(ranks)} make groups by hand in different order, and have waited"
                    f" for each other for {duration(waited_s)}: {shown}"
                ),
                evidence=(
                    *lines,
                    *(line for rank, _ in come[:4] for line in stack_lines(rank)),
                ),
                advice=(
                    f"make the groups of the store {quoted(store)} in the same order on all members"
                ),
            )
        )
    return findings


def _one_against(waits: list[Wait]) -> Wait | None:
    """The wait of one rank in one call, where several others wait for it alone in another call."""
    by_call: dict[tuple[str, int], list[Wait]] = {}
    for wait in waits:
        by_call.setdefault((wait.group, wait.seq), []).append(wait)
    calls = sorted(by_call.values(), key=len)
    if len(calls) != 2 or len(calls[1]) < 2:
        return None
    lone = calls[0][0]
    return lone if all(wait.behind == (lone.rank,) for wait in calls[1]) else None


def _elsewhere(about: _About, cycle: tuple[int, ...], since: int, wait: Wait) -> Finding:
    others = tuple(rank for rank in cycle if rank != wait.rank)
    return Finding(
        kind=Kind.COLLECTIVE_MISMATCH,
        severity=CRITICAL,
        ranks=(wait.rank,),
        victims=tuple(sorted(set(about.held_up(cycle)) - {wait.rank})),
        since_unix_ns=since,
        summary=(
            f"{_wait_text(about, wait.rank)}, but {ranks_text(others)} wait for it in"
            f" {_call_text(about, others[0])};"
            f" no progress for {duration((about.snapshot.time_unix_ns - since) / 1e9)}"
        ),
        evidence=tuple(_wait_text(about, rank) for rank in cycle[:16]),
        advice=SAME_CALLS,
        group=wait.group,
        op=wait.op,
        seq=wait.seq,
    )


def _stray_send(single: list[PeerWait]) -> tuple[int, int, int] | None:
    """(sender, its peer, the rank that waits for the sender), where the only send of a cycle goes
    to another rank than the one that waits for it.
    """
    sends = [wait for wait in single if wait.call in SENDS]
    if len(sends) != 1 or sends[0].peer is None:
        return None
    sender, peer = sends[0].rank, sends[0].peer
    receives = {wait.rank: wait.peer for wait in single if wait.call in RECEIVES}
    waiter = next(
        (rank for rank, source in receives.items() if source == sender and rank != peer), None
    )
    return (
        (sender, peer, waiter)
        if waiter is not None and receives.get(peer) not in (None, sender)
        else None
    )


def _wait_text(about: _About, rank: int) -> str:
    """`rank 1 waits in recv from rank 0 (pipe.py:31)`."""
    return f"rank {rank} waits in {_call_text(about, rank)}"


def _call_text(about: _About, rank: int) -> str:
    """`recv from rank 0 (pipe.py:31)`."""
    theirs = [wait for wait in about.by_rank.get(rank, ()) if wait.behind]
    parts = [peer_text(wait) for wait in theirs if isinstance(wait, PeerWait)]
    parts += [
        collective_text(wait.op, wait.seq, about.names.get(wait.group, wait.group))
        for wait in theirs
        if isinstance(wait, Wait)
    ]
    return f"{' and '.join(parts[:2]) or 'a call'}{_spot(about.snapshot, rank)}"


def _spot(snapshot: Snapshot, rank: int) -> str:
    place = snapshot.rank(rank).reported.place
    return f" ({file_line(place)} {place.function})" if place is not None else ""
