"""Which wait is named first, waits for processes that are not of this job, and groups that a
program makes by hand.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ddtop.model.facts import Blame, RankFacts, Snapshot, Wait
from ddtop.model.wait_graph import AnyWait
from ddtop.wire.names import MAKES_BY_HAND
from ddtop.wire.records import Group


def first_wait(
    snapshot: Snapshot, waiting: Sequence[RankFacts], ranks: Collection[int]
) -> Blame | Wait | None:
    """The wait that the clause names first if `waiting` wait for `ranks`: the oldest wait for one
    of these ranks; else the collective of the first that waits.
    """
    blames = [blame for blame in snapshot.blames if blame.root in ranks]
    blame = min(blames, key=lambda each: each.since_unix_ns, default=None)
    return blame or next((rank.wait for rank in waiting if rank.wait is not None), None)


def foreign_waits(snapshot: Snapshot) -> list[Wait]:
    """The open waits in such groups."""
    foreign = {group.name for group in snapshot.groups if group.foreign is not None}
    return [wait for wait in snapshot.waits if wait.group in foreign] if foreign else []


def held_by(snapshot: Snapshot, waits: Collection[AnyWait]) -> set[int]:
    """The ranks of these waits, and those that wait only for such ranks."""
    found, before = {wait.rank for wait in waits}, -1
    while len(found) > before:
        before = len(found)
        every: tuple[AnyWait, ...] = (*snapshot.waits, *snapshot.peer_waits)
        for wait in every:
            if wait.behind and found.issuperset(wait.behind):
                found.add(wait.rank)
    return found


def makes_by_hand(rank: RankFacts) -> bool:
    """Whether it waits for the other members of such a group. Torch's own calls that make groups
    are open calls, so they are told apart."""
    place = rank.reported.place
    return place is not None and place.callee == MAKES_BY_HAND and not rank.comm.open_calls


def group_by_hand(rank: RankFacts) -> Group | None:
    """The group that it makes. None if the rank has no agent, so that nobody knows."""
    made = rank.comm.made or ()
    by_hand = makes_by_hand(rank) and made and made[-1].call == MAKES_BY_HAND
    return made[-1].group if by_hand else None
