"""`wait-cycle` and `unmatched-p2p`: ranks that wait for each other, and for nobody else.

No rank of a cycle can be blamed, so this rule checks each wait in it. A send or recv cannot match
if its peer is in a collective, or in a call with another tag; then the finding is about that call.
If one rank is in a collective of one group, and several wait for it in one of another group, it is
a `collective-mismatch` of that one. Otherwise it names all ranks of the cycle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ddtop.diagnosis.rule import (
    CAUSES,
    CRITICAL,
    RUNS,
    Context,
    Explanation,
    Finding,
    Kind,
    RuleRow,
    Waits,
)
from ddtop.diagnosis.waiters import group_by_hand
from ddtop.model.facts import PeerWait, RankFacts, Snapshot, Wait
from ddtop.model.wait_graph import AnyWait, Graph
from ddtop.wire.names import GROUP_MAKERS, RECEIVES, SENDS
from ddtop.wire.records import Group


@dataclass(frozen=True)
class Deadlock(Waits, of="deadlock"):
    """`wait-cycle` and `unmatched-p2p`."""


class Circle(NamedTuple):
    """Ranks that wait for each other, by these waits; of `unmatched-p2p`: by the calls that can
    never match. `waits`: those of each rank of the job."""

    ranks: tuple[int, ...]
    since_unix_ns: int
    by: Sequence[AnyWait]
    waits: Mapping[int, Sequence[AnyWait]]


class ByHand(NamedTuple):
    """For how long the ranks have waited that make groups in different order."""

    waited_s: float


def rule(context: Context) -> list[Finding]:
    """One finding for each cycle whose waits have all lasted long enough."""
    snapshot, limit_s = context.snapshot, context.policy.wait_s(Deadlock)
    # A rank that receives from itself although no message is on its way: only it could send it.
    alone = [(wait.rank,) for wait in snapshot.peer_waits if wait.behind == (wait.rank,)]
    cycles, findings = (*snapshot.cycles, *dict.fromkeys(alone)), []
    about = _About(snapshot) if cycles else None
    for cycle in cycles:
        assert about is not None
        inside = set(cycle)
        theirs = [
            wait
            for rank in cycle
            for wait in about.by_rank[rank]
            if not inside.isdisjoint(wait.behind)
        ]
        # The cycle is as old as the wait that closed it.
        since = max(wait.since_unix_ns for wait in theirs)
        if snapshot.time_unix_ns - since <= limit_s * 1e9:
            continue
        theirs.sort(key=about.order)
        single = [wait for wait in theirs if isinstance(wait, PeerWait)]
        collective = [wait for wait in theirs if isinstance(wait, Wait)]
        kind, ranks, group, op, seq = Kind.WAIT_CYCLE, cycle, None, None, None
        if odd := _cannot_match(single, {wait.rank for wait in single}):
            kind, ranks, op = Kind.UNMATCHED_P2P, _blamed(odd), most_certain(odd).call
        elif not single and (lone := _one_against(collective)) is not None:
            kind, ranks = Kind.COLLECTIVE_MISMATCH, (lone.rank,)
            group, op, seq = lone.group, lone.op, lone.seq
        elif len({wait.group for wait in collective}) == 1:
            group = collective[0].group
        findings.append(
            Finding(
                kind,
                CRITICAL,
                ranks,
                tuple(sorted(set(about.held_up(cycle)) - set(ranks))),
                since,
                group=group,
                op=op,
                seq=seq,
                seen=Circle(cycle, since, odd or theirs, about.by_rank),
            )
        )
    return findings + _made_in_other_order(snapshot, limit_s)


class _About:
    """The waits of a snapshot, by rank. There may be thousands of cycles."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
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


def _blamed(odd: Sequence[PeerWait]) -> tuple[int, ...]:
    """The ranks of these calls, or the one that several wait for: it is less likely that they all
    have a call too many."""
    ranks = tuple(sorted({wait.rank for wait in odd}))
    return odd[0].behind if len(ranks) > 1 and len({wait.behind for wait in odd}) == 1 else ranks


def most_certain(odd: Sequence[PeerWait]) -> PeerWait:
    """A receive: it has certainly received nothing, while a send may have been buffered."""
    return next((wait for wait in odd if wait.call in RECEIVES), odd[0])


def _cannot_match(single: list[PeerWait], in_single: set[int]) -> list[PeerWait]:
    """The calls that can never match the current call of their peer, or are for the rank itself."""
    single = [wait for wait in single if wait.call not in GROUP_MAKERS]
    to_collective = [wait for wait in single if wait.behind == (wait.rank,)] or [
        wait for wait in single if not any(peer in in_single for peer in wait.behind)
    ]
    if to_collective:
        return to_collective
    return [wait for wait in single if misses(wait, single) is not None]


def misses(wait: PeerWait, others: Collection[PeerWait]) -> PeerWait | None:
    """The opposite call of the peer that is meant for this rank and has another tag or
    communicator.
    """
    for other in others:
        meant = other.rank == wait.peer and other.peer == wait.rank
        opposite = (wait.call in SENDS and other.call in RECEIVES) or (
            wait.call in RECEIVES and other.call in SENDS
        )
        if meant and opposite and (tags_differ(wait, other) or wait.group != other.group):
            return other
    return None


def tags_differ(wait: PeerWait, other: PeerWait) -> bool:
    """Whether both have a tag, and not the same."""
    return None not in (wait.tag, other.tag) and wait.tag != other.tag


def _made_in_other_order(snapshot: Snapshot, limit_s: float) -> list[Finding]:
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
    for (_, size), come in makers.items():
        names = {group.name for _, group in come}
        before = {made.group.name for rank, _ in come for made in (rank.comm.made or ())[:-1]}
        waited_s = min(rank.reported.line_age_s or 0.0 for rank, _ in come)
        if (
            len(names) < 2
            or not names.isdisjoint(before)
            or sorted(group.number for _, group in come) != list(range(size))
            or waited_s <= limit_s
        ):
            continue
        ranks = tuple(rank.rank for rank, _ in come)
        waits = [wait for wait in snapshot.waits if not set(ranks).isdisjoint(wait.behind)]
        findings.append(
            Finding(
                Kind.WAIT_CYCLE,
                CRITICAL,
                ranks,
                tuple(sorted({wait.rank for wait in waits}.difference(ranks))),
                snapshot.time_unix_ns - round(waited_s * 1e9),
                seen=ByHand(waited_s),
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


ROWS = (
    RuleRow(
        rule,
        (Kind.WAIT_CYCLE, Kind.UNMATCHED_P2P, Kind.COLLECTIVE_MISMATCH),
        "waits in collectives and in send and recv, and the cycles that they form",
        silenced_by=CAUSES,
        unless=RUNS,
        may_be_earlier=True,
    ),
)
PAGES = (
    Explanation(
        kind=Kind.WAIT_CYCLE,
        severity="critical",
        brief="ranks wait for each other in a cycle",
        meaning=(
            "Each rank of the cycle waits for the next one, and the last one waits for the first."
            " None of them can continue, whatever other ranks do. No single rank is at fault. The"
            " order of the calls is wrong. The same order may have worked before, with other"
            " timing or smaller messages."
        ),
        found=(
            (
                "Waits in collectives (by number and group) and in send and recv (by peer and tag)"
                " form one graph. A set of ranks that wait for each other and for nobody outside is"
                " a cycle."
            ),
            "The last wait that closed the cycle has lasted for {deadlock.wait_s}.",
            (
                "MPI: a Waitall counts every request that the other side has not begun. A receive"
                " from any source counts once all possible senders are waiting too."
            ),
            (
                "The members of groups that a program makes by hand are not known. Ranks that make"
                " different ones at one store are a cycle if together they fill one of them."
            ),
            "If calls in the cycle can never match, the finding is unmatched-p2p instead.",
        ),
        steps=(
            (
                "The evidence shows one line per rank: its call, the rank that it waits for, and"
                " the source line."
            ),
            (
                "If all neighbours send first, let every second one receive first, or start all"
                " calls together, as below (Sendrecv in MPI). Small messages hide this error,"
                " because a send of a small message returns before anyone receives it."
            ),
            (
                "If there are two groups, make and use them in the same order on all ranks, even if"
                " one of them is used in backward or by a thread. Local groups"
                " (use_local_synchronization) need the same order on the ranks that share them."
            ),
        ),
        before=(
            "dist.send(mine, right)        # all ranks send, nobody receives",
            "dist.recv(theirs, left)",
        ),
        after=(
            "sends = dist.P2POp(dist.isend, mine, right)",
            "receives = dist.P2POp(dist.irecv, theirs, left)",
            "for work in dist.batch_isend_irecv([sends, receives]):",
            "    work.wait()",
        ),
    ),
    Explanation(
        kind=Kind.UNMATCHED_P2P,
        severity="critical",
        brief="a send or recv for which the peer has no matching call",
        meaning=(
            "A rank is in send or recv, and its peer does something that cannot match: the peer is"
            " in a collective that needs this rank, or both are in send and recv with each other"
            " and the tags differ. Neither can continue."
        ),
        found=(
            (
                "ddtop wraps send and recv, and records peer and tag before each call. It compares"
                " them with the peer's own open call and its collectives."
            ),
            (
                "The ranks wait for each other and for nobody outside, for {deadlock.wait_s}. If"
                " the peer only does something else, the finding is not-in-collective, because the"
                " peer may still join. If several ranks wait for one peer in this way, that peer is"
                " named: it has left out its side."
            ),
            (
                "MPI: for each tag, the evidence counts the sends and receives that the two ranks"
                " have begun with each other."
            ),
        ),
        steps=(
            "The finding names both calls with peer, tag and source line. Make them match.",
            (
                "If one rank is in a collective, look for the branch that only one of the two"
                " takes, or for an extra message on one side."
            ),
            (
                "In a pipeline, both stages must use the same number of micro-batches, even in the"
                " last, shorter batch."
            ),
            "Define tags once, as constants, instead of computing them on both sides.",
        ),
        before=(
            "if rank == 0:",
            "    dist.send(x, dst=1, tag=step)",
            "else:",
            "    dist.recv(x, src=0, tag=step + 1)    # a different message",
        ),
        after=(
            "if rank == 0:",
            "    dist.send(x, dst=1, tag=step)",
            "else:",
            "    dist.recv(x, src=0, tag=step)",
        ),
    ),
)
