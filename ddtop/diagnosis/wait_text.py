"""The call in which a rank waits, as text for a sentence."""

from __future__ import annotations

from ddtop.model.state.facts import Blame, PeerWait
from ddtop.wire.calls import RECEIVES
from ddtop.wire.records import Group
from ddtop.words.sentences import call_text, collective_text, names_of_groups


def peer_text(wait: PeerWait) -> str:
    """`recv from rank 0, tag 7`, `send to rank 2`, `monitored_barrier`, `Wait for Irecv from rank
    0, tag 7`.

    The tag only if it is not the default; for MPI always, unless it is "any".
    """
    tag = ""
    if wait.peer is None and wait.call in RECEIVES and wait.group is not None:
        tag = " from any rank"
    if wait.tag or (wait.tag == 0 and wait.group is not None):
        tag += f", tag {wait.tag}"
    return call_text(wait.call, wait.peer, wait.within, tag)


def waited_text(blame: Blame, groups: tuple[Group, ...]) -> str:
    """The call in which others wait for a blamed rank: a collective of a group, or a call for
    single ranks.
    """
    if blame.peer_wait is not None:
        single = len(blame.waiters) == 1
        return peer_text(blame.peer_wait) if single else blame.peer_wait.call
    name = (
        names_of_groups(groups).get(blame.group, blame.group) if blame.group is not None else None
    )
    return collective_text(blame.op, blame.seq, name)
