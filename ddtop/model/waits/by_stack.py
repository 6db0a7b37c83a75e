"""Waits of ranks that are read from outside. Their collectives are not counted, so the frames of
the main threads decide.

Frames do not show in which group a rank waits, nor for which ranks. So a rank in a call for other
ranks is taken to wait for all ranks that are in no such call, but only if these frames can mean
nothing else. A rank that leaves such calls again may belong to another group. A thread that runs at
one line may be in the next call of the same kind at each look.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddtop.model.state.facts import PeerWait, RankFields, State
from ddtop.policy import Policy
from ddtop.wire.outside import P2P, UNCLEAR, OutsideLook


def stack_waits_of(
    ranks: Mapping[int, RankFields], now_unix_ns: int, policy: Policy
) -> tuple[PeerWait, ...]:
    """The wait of each rank that has been in one call for others without a break."""
    looks = {
        rank: facts.comm.outside for rank, facts in ranks.items() if facts.comm.outside is not None
    }
    if not looks:
        return ()
    waiting = [
        (rank, look)
        for rank, look in sorted(looks.items())
        if _is_waiting(ranks[rank], look, now_unix_ns, policy)
    ]
    if not waiting:
        return ()
    held = {rank for rank, _ in waiting}
    elsewhere = tuple(sorted(rank for rank in ranks if rank not in held))
    first_unix_ns = min(look.since_unix_ns or 0 for _, look in waiting)
    counted = not any(look.kind == P2P for look in looks.values())
    unknown = likely = runs = False
    for rank in elsewhere:
        facts, own = ranks[rank], looks.get(rank)
        if facts.gone or facts.state is State.STOPPED:
            continue
        certain = own is not None and _is_apart(own, counted, now_unix_ns, policy)
        seldom = own is not None and own.apart_looks >= policy.stack_apart_looks
        unknown |= own is None or _may_take_part(own, first_unix_ns) or not (certain or seldom)
        likely |= not certain
        runs |= own is not None and not own.asleep
    return tuple(
        PeerWait(
            rank,
            look.call or "a collective",
            None,
            None,
            look.since_unix_ns or now_unix_ns,
            () if unknown or (runs and not look.asleep) else elsewhere,
            by_stack=True,
            likely=likely,
        )
        for rank, look in waiting
    )


def _is_waiting(facts: RankFields, look: OutsideLook, now: int, policy: Policy) -> bool:
    if facts.gone or facts.agent.unheard or facts.state is State.STOPPED or not look.waits:
        return False
    return now - (look.since_unix_ns or now) >= policy.stack_wait_s * 1e9


def _may_take_part(look: OutsideLook, since_unix_ns: int) -> bool:
    """Whether it may be in the same calls as those that wait, or in calls of a group of its own.

    A rank that is in such a call only for a moment: the next look decides.
    """
    left = (look.communicated_unix_ns or 0) > since_unix_ns
    return look.waits or look.kind == UNCLEAR or left


def _is_apart(look: OutsideLook, counted: bool, now: int, policy: Policy) -> bool:
    """Whether it is certain that it makes no such calls now: it sleeps, or gloo runs none in it.

    `counted`: nobody is in send or recv, which no thread of gloo's runs.
    """
    known = [look.since_unix_ns] if look.asleep else []
    known += [look.quiet_since_unix_ns] if counted else []
    return any(at is not None and now - at >= policy.stack_wait_s * 1e9 for at in known)
