"""`collective-mismatch` of process groups: ranks have made different ones, and wait because of it.

Torch numbers the groups that a rank makes, and the members meet under this number. So each
new_group must have the same number and the same members on all ranks. Otherwise members look for
each other under different numbers, or ranks of two groups meet under one.

That alone is not a finding: such groups may never be used, or meet by chance. A rank must wait in a
group that it makes, or in its first collective of one, for a rank on the other side of the
difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from ddtop.diagnosis.rule import CRITICAL, RUNS, Context, Finding, Kind, RuleRow
from ddtop.diagnosis.waiters import held_by
from ddtop.model.facts import PeerWait, Snapshot
from ddtop.model.wait_graph import AnyWait
from ddtop.wire.names import NEW_GROUP
from ddtop.wire.records import GroupMade, unpack

_Call = tuple[int, str, bool, int]
"""`GroupMade.key` of a call that all ranks have to make."""
_Stuck = list[tuple[_Call, AnyWait]]
"""Waits that are too long, each with the call that makes its group."""
_Sides = dict[int, GroupMade | None]
"""What each rank has passed to one call; None: it has gone on without it."""


class MadeApart(NamedTuple):
    """`ranks` have made another group than the others, or `more` calls than they: -1, 0, 1.

    `sides`: what they have passed to the call, the most first. Of the ranks that are held up by it,
    those `here` wait where the `oldest` wait is.
    """

    ranks: tuple[int, ...]
    more: int
    sides: tuple[tuple[list[int], GroupMade | None], ...]
    oldest: AnyWait
    here: list[int]


def rule(context: Context) -> list[Finding]:
    """At most one finding: the first group on which the ranks differ."""
    snapshot = context.snapshot
    before = snapshot.time_unix_ns - context.policy.still_limit_s * 1e9
    stuck: _Stuck = [
        (wait.made.key, wait)
        for wait in snapshot.peer_waits
        if wait.made is not None and not wait.made.local and wait.since_unix_ns < before
    ]
    # A group that has completed a collective was made well.
    stuck += [
        ((made[-1].world, NEW_GROUP, False, int(wait.group)), wait)
        for wait in snapshot.waits
        if wait.seq <= 1 and wait.group.isdecimal() and wait.since_unix_ns < before
        if (made := snapshot.rank(wait.rank).comm.made)
    ]
    calls: dict[_Call, _Sides] = {}
    for rank in snapshot.ranks if stuck else ():
        for one in () if rank.gone else rank.comm.made or ():
            calls.setdefault(one.key, {})[rank.rank] = one
    for call, sides in sorted(calls.items()):
        after = [one for one in stuck if one[0][:3] == call[:3] and one[0][3] >= call[3]]
        held = _torn(snapshot, call, calls, after)
        if not held:
            here = [one for one in after if one[0] == call]
            sides |= dict.fromkeys(_without(snapshot, sides, here), None)
            held = here if None in sides.values() else []
        if held:
            return _findings(snapshot, call, calls, held)
    return []


def _torn(snapshot: Snapshot, call: _Call, calls: Mapping[_Call, _Sides], stuck: _Stuck) -> _Stuck:
    """The waits that different members in this call explain.

    Ranks that differ in it may come to a later call all the same, under the same number. They do
    not if they have made that call already, or wait for each other.
    """
    passed = {rank: made.passed for rank, made in calls[call].items() if made is not None}
    groups = {made.passed: made for made in calls[call].values() if made is not None}
    members = Counter(rank for made in groups.values() for rank in unpack(made.group).ranks)
    cycles = {rank: cycle for cycle in snapshot.cycles for rank in cycle}
    held: _Stuck = []
    # Thousands of waits share one `behind` tuple.
    known: dict[tuple[object, ...], bool] = {}
    for at, wait in stuck if len(groups) > 1 else ():
        own, cycle = passed.get(wait.rank), cycles.get(wait.rank, ())
        key = at, type(wait), own, id(wait.behind), id(cycle)
        if key not in known:
            apart = {rank for rank in wait.behind if passed.get(rank, own) != own}
            # All members have come: strangers may have met instead of them.
            meet = not wait.behind and (isinstance(wait, PeerWait) or max(members.values()) > 1)
            known[key] = (
                not apart.isdisjoint(calls.get(at, {}).keys() | {*cycle})
                if at != call
                else bool(apart) or meet
            )
        held += [(at, wait)] if known[key] else []
    return held


def _without(snapshot: Snapshot, sides: _Sides, stuck: _Stuck) -> set[int]:
    """The ranks that have gone on without this call: they wait in a collective, where one of them
    waits for a rank that makes the group."""
    awaited = {rank for _, wait in stuck for rank in wait.behind if rank not in sides}
    caught = awaited.intersection([rank for cycle in snapshot.cycles for rank in cycle])
    ahead = {(wait.group, wait.seq) for wait in snapshot.waits if wait.rank in caught}
    return {
        wait.rank
        for wait in snapshot.waits
        if (wait.group, wait.seq) in ahead
        and wait.rank not in sides
        and snapshot.rank(wait.rank).comm.made is not None
    }


def _findings(
    snapshot: Snapshot, call: _Call, calls: Mapping[_Call, _Sides], held: _Stuck
) -> list[Finding]:
    """None where ranks wait for each other and neither is right: `wait-cycle` says where they
    are."""
    sides = calls[call]
    classes: dict[object, list[int]] = {}
    for rank, made in sorted(sides.items()):
        classes.setdefault(made and made.passed, []).append(rank)
    (usual, most), *others = sorted(classes.items(), key=lambda item: -len(item[1]))
    # Without a clear majority, no side can be called wrong.
    majority = 2 * len(most) > len(sides)
    if not majority and None in classes:
        return []
    odd = sorted(rank for _, ranks in others for rank in ranks)
    ranks = tuple(odd if majority else sorted(sides))
    then = {
        rank: made and made.passed for rank, made in calls.get((*call[:3], call[3] + 1), {}).items()
    }
    lack = majority and others[0][0] in [None, *map(then.get, most)]
    more = -1 if lack else int(majority and then.get(odd[0]) == usual)
    at, oldest = min(held, key=lambda one: one[1].since_unix_ns)
    waits = [wait for _, wait in held]
    named = _crossed(snapshot, odd, [wait for wait in waits if isinstance(wait, PeerWait)])
    return [
        Finding(
            Kind.WAIT_CYCLE if named else Kind.COLLECTIVE_MISMATCH,
            CRITICAL,
            named or ranks,
            tuple(sorted(held_by(snapshot, waits) - set(named or ranks))),
            oldest.since_unix_ns,
            op=call[1],
            seen=MadeApart(
                ranks,
                more,
                tuple((side, sides[side[0]]) for side in (most, *dict(others).values())),
                oldest,
                sorted({wait.rank for called, wait in held if called == at}),
            ),
        )
    ]


def _crossed(snapshot: Snapshot, odd: list[int], waits: list[PeerWait]) -> tuple[int, ...]:
    """The cycle in which a rank waits in one group for a rank that waits for it in another one.

    It is not known whether each would make the other's group next.
    """
    for own in [wait for wait in waits if wait.rank in odd][:1]:
        if any(
            own.rank in wait.behind and wait.rank in own.behind
            for wait in waits
            if wait.made and own.made and wait.made.passed != own.made.passed
        ):
            return next((cycle for cycle in snapshot.cycles if own.rank in cycle), ())
    return ()


ROWS = (
    RuleRow(
        rule,
        (Kind.COLLECTIVE_MISMATCH,),
        "the last groups that each rank has made, and the waits in them",
        silenced_by=("mpi_truncated", "stopped"),
        unless=RUNS,
        may_be_earlier=True,
    ),
)
PAGES = ()
