"""The rank that this process is, if it is one. Everything in the agent may import this module.

Wrappers and `ddtop.step()` ask here. They run on the program's threads, so each function costs
about a microsecond and does nothing where no agent runs.
"""

from __future__ import annotations

from threading import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING

from ddtop.wire import page as layout

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank

_rank: Rank | None = None


def get() -> Rank | None:
    """The rank of this process; None if it is not a rank, and in a forked child of a rank."""
    return _rank


def become(rank: Rank | None) -> None:
    """From now on this process is that rank; None: it is no longer a rank."""
    global _rank
    _rank = rank


def enter_call(call: int, tag: int = 0, peer: int = layout.NO_PEER) -> int:
    """Note an open call on the state page. Returns its slot for `leave_call`; -1 if this is no
    rank."""
    rank = _rank
    return rank.page.enter_call(call, peer, tag) if rank is not None else -1


def leave_call(slot: int) -> None:
    """The call of this slot has returned."""
    rank = _rank
    if rank is not None:
        rank.page.leave_call(slot)


def user_step() -> None:
    """`ddtop.step()`: from its first call on nothing else counts iterations."""
    rank = _rank
    if rank is None:
        return
    rank.stepper = get_ident()
    words = rank.page.words
    if words[layout.ITERATION_SOURCE_AT] != layout.SOURCE_USER:
        words[layout.ITERATION_SOURCE_AT], words[layout.ITERATION_AT] = layout.SOURCE_USER, 0
    words[layout.ITERATION_AT] += 1
    words[layout.STEP_AT] = monotonic_ns()
