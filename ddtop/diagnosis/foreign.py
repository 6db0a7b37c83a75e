"""Waits in groups that are not of this job: a trainer waits for its engines, an engine for weights.

Who is late there is in another job, so no rank of this one is to blame.
"""

from __future__ import annotations

from collections.abc import Collection

from ddtop.model.state.facts import Snapshot, Wait
from ddtop.model.waits.wait_graph import AnyWait
from ddtop.words.ranks import by_value, ranks_text, verb
from ddtop.words.sentences import collective_text, names_of_groups


def foreign_waits(snapshot: Snapshot) -> list[Wait]:
    """The open waits in such groups."""
    foreign = {group.name for group in snapshot.groups if group.foreign is not None}
    return [wait for wait in snapshot.waits if wait.group in foreign] if foreign else []


def held_by(snapshot: Snapshot, waits: Collection[Wait]) -> set[int]:
    """The ranks of these waits, and those that wait only for such ranks."""
    found, before = {wait.rank for wait in waits}, -1
    while len(found) > before:
        before = len(found)
        every: tuple[AnyWait, ...] = (*snapshot.waits, *snapshot.peer_waits)
        for wait in every:
            if wait.behind and found.issuperset(wait.behind):
                found.add(wait.rank)
    return found


def foreign_text(snapshot: Snapshot, waits: Collection[Wait]) -> str:
    """`rank 0 waits in broadcast #3 of group weights (store 10.0.0.1:29511) for processes outside
    this job`.
    """
    names = names_of_groups(snapshot.groups)
    calls = {wait.rank: collective_text(wait.op, wait.seq, names[wait.group]) for wait in waits}
    return "; ".join(
        f"{ranks_text(ranks)} {verb(ranks, 'waits', 'wait')} in {call} for processes outside this"
        " job"
        for call, ranks in by_value(calls).items()
    )
