"""Waits that one of several ranks can end: a receive from any rank, a Waitany.

A master in such a receive is idle, not blocked, as long as one of the others may still send. The
receive becomes an edge of the graph only if all of them wait themselves, are stuck, or have ended:
an edge to those that are stuck, otherwise to each of them. The ranks that may still send are found
step by step: first those that wait for nobody, then those that wait only for these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ddtop.model.state.facts import PeerWait, RankFields, State, Wait
from ddtop.model.waits.wait_graph import STILL, condition_of
from ddtop.policy import Policy
from ddtop.wire.calls import P2P_CALLS, RECEIVES
from ddtop.wire.records import Group, OpenCall

_AT_WORK = ("child", "pool", "future", "socket", "asyncio")
_NOT_AT_WORK = ("lock", "queue", "stdin", "debugger")
_NOT_AT_WORK_IN_KERNEL = ("futex", "pipe", "wait_for_partner")
"""The last is open() of a named pipe whose other end nobody has opened."""


@dataclass(frozen=True, slots=True)
class _Choice:
    rank: int
    call: OpenCall
    others: frozenset[int]


def any_waits_of(
    ranks: Mapping[int, RankFields],
    groups: Iterable[Group],
    waits: Iterable[Wait],
    peer_waits: Iterable[PeerWait],
    now_unix_ns: int,
    policy: Policy,
) -> tuple[PeerWait, ...]:
    """The receives that no rank can end any more; each waits for all ranks that might have."""
    choices = list(_choices(ranks, {group.name: group.ranks for group in groups}))
    if not choices:
        return ()
    stuck = {rank for rank, facts in ranks.items() if _is_stuck(facts, now_unix_ns, policy)}
    free = _free(ranks, choices, [*waits, *peer_waits], stuck)
    return tuple(
        PeerWait(
            one.rank, one.call.name, None, one.call.tag, one.call.since_unix_ns,
            tuple(sorted(one.others & stuck or _here(ranks, one.others) or one.others)),
            one.call.within, one.call.group,
        )
        for one in choices
        if one.others and not one.others & free
    )  # fmt: skip


def is_choice(call: OpenCall) -> bool:
    """Whether one of several ranks can end it."""
    return call.any_of or (call.peer is None and call.name in RECEIVES and call.group is not None)


def _choices(
    ranks: Mapping[int, RankFields], members: Mapping[str, tuple[int, ...]]
) -> Iterable[_Choice]:
    for rank, facts in ranks.items():
        if facts.gone or facts.agent.unheard or not facts.comm.open_calls:
            continue
        found: dict[int, set[int]] = {}
        calls: dict[int, OpenCall] = {}
        for call in facts.comm.open_calls:
            if call.name in P2P_CALLS and is_choice(call):
                others = members.get(call.group or "", ()) if call.peer is None else (call.peer,)
                found.setdefault(call.thread_id, set()).update(others)
                calls[call.thread_id] = call
        for thread, who in found.items():
            yield _Choice(rank, calls[thread], frozenset(who - {rank}))


def _free(
    ranks: Mapping[int, RankFields],
    choices: list[_Choice],
    waits: list[Wait | PeerWait],
    stuck: set[int],
) -> set[int]:
    """Ranks that may still send: they neither wait nor are stuck, or wait only for such ranks."""
    of_all: dict[int, set[int]] = {}
    for wait in waits:
        of_all.setdefault(wait.rank, set()).update(wait.behind)
    of_any: dict[int, list[frozenset[int]]] = {}
    for choice in choices:
        of_any.setdefault(choice.rank, []).append(choice.others)
    held = of_all.keys() | of_any.keys() | stuck
    free = {rank for rank, facts in ranks.items() if rank not in held and not _has_left(facts)}
    undecided = {rank for rank in held - stuck if not _has_left(ranks[rank])}
    while True:
        more = {
            rank
            for rank in undecided
            if of_all.get(rank, set()) <= free
            and all(others & free for others in of_any.get(rank, ()))
        }
        if not more:
            return free
        free |= more
        undecided -= more


def _here(ranks: Mapping[int, RankFields], others: frozenset[int]) -> set[int]:
    """The ranks that have not ended; nothing more was expected from those that have."""
    return {rank for rank in others if rank in ranks and not _has_left(ranks[rank])}


def _is_stuck(facts: RankFields, now_unix_ns: int, policy: Policy) -> bool:
    """Whether it is where no work is done: in a lock, a pipe, a file.

    Workers that run other programs or talk to servers may be at one line too.
    """
    if (
        facts.comm.mpi is None
        or facts.reported.line_age_s is None
        or condition_of(facts, now_unix_ns, policy) != STILL
    ):
        return False
    if facts.reported.line_age_s > policy.working_critical_s:
        return True
    waits_on = facts.reported.place.waits_on if facts.reported.place is not None else None
    wchan = (facts.process.report.wchan if facts.process.report is not None else None) or ""
    if waits_on in _AT_WORK or facts.reported.line_age_s < policy.still_limit_s:
        return False
    return waits_on in _NOT_AT_WORK or any(word in wchan for word in _NOT_AT_WORK_IN_KERNEL)


def _has_left(facts: RankFields) -> bool:
    """Whether it will send nothing more. What a stopped rank would do is not known."""
    exiting = facts.process.report is not None and facts.process.report.exiting
    return facts.gone or (
        facts.state is not State.STOPPED and (facts.reported.phase == "leaving" or exiting)
    )
