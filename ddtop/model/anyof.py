"""Waits that one of several ranks can end: a receive from anybody, a Waitany.

A master in such a receive is idle, not held up, as long as one of the others may still send. Only where all of them wait
themselves, or have gone, is it an edge to each of them: then nobody is left who could send. Ranks that may still send are
found from those that wait for nobody, as long as that adds any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ddtop.model.facts import PeerWait, RankFacts, State, Wait
from ddtop.wire.calls import P2P_CALLS, RECEIVES
from ddtop.wire.records import Group, OpenCall


@dataclass(frozen=True, slots=True)
class _Choice:
    rank: int
    call: OpenCall
    others: frozenset[int]


def any_waits_of(
    ranks: Mapping[int, RankFacts],
    groups: Iterable[Group],
    waits: Iterable[Wait],
    peer_waits: Iterable[PeerWait],
) -> tuple[PeerWait, ...]:
    """The receives from anybody that nobody can end any more, each waiting for all who might have."""
    choices = list(_choices(ranks, {group.name: group.ranks for group in groups}))
    if not choices:
        return ()
    free = _free(ranks, choices, [*waits, *peer_waits])
    return tuple(
        PeerWait(
            one.rank, one.call.name, None, one.call.tag, one.call.since_unix_ns, tuple(sorted(one.others)),
            one.call.within, one.call.group,
        )
        for one in choices
        if one.others and not one.others & free
    )  # fmt: skip


def is_choice(call: OpenCall) -> bool:
    """One of several ranks can end it."""
    return call.any_of or (call.peer is None and call.name in RECEIVES and call.group is not None)


def _choices(ranks: Mapping[int, RankFacts], members: Mapping[str, tuple[int, ...]]) -> Iterable[_Choice]:
    for rank, facts in ranks.items():
        if facts.gone or not facts.open_calls:
            continue
        found: dict[int, set[int]] = {}
        calls: dict[int, OpenCall] = {}
        for call in facts.open_calls:
            if call.name in P2P_CALLS and is_choice(call):
                others = members.get(call.group or "", ()) if call.peer is None else (call.peer,)
                found.setdefault(call.thread_id, set()).update(others)
                calls[call.thread_id] = call
        for thread, who in found.items():
            yield _Choice(rank, calls[thread], frozenset(who - {rank}))


def _free(ranks: Mapping[int, RankFacts], choices: list[_Choice], waits: list[Wait | PeerWait]) -> set[int]:
    """Ranks that may still send: they do not wait, or only for such ranks."""
    of_all: dict[int, set[int]] = {}
    for wait in waits:
        of_all.setdefault(wait.rank, set()).update(wait.behind)
    of_any: dict[int, list[frozenset[int]]] = {}
    for choice in choices:
        of_any.setdefault(choice.rank, []).append(choice.others)
    held = of_all.keys() | of_any.keys()
    free = {rank for rank, facts in ranks.items() if rank not in held and not _has_left(facts)}
    undecided = {rank for rank in held if not _has_left(ranks[rank])}
    while True:
        more = {
            rank
            for rank in undecided
            if of_all.get(rank, set()) <= free and all(others & free for others in of_any.get(rank, ()))
        }
        if not more:
            return free
        free |= more
        undecided -= more


def _has_left(facts: RankFacts) -> bool:
    """It will send nothing any more. What a stopped one would do nobody knows."""
    exiting = facts.process is not None and facts.process.exiting
    return facts.gone or (facts.state is not State.STOPPED and (facts.phase == "leaving" or exiting))
