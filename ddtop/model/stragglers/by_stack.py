"""Stragglers among ranks that are read from outside, by many looks at their stacks.

From outside, the time at which a rank enters a collective is not known. But a rank that is late
hardly waits. Most looks find it outside all calls for other ranks, and find the others inside
collectives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ddtop.policy import Policy
from ddtop.wire.outside import OutsideLook


@dataclass(frozen=True, slots=True)
class LateByStack:
    """`ranks` are late, `waiters` wait for them.

    `call_ratio`: the largest share of looks that found one of `ranks` in a call for others.
    `wait_ratio`: the smallest share that found one of `waiters` in a collective. `looks`,
    `seconds`: how often and how long the rank with the fewest looks was looked at.
    """

    ranks: tuple[int, ...]
    waiters: tuple[int, ...]
    call_ratio: float
    wait_ratio: float
    looks: int
    seconds: float


def suspects_of(looks: Mapping[int, OutsideLook | None], policy: Policy) -> LateByStack | None:
    """The ranks that may be late after these looks, even if there are few; None for none.

    A rank without looks rules out all others.
    """
    known = {rank: look for rank, look in looks.items() if look is not None and look.looks}
    if len(known) < max(2, len(looks)):
        return None
    late = {
        rank: look.call_looks / look.looks
        for rank, look in known.items()
        if look.call_looks <= policy.stack_late_ratio * look.looks
    }
    waiters = {
        rank: look.wait_looks / look.looks for rank, look in known.items() if rank not in late
    }
    # Half of the ratio: after a few looks it may be so low by chance, and more looks decide.
    if not late or not waiters or _together(known, waiters) < policy.stack_late_wait_ratio / 2:
        return None
    return LateByStack(
        tuple(sorted(late)),
        tuple(sorted(waiters)),
        max(late.values()),
        min(waiters.values()),
        min(look.looks for look in known.values()),
        min(look.looks_s for look in known.values()),
    )


def _together(known: Mapping[int, OutsideLook], ranks: Iterable[int]) -> float:
    """The share of all looks at these ranks that found one in a collective."""
    found = [known[rank] for rank in ranks]
    return sum(look.wait_looks for look in found) / sum(look.looks for look in found)


def late_of(looks: Mapping[int, OutsideLook | None], policy: Policy) -> LateByStack | None:
    """The ranks that are certainly late: there were enough looks, and each wait is a new one."""
    found = suspects_of(looks, policy)
    if found is None or found.seconds < policy.stack_late_s:
        return None
    if found.wait_ratio < policy.stack_late_wait_ratio * 2 / 3:
        return None
    known = {rank: look for rank, look in looks.items() if look is not None}
    ratio = _together(known, found.waiters)
    if ratio < policy.stack_late_wait_ratio:
        return None
    if len(found.ranks) > len(found.waiters):
        # Most ranks work while few wait: these have less to do, as at the end of uneven data.
        return None
    seen = all(_is_seen(known[rank], ratio, policy) for rank in found.ranks)
    return found if seen and all(_waits(known[rank], policy) for rank in found.waiters) else None


def _is_seen(look: OutsideLook, ratio: float, policy: Policy) -> bool:
    """Whether chance rules out a rank that waits in `ratio` of the time: it was in a call too
    seldom."""
    count, inside = look.looks, look.call_looks
    if count < policy.stack_late_looks:
        return False
    chance = sum(
        math.comb(count, found) * ratio**found * (1 - ratio) ** (count - found)
        for found in range(inside + 1)
    )
    return chance <= policy.stack_late_chance


def _waits(look: OutsideLook, policy: Policy) -> bool:
    if look.looks < policy.stack_late_looks // 3:
        return False
    # Validating or saving once is one long wait, and no straggler.
    of_waits = policy.straggler_critical_ratio * look.wait_looks
    longest = min(of_waits, policy.stack_one_wait_ratio * look.looks)
    return look.one_wait_looks <= max(1, longest)
