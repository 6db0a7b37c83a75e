"""What is said of ranks that wait for each other, and of calls that can never match."""

from __future__ import annotations

from collections.abc import Sequence

from ddtop.diagnosis.rules.deadlock import ByHand, Circle, misses, most_certain, tags_differ
from ddtop.diagnosis.waiters import group_by_hand
from ddtop.model.facts import PeerWait, Snapshot
from ddtop.say import evidence, waiters
from ddtop.say.said import (
    Context,
    Finding,
    Kind,
    Said,
    Writer,
    group_text,
    lasting,
    lasts_text,
    spot_text,
    that_hold,
)
from ddtop.say.waiters import OPPOSITE_ORDERS
from ddtop.wire.names import GROUP_MAKERS, RECEIVES, SENDS
from ddtop.words.sentences import collective_text, quoted, ranks_text, verb


def circle(finding: Finding, seen: Circle, at: Context) -> Said:
    """Who waits in which call for whom."""
    single = [wait for wait in seen.by if isinstance(wait, PeerWait)]
    if finding.kind == Kind.UNMATCHED_P2P:
        return _unmatched(single, finding, seen, at)
    lines = [_wait_text(seen, rank, at) for rank in seen.ranks[:16]]
    if finding.kind == Kind.COLLECTIVE_MISMATCH:
        lone, others = finding.ranks[0], [rank for rank in seen.ranks if rank not in finding.ranks]
        return Said(
            f"{_wait_text(seen, lone, at)}, but {ranks_text(others)} wait for it in"
            f" {_call_text(seen, others[0], at)}; no progress"
            f"{lasts_text(at, seen.since_unix_ns)}",
            tuple(lines),
            evidence.SAME_CALLS,
        )
    sure = (one for one in single if one.peer is not None or evidence.is_left(at.snapshot, one))
    told = (evidence.other_tag(at.snapshot, wait) for wait in sure)
    tags = [text for text in told if text is not None]
    more = ["..."] if len(lines) > 3 else []
    shown = (*lines[:3], *more, *(f"but {text}" for text in tags[:1]))
    return Said(
        f"{ranks_text(seen.ranks)} {verb(seen.ranks, 'has', 'have')} waited for each other"
        f"{lasts_text(at, seen.since_unix_ns)}: {'; '.join(shown)}",
        (*lines, *(_sent_texts(at.snapshot, single) if tags else ())),
        "make the tags of send and recv match, or receive first what was sent first"
        if tags
        else _order_advice(single, len(single) < len(seen.by)) + _other_group(seen, at),
    )


def _other_group(seen: Circle, at: Context) -> str:
    """`; rank 2's call is the first one of default_pg: ...`, of the only rank that waits in a group
    which no rank of the circle has used before."""
    every = [(rank, wait) for rank, waits in seen.waits.items() for wait in waits if wait.behind]
    of_groups = [(rank, wait) for rank, wait in every if not isinstance(wait, PeerWait)]
    first = [(rank, wait) for rank, wait in of_groups if wait.seq == 1]
    if len(first) != 1 or len(of_groups) < len(every) or len(every) < 2:
        return ""
    rank, wait = first[0]
    return (
        f"; rank {rank}'s call is the first one of {group_text(at, wait.group)}: check the group"
        " that it passes"
    )


def _order_advice(single: Sequence[PeerWait], with_others: bool) -> str:
    """`with_others`: some of the ranks wait in collectives."""
    stray, alone = _stray_send(single), single and not with_others
    local = any(wait.made is not None and wait.made.local for wait in single)
    of_mpi = any(wait.group is not None for wait in single)
    return that_hold(
        (
            single and all(wait.call in RECEIVES for wait in single),
            "no rank sends: check the source of each receive (does that neighbour send to this"
            " rank?), and let one rank send first",
        ),
        (
            alone and stray,
            "rank {0} sends to rank {1}, which receives from a different rank, while rank {2} waits"
            " for a send from rank {0}: check the peer of that send, or change the order of the"
            " calls on one of these ranks",
        ),
        (
            any(wait.call in GROUP_MAKERS for wait in single),
            evidence.LOCAL_GROUP_RULE if local else evidence.NEW_GROUP_RULE,
        ),
        (
            single,
            OPPOSITE_ORDERS + ", or use one " + ("Sendrecv" if of_mpi else "batch_isend_irecv"),
        ),
        (True, "use the groups in the same order on all ranks, and leave out no call of them"),
    )[0].format(*stray or ())


def _stray_send(single: Sequence[PeerWait]) -> tuple[int, int, int] | None:
    """(sender, its peer, the rank that waits for the sender), where the only send of a cycle goes
    to another rank than the one that waits for it.
    """
    sends = [wait for wait in single if wait.call in SENDS]
    if len(sends) != 1 or sends[0].peer is None:
        return None
    sender, peer = sends[0].rank, sends[0].peer
    receives = {wait.rank: wait.peer for wait in single if wait.call in RECEIVES}
    waiting = [rank for rank, source in receives.items() if source == sender and rank != peer]
    stray = waiting and receives.get(peer) not in (None, sender)
    return (sender, peer, waiting[0]) if stray else None


def _unmatched(odd: Sequence[PeerWait], finding: Finding, seen: Circle, at: Context) -> Said:
    snapshot, first = at.snapshot, most_certain(odd)
    waiting = sorted({wait.rank for wait in odd})
    calls = list(dict.fromkeys(map(waiters.peer_text, odd)))[:3]
    subject = (
        f"{ranks_text(waiting)} wait in {' and '.join(calls)}"
        if waiting != [*finding.ranks]
        else f"rank {first.rank} waits in {waiters.peer_text(first)}"
        + spot_text(snapshot.rank(first.rank).reported.place)
    )
    stray, total = (
        evidence.other_tag(snapshot, first),
        evidence.too_few_receives(snapshot, first),
    )
    lines = [_wait_text(seen, rank, at) for rank in seen.ranks[:8]]
    return Said(
        f"{subject}, but {_instead_text(first, odd, seen, at)}{f', and {stray}' if stray else ''}"
        f"{f'; {total}' if total else ''}; no progress{lasts_text(at, seen.since_unix_ns)}",
        (*_sent_texts(snapshot, odd), *lines),
        "receive once for each message: a receive from any rank takes only one"
        if total
        else "check that each recv has its send, with the same peer and tag, and that both ranks"
        " take the same branch",
    )


def _sent_texts(snapshot: Snapshot, odd: Sequence[PeerWait]) -> list[str]:
    """What has been sent. If there are receives, only these are shown, because the sends are the
    other side of the same messages.
    """
    receives = [wait for wait in odd if wait.call in RECEIVES] or odd
    lines = (line for wait in receives[:4] for line in evidence.traffic_lines(snapshot, wait))
    return list(dict.fromkeys(lines))


def _instead_text(wait: PeerWait, odd: Sequence[PeerWait], seen: Circle, at: Context) -> str:
    peer, _ = evidence.sent_otherwise(at.snapshot, wait) or (wait.behind[0], 0)
    if peer == wait.rank:
        nothing = evidence.sent_itself(at.snapshot, wait)
        return f"that is the rank itself, and it has sent itself {nothing}"
    theirs = misses(wait, odd)
    if theirs is not None:
        differ = "tags" if tags_differ(wait, theirs) else "communicators"
        call = f"{waiters.peer_text(theirs)}{spot_text(at.snapshot.rank(peer).reported.place)}"
        return f"rank {peer} is in {call}: the {differ} differ"
    waiting = sorted({one.rank for one in odd if one.behind == wait.behind})
    return f"{_wait_text(seen, peer, at)}, where it waits for {ranks_text(waiting)}"


def _wait_text(seen: Circle, rank: int, at: Context) -> str:
    """`rank 1 waits in recv from rank 0 (pipe.py:31)`."""
    return f"rank {rank} waits in {_call_text(seen, rank, at)}"


def _call_text(seen: Circle, rank: int, at: Context) -> str:
    """`recv from rank 0 (pipe.py:31)`."""
    theirs = [wait for wait in seen.waits.get(rank, ()) if wait.behind]
    parts = [waiters.peer_text(wait) for wait in theirs if isinstance(wait, PeerWait)]
    parts += [
        collective_text(wait.op, wait.seq, group_text(at, wait.group))
        for wait in theirs
        if not isinstance(wait, PeerWait)
    ]
    call = " and ".join(parts[:2]) or "a call"
    return f"{call}{spot_text(at.snapshot.rank(rank).reported.place)}"


def by_hand(finding: Finding, seen: ByHand, at: Context) -> Said:
    """Which rank makes which group."""
    ranks = list(map(at.snapshot.rank, finding.ranks))
    groups = [group for rank in ranks if (group := group_by_hand(rank)) is not None]
    shown = ", ".join(
        f"rank {rank} makes {group.name}"
        for rank, group in zip(finding.ranks[:3], groups, strict=False)
    )
    return Said(
        f"{ranks_text(finding.ranks)} make groups by hand in different order, and have waited for"
        f" each other{lasting(seen.waited_s)}: {shown}",
        (
            *(waiters.by_hand_line(rank) or "" for rank in ranks[:8]),
            *(line for rank in ranks[:4] for line in evidence.stack_lines(rank)),
        ),
        f"make the groups of the store {quoted(groups[0].foreign or '')} in the same order on all"
        " members",
    )


WRITERS: dict[type, Writer] = {ByHand: by_hand, Circle: circle}
