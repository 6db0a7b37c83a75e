"""How far each process group is, who is behind, and in what its members are.

A job has thousands of groups when each eight ranks are one: an overview looks at the open waits
only, and the members are looked at for the groups that are on the screen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ddtop.model.state.facts import RankFacts, Snapshot, State
from ddtop.model.waits.align import comparable_seq
from ddtop.present.collectives import op_with_bytes
from ddtop.present.text import clean
from ddtop.wire.records import Collective, Group, GroupProgress
from ddtop.words.sentences import op_name

BEHIND_S, STANDS_S = 2.0, 5.0
"""Waits shorter than the first are the rhythm of a training; from the second on a group moves to
the top."""
SECOND_NS = 1_000_000_000
_Moving = tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Standing:
    """Waits in one group: since when (unix ns), and for whom; `late` empty: all are there, and
    nothing comes back."""

    since_unix_ns: int
    late: frozenset[int]


@dataclass(frozen=True, slots=True)
class MemberClass:
    """Members of a group of which the same is true. `put_in`, `came_back`: numbers of collectives,
    None where not known.

    `op`: the collective that is open, else the last one. `since_unix_ns`: since when something is
    open, the longest of them.
    """

    ranks: tuple[int, ...]
    state: State
    put_in: int | None
    came_back: int | None
    op: str
    open: bool
    since_unix_ns: int | None


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One group. `front`: the last collective that any member has enqueued. `lag`: members behind
    that, by how far they are.

    `ops`: what is open at the front, with who is in it; two of them are a mismatch.
    """

    group: Group
    front: int | None
    lag: tuple[tuple[int | None, tuple[int, ...]], ...]
    standing: Standing | None
    ops: tuple[tuple[str, tuple[int, ...]], ...]
    last_op: str

    @property
    def mismatch(self) -> bool:
        """Members are in different calls at the same number."""
        return len(self.ops) > 1


def label_of(group: Group) -> str:
    """As torch's users call it: its description, else its name."""
    return clean(group.description or group.name)


def standings(snapshot: Snapshot) -> dict[str, Standing]:
    """The groups in which somebody waits for longer than a training's rhythm, by name; one pass
    over the waits."""
    borne = snapshot.time_unix_ns - int(BEHIND_S * SECOND_NS)
    since: dict[str, int] = {}
    late: dict[str, dict[int, tuple[int, ...]]] = {}
    for wait in snapshot.waits:
        if wait.since_unix_ns <= borne:
            since[wait.group] = min(since.get(wait.group, wait.since_unix_ns), wait.since_unix_ns)
            # Once a collective: thousands of waiters in the same one name the same ranks.
            late.setdefault(wait.group, {}).setdefault(wait.seq, wait.behind)
    return {
        name: Standing(at, frozenset(rank for behind in late[name].values() for rank in behind))
        for name, at in since.items()
    }


def order_of(
    snapshot: Snapshot,
    standing: dict[str, Standing],
    by_name: Iterable[str],
    at_fault: Collection[int] = (),
) -> list[str]:
    """Those that stand still first: those that wait for a rank at fault, then the longest wait;
    then all others by name."""
    limit = snapshot.time_unix_ns - int(STANDS_S * SECOND_NS)
    stuck = sorted(
        (one.late.isdisjoint(at_fault), one.since_unix_ns // SECOND_NS, name)
        for name, one in standing.items()
        if one.since_unix_ns <= limit
    )
    first = [name for _, _, name in stuck]
    known = set(first)
    return [*first, *(name for name in by_name if name not in known)]


def natural(text: str) -> tuple[object, ...]:
    """A key under which `dp_2` comes before `dp_10`."""
    parts = re.split(r"(\d+)", text)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)


def group_facts(snapshot: Snapshot, group: Group, standing: Standing | None) -> GroupFacts:
    """What is true of one group: one look at each member."""
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
    # Texts are made once for all members in the same call: of ten thousand each would cost more
    # than all the rest.
    first = held[min(held)] if held else {}
    ops: dict[str, list[int]] = {}
    for (op, sizes, dtypes), who in first.items():
        ops.setdefault(op_with_bytes(Collective(name, op, 0, 0, sizes, dtypes)), []).extend(who)
    lag = tuple(
        (seq, tuple(reached[seq]))
        for seq in sorted(reached, key=lambda seq: -1 if seq is None else seq)
        if seq != front and standing is not None and not standing.late.isdisjoint(reached[seq])
    )
    found = tuple((op, tuple(sorted(who))) for op, who in ops.items())
    return GroupFacts(group, front, lag, standing, found, clean(op_name(last_op)))


def _progress(rank: RankFacts, name: str) -> GroupProgress | None:
    return next((one for one in rank.comm.groups if one.group == name), None)


def member_classes(snapshot: Snapshot, group: Group) -> tuple[MemberClass, ...]:
    """The members by what is true of them, those that are least far first."""
    found: dict[tuple[State, int | None, int | None, str, bool], list[int]] = {}
    since: dict[tuple[State, int | None, int | None, str, bool], int] = {}
    for number in group.ranks:
        rank = snapshot.rank(number)
        progress = _progress(rank, group.name)
        held = next((one for one in rank.comm.open_collectives if one.group == group.name), None)
        put_in = comparable_seq(progress) if progress is not None else None
        behind = (progress.p2p_offset or 0) if progress is not None else 0
        back = (
            None if progress is None or progress.completed is None else progress.completed - behind
        )
        op = (
            op_with_bytes(held)
            if held is not None
            else clean(op_name((progress.last_op if progress else "") or ""))
        )
        key = (rank.state, put_in, back, op, held is not None)
        found.setdefault(key, []).append(number)
        at = progress.pending_since_unix_ns if progress is not None else None
        if at is not None:
            since[key] = min(since.get(key, at), at)
    classes = [MemberClass(tuple(ranks), *key, since.get(key)) for key, ranks in found.items()]
    return tuple(
        sorted(classes, key=lambda one: (one.put_in is not None, one.put_in or 0, one.ranks))
    )
