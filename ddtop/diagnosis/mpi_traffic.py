"""What two MPI ranks have sent to each other and begun to receive: evidence for a wrong tag, a
wrong peer, a missing send.
"""

from __future__ import annotations

from ddtop.model.state.facts import PeerWait, RankFacts, Snapshot
from ddtop.wire.calls import RECEIVES

TAGS_MAX = 4


def traffic_lines(snapshot: Snapshot, wait: PeerWait) -> list[str]:
    """`rank 0 has sent to rank 1: 1 with tag 7 (receives begun: 0), none with tag 99`; empty if
    nothing is counted. A receiver that has received from any rank has no counts.
    """
    if wait.peer is None or wait.group is None:
        return []
    waiter, peer = snapshot.rank(wait.rank), snapshot.rank(wait.peer)
    receives = wait.call in RECEIVES
    sender, receiver = (peer, waiter) if receives else (waiter, peer)
    if sender.comm.mpi is None or receiver.comm.mpi is None:
        return []
    sent = _counts(sender, wait.group, receiver.rank, sent=True)
    taken = _counts(receiver, wait.group, sender.rank, sent=False)
    if not sent and not taken:
        return []
    parts = [
        f"{count} with tag {tag}" + (f" (receives begun: {taken.get(tag, 0)})" if taken else "")
        for tag, count in sorted(sent.items())
    ]
    parts = parts[:TAGS_MAX]
    if wait.tag is not None and not sent.get(wait.tag):
        parts.append(f"none with tag {wait.tag}")
    return [f"rank {sender.rank} has sent to rank {receiver.rank}: {', '.join(parts) or 'nothing'}"]


def other_tag(snapshot: Snapshot, wait: PeerWait) -> str | None:
    """`rank 0's last send to rank 1 had tag 11`, where rank 1 waits to receive from rank 0 with
    another tag and has not received that send.
    """
    if wait.call not in RECEIVES or None in (wait.peer, wait.group, wait.tag):
        return None
    sender = snapshot.rank(wait.peer or 0)
    taken = _counts(snapshot.rank(wait.rank), wait.group or "", sender.rank, sent=False)
    kept = sender.comm.mpi.traffic if sender.comm.mpi is not None else ()
    for one in kept:
        is_it = one.is_last and (one.group, one.peer) == (wait.group, wait.rank)
        if is_it and one.tag != wait.tag and one.sent > taken.get(one.tag or 0, 0):
            return f"rank {sender.rank}'s last send to rank {wait.rank} had tag {one.tag}"
    return None


def _counts(rank: RankFacts, group: str, peer: int, sent: bool) -> dict[int, int]:
    kept = rank.comm.mpi.traffic if rank.comm.mpi is not None else ()
    found = {
        one.tag: one.sent if sent else one.received
        for one in kept
        if one.tag is not None and (one.group, one.peer) == (group, peer)
    }
    return {tag: count for tag, count in found.items() if count}
