"""The progress of each process group, the ranks that are behind, and the calls of its members.

A large job has thousands of groups, for example one for each eight ranks. So an overview reads only
the open waits, and the members are read only for the groups on the screen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ddtop.model.state.facts import RankFacts, Snapshot, State
from ddtop.model.waits.align import comparable_seq
from ddtop.policy import Policy
from ddtop.present.collectives import op_with_bytes
from ddtop.present.text import clean
from ddtop.wire.records import Collective, Group, GroupProgress
from ddtop.words.ranks import rank_list
from ddtop.words.sentences import group_name, op_name

SECOND_NS = 1_000_000_000
_Moving = tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class GroupWait:
    """Ranks wait in one group."""

    since_unix_ns: int
    #: The members that they wait for. Empty: every member is there, and nothing completes.
    behind: frozenset[int]


@dataclass(frozen=True, slots=True)
class MemberClass:
    """Members of a group that are in the same state at the same collective."""

    ranks: tuple[int, ...]
    state: State
    #: Number of the last collective that they have enqueued; None where not known.
    enqueued: int | None
    #: Number of the last one that has completed; None where not known.
    completed: int | None
    #: The collective that is open, else the last one.
    op: str
    open: bool
    #: Since when a collective has been pending, on the member that has waited longest.
    since_unix_ns: int | None


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One group, as a row shows it."""

    group: Group
    #: The last collective that any member has enqueued.
    front: int | None
    #: The members that others wait for: the last collective that they have enqueued, and their
    #: ranks.
    lag: tuple[tuple[int | None, tuple[int, ...]], ...]
    wait: GroupWait | None
    #: The calls with the oldest open number, and the ranks in each. Two different calls are a
    #: mismatch.
    ops: tuple[tuple[str, tuple[int, ...]], ...]
    last_op: str

    @property
    def mismatch(self) -> bool:
        """Members are in different calls at the same number."""
        return len(self.ops) > 1


def label_of(group: Group) -> str:
    """As the program uses it (`tp`), else torch's description of it, else its name."""
    return clean(group_name(group))


def members_text(group: Group, most: int = 0) -> str:
    """`0-7`, or that its members are not ranks of this job."""
    return rank_list(group.ranks, most) if group.foreign is None else "not of this job"


def group_waits(snapshot: Snapshot, policy: Policy) -> dict[str, GroupWait]:
    """The groups in which a rank waits for longer than in a normal step, by name, from one pass
    over the waits."""
    newest = snapshot.time_unix_ns - int(policy.wait_shown_s * SECOND_NS)
    since: dict[str, int] = {}
    behind: dict[str, dict[int, tuple[int, ...]]] = {}
    for wait in snapshot.waits:
        if wait.since_unix_ns <= newest:
            since[wait.group] = min(since.get(wait.group, wait.since_unix_ns), wait.since_unix_ns)
            # Once for each collective: thousands of waiters in the same one wait for the same
            # ranks.
            behind.setdefault(wait.group, {}).setdefault(wait.seq, wait.behind)
    return {
        name: GroupWait(at, frozenset(rank for ranks in behind[name].values() for rank in ranks))
        for name, at in since.items()
    }


def order_of(
    snapshot: Snapshot,
    waits: dict[str, GroupWait],
    by_name: Iterable[str],
    policy: Policy,
    at_fault: Collection[int] = (),
) -> list[str]:
    """Groups without progress first: those that wait for a rank at fault, then those with the
    longest wait; then all others by name."""
    limit = snapshot.time_unix_ns - int(policy.group_stuck_s * SECOND_NS)
    stuck = sorted(
        (one.behind.isdisjoint(at_fault), one.since_unix_ns // SECOND_NS, name)
        for name, one in waits.items()
        if one.since_unix_ns <= limit
    )
    first = [name for _, _, name in stuck]
    known = set(first)
    return [*first, *(name for name in by_name if name not in known)]


def natural(text: str) -> tuple[object, ...]:
    """A key under which `dp_2` comes before `dp_10`."""
    parts = re.split(r"(\d+)", text)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)


def group_facts(snapshot: Snapshot, group: Group, wait: GroupWait | None) -> GroupFacts:
    """The facts of one group, from one look at each member."""
    reached: dict[int | None, list[int]] = {}
    held: dict[int, dict[_Moving, list[int]]] = {}
    last_op = ""
    name, ranks = group.name, snapshot.ranks
    for number in group.ranks:
        if number >= len(ranks):
            continue
        rank, seq = ranks[number], None
        for progress in rank.comm.groups:
            if progress.group == name:
                seq = comparable_seq(progress)
                last_op = last_op or progress.last_op or ""
                break
        reached.setdefault(seq, []).append(number)
        for one in rank.comm.open_collectives:
            if one.group == name:
                held.setdefault(one.seq, {}).setdefault((one.op, one.sizes, one.dtypes), []).append(
                    number
                )
    front = max((seq for seq in reached if seq is not None), default=None)
    # Texts are made once for all members in the same call: to make them for each of ten thousand
    # members would be the largest cost.
    first = held[min(held)] if held else {}
    ops: dict[str, list[int]] = {}
    for (op, sizes, dtypes), who in first.items():
        ops.setdefault(op_with_bytes(Collective(name, op, 0, 0, sizes, dtypes)), []).extend(who)
    lag = tuple(
        (seq, tuple(reached[seq]))
        for seq in sorted(reached, key=lambda seq: -1 if seq is None else seq)
        if seq != front and wait is not None and not wait.behind.isdisjoint(reached[seq])
    )
    found = tuple((op, tuple(sorted(who))) for op, who in ops.items())
    return GroupFacts(group, front, lag, wait, found, clean(op_name(last_op)))


def _progress(rank: RankFacts, name: str) -> GroupProgress | None:
    return next((one for one in rank.comm.groups if one.group == name), None)


def member_classes(snapshot: Snapshot, group: Group) -> tuple[MemberClass, ...]:
    """The members grouped by their state, those that are furthest behind first."""
    found: dict[tuple[State, int | None, int | None, str, bool], list[int]] = {}
    since: dict[tuple[State, int | None, int | None, str, bool], int] = {}
    for number in group.ranks:
        rank = snapshot.rank(number)
        progress = _progress(rank, group.name)
        held = next((one for one in rank.comm.open_collectives if one.group == group.name), None)
        enqueued = comparable_seq(progress) if progress is not None else None
        behind = (progress.p2p_offset or 0) if progress is not None else 0
        back = (
            None if progress is None or progress.completed is None else progress.completed - behind
        )
        op = (
            op_with_bytes(held)
            if held is not None
            else clean(op_name((progress.last_op if progress else "") or ""))
        )
        key = (rank.state, enqueued, back, op, held is not None)
        found.setdefault(key, []).append(number)
        at = progress.pending_since_unix_ns if progress is not None else None
        if at is not None:
            since[key] = min(since.get(key, at), at)
    classes = [MemberClass(tuple(ranks), *key, since.get(key)) for key, ranks in found.items()]
    return tuple(
        sorted(classes, key=lambda one: (one.enqueued is not None, one.enqueued or 0, one.ranks))
    )
