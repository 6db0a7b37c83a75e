"""A clause about the ranks that wait for a rank: which rank waits in which call, and which ranks
wait only for those.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ddtop.diagnosis.waiters import group_by_hand
from ddtop.model.facts import Blame, PeerWait, RankFacts, Snapshot, Wait
from ddtop.wire.names import RECEIVES
from ddtop.wire.records import Group, GroupMade, unpack
from ddtop.words.sentences import (
    by_value,
    call_text,
    collective_text,
    file_line,
    function_text,
    names_of_groups,
    ranks_text,
    verb,
)
from ddtop.words.units import plural

OPPOSITE_ORDERS = "give neighbours opposite orders (one sends first, one receives first)"


def peer_text(wait: PeerWait) -> str:
    """`recv from rank 0, tag 7`, `send to rank 2`, `monitored_barrier`, `Wait for Irecv from rank
    0, tag 7`, `new_group #3 of ranks 0,2`.

    The tag only if it is not the default; for MPI always, unless it is "any".
    """
    if wait.made is not None:
        return made_text(wait.made)
    tag = ""
    if wait.peer is None and wait.call in RECEIVES and wait.group is not None:
        tag = " from any rank"
    if wait.tag or (wait.tag == 0 and wait.group is not None):
        tag += f", tag {wait.tag}"
    return call_text(wait.call, wait.peer, wait.within, tag)


def made_text(made: GroupMade, ranges_max: int = 6) -> str:
    """`new_group #3 of ranks 0,2`, `new_group #1 (mesh_tp) of ranks 0-7 in init_device_mesh`.

    The name of a local group has no number of its own: torch puts into it how many groups the rank
    was in.
    """
    name = (f"#{made.number} " if not made.local else "") + (
        f"({made.group.description}) " if made.group.description else ""
    )
    text = f"{made.call} {name}of {ranks_text(unpack(made.group).ranks, ranges_max)}"
    text = f"local {text} after {plural(made.number, 'group')}" if made.local else text
    via = made.place and made.place.callee
    return f"{text} in {via}" if via is not None else text


def waited_text(blame: Blame, groups: tuple[Group, ...]) -> str:
    """The call in which others wait for a blamed rank: a collective of a group, or a call for
    single ranks.
    """
    if blame.peer_wait is not None:
        single = len(blame.waiters) == 1 or blame.peer_wait.made is not None
        return peer_text(blame.peer_wait) if single else blame.peer_wait.call
    name = names_of_groups(groups).of(blame.group) if blame.group is not None else None
    return collective_text(blame.op, blame.seq, name)


CALLS_MAX = 2
"""At most this many further calls are named: a rank may be in hundreds of groups."""


def waits_clause(
    snapshot: Snapshot,
    first: Blame | Wait,
    ranks: Sequence[int],
    victims: Collection[int],
    it: str | None = None,
) -> str:
    """`ranks 0,1 wait for it in all_gather #485 of mesh_dp; rank 3 waits for those ranks`.

    `first`: the wait that the clause names first. `ranks`: the blamed ranks. `victims`: all ranks
    that wait. `it`: the word for what they wait for, if that is not a rank.
    """
    here: set[int] = set()
    others: dict[str, set[int]] = {}
    groups: dict[str, None] = {}
    held = frozenset(victims)
    for wait in _for_these(snapshot, set(ranks)):
        if wait.rank not in held:
            continue
        if isinstance(wait, Wait):
            groups[wait.group] = None
        if _is_in(wait, first):
            here.add(wait.rank)
        else:
            others.setdefault(wait_text(snapshot, wait), set()).add(wait.rank)
    what = (
        wait_text(snapshot, first)
        if isinstance(first, Wait)
        else waited_text(first, snapshot.groups)
    )
    if isinstance(first, Blame) and first.peer_wait is not None and first.peer_wait.by_stack:
        what += ", by its stack" if len(first.waiters) == 1 else ", by their stacks"
    it = it or verb(ranks, "it", "them")
    if not here:
        # All members have entered that collective, or it is not known which are behind.
        every: tuple[Wait | PeerWait, ...] = (*snapshot.waits, *snapshot.peer_waits)
        here = {wait.rank for wait in every if wait.rank in held and _is_in(wait, first)}
    here = here or set(held)
    named = set(here)
    if len(others) > CALLS_MAX and len(groups) > len(others):
        named |= set().union(*others.values())
        text = f"{plural(len(named), 'rank')} wait for {it} in {_groups_text(snapshot, groups)}"
    else:
        text = (
            f"{ranks_text(sorted(here))} {verb(sorted(here), 'waits', 'wait')} for {it} in {what}"
        )
        for call, who in list(others.items())[:CALLS_MAX]:
            if who - named:
                text += f", {ranks_text(sorted(who - named))} in {call}"
                named |= who
    rest = sorted(set(victims) - named)
    return (
        f"{text}; {ranks_text(rest)} {verb(rest, 'waits', 'wait')} for"
        f" {verb(sorted(named), 'that rank', 'those ranks')}"
        if rest
        else text
    )


def _groups_text(snapshot: Snapshot, groups: Collection[str]) -> str:
    """`8 groups (dp_0 … dp_7)`."""
    names = names_of_groups(snapshot.groups)
    first, *_, last = (names.get(group, group) for group in groups)
    return f"{len(groups):,} groups ({first} … {last})"


def called_at(snapshot: Snapshot, waiters: Iterable[int]) -> str:
    """` at checkpoint.py:149 save`: where the program made the call in which the first of these
    ranks waits, or waited when it failed; empty if that is not known.
    """
    for number in waiters:
        reported = snapshot.rank(number).reported
        place = reported.exception.place if reported.exception is not None else reported.place
        if place is not None:
            return f" at {file_line(place)} {function_text(place)}"
    return ""


def _for_these(snapshot: Snapshot, ranks: set[int]) -> Iterable[Wait | PeerWait]:
    # Thousands of waits share one `behind` tuple.
    known: dict[int, bool] = {}
    every: tuple[Wait | PeerWait, ...] = (*snapshot.waits, *snapshot.peer_waits)
    for wait in every:
        key = id(wait.behind)
        if key not in known:
            known[key] = not ranks.isdisjoint(wait.behind)
        if known[key]:
            yield wait


def _is_in(wait: Wait | PeerWait, first: Blame | Wait) -> bool:
    single = first.peer_wait if isinstance(first, Blame) else None
    if isinstance(wait, PeerWait):
        same = (wait.made and wait.made.passed) == (single and single.made and single.made.passed)
        return single is not None and wait.call == single.call and same
    return single is None and (wait.group, wait.seq) == (first.group, first.seq)


def wait_text(snapshot: Snapshot, wait: Wait | PeerWait) -> str:
    """The call in which this rank waits."""
    if isinstance(wait, PeerWait):
        return peer_text(wait)
    names = names_of_groups(snapshot.groups)
    return collective_text(wait.op, wait.seq, names.of(wait.group))


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


def by_hand_line(rank: RankFacts) -> str | None:
    """`rank 0 makes the group reward as number 0 of 2, store 10.0.0.1:29511`."""
    group = group_by_hand(rank)
    if group is None:
        return None
    store = f", store {group.foreign}" if group.foreign else ""
    return (
        f"rank {rank.rank} makes the group {group.name} as number {group.number} of"
        f" {group.size}{store}"
    )
