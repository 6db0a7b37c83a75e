"""The looks at a job that is followed: one after the other, or until the verdict has settled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from ddtop.diagnosis.finding import CRITICAL
from ddtop.feeds.feed import Feed
from ddtop.follow.engine import LOOK_S
from ddtop.follow.look import Look, Source
from ddtop.model.facts import Snapshot, State
from ddtop.model.stragglers import suspects_of
from ddtop.thresholds import chosen

SEEN_S = 0.25
CERTAIN_S, SETTLED_S = 1.5, 2.0
"""A wait that is this much older than its limit has been judged, with one more look to be sure. No
command waits longer than the limit and `SETTLED_S`."""
SUSPECTS_S = 12.0
"""A straggler takes a dozen looks, which takes longer than `SETTLED_S` on a busy host."""
RAS_S = 16.0
"""If a rank is silent, NCCL answers only after ten seconds, and on GPUs the stacks alone show
little."""


JUDGED_NS = 1_500_000_000
"""A look that is this much later than the last question to NCCL includes the answer, and two looks
have confirmed its findings."""
LEAVE_TRIES = 4


async def looks(source: Source, pause_s: float = LOOK_S) -> AsyncGenerator[Look, None]:
    """The look now, and one more after each pause, while `source` is fed. Use it with `aclosing`.

    Raises:
        EngineError: nothing more will come.
    """
    feeding = asyncio.ensure_future(source.run())
    try:
        while True:
            yield source.look()
            done, _ = await asyncio.wait({feeding}, timeout=pause_s)
            for task in done:
                task.result()
    finally:
        # ZeroMQ's own future can swallow a cancellation, so one cancellation may not be enough.
        for _ in range(LEAVE_TRIES):
            feeding.cancel()
            if (await asyncio.wait({feeding}, timeout=LOOK_S))[0]:
                break


async def settle(source: Source, feed: Feed, seconds: float, patience_s: float = 0.0) -> Look:
    """The last look after `seconds`, and longer while a wait is too recent to be judged.

    `source` follows `feed`. `patience_s`: the most time to wait for the first looks at all ranks.
    """
    began, asked_unix_ns = time.monotonic(), 0
    async with aclosing(looks(source, SEEN_S)) as found:
        async for look in found:
            waited_s = time.monotonic() - began
            judged = look.snapshot is not None and feed.judged(
                [
                    rank.comm.outside
                    for rank in look.snapshot.ranks
                    if not rank.gone and rank.pid is not None
                ]
            )
            says_why, suspects = _says_why(look), _suspects(look)
            if feed.asks:
                asked_unix_ns = time.time_ns()
            asks = look.snapshot is None or look.snapshot.time_unix_ns < asked_unix_ns + JUDGED_NS
            limit_s = chosen().longest_wait_s + SETTLED_S
            if suspects and not says_why:
                limit_s = max(limit_s, SUSPECTS_S)
            if asks and not says_why:
                limit_s = max(limit_s, RAS_S)
            late = waited_s >= max(seconds, limit_s) and (judged or waited_s >= patience_s)
            if feed.over or late:
                break
            clear = says_why or not (suspects or asks)
            if waited_s >= seconds and judged and clear and _is_settled(look):
                break
    return look


def _says_why(look: Look) -> bool:
    """Whether a finding explains a wait. Ranks that share a GPU do not: a hanging job may have them
    too."""
    return any(finding.severity == CRITICAL or finding.victims for finding in look.verdict.findings)


def _suspects(look: Look) -> bool:
    """Whether some rank may be a straggler after the looks so far."""
    ranks = look.snapshot.ranks if look.snapshot is not None else ()
    looks = {rank.rank: rank.comm.outside for rank in ranks if not rank.gone}
    return suspects_of(looks, chosen()) is not None


def _is_settled(look: Look) -> bool:
    """Whether the verdict will probably not change in the next seconds."""
    snapshot = look.snapshot
    if snapshot is None:
        return False
    if snapshot.ended is not None or _says_why(look):
        return True
    return not _may_change(snapshot)


def _may_change(snapshot: Snapshot) -> bool:
    if any(rank.state in (State.JOINING, State.STOPPED) for rank in snapshot.ranks):
        return True
    if any(rank.loader.report is not None for rank in snapshot.ranks):
        return True
    now = snapshot.time_unix_ns
    ages_s = [(now - wait.since_unix_ns) / 1e9 for wait in snapshot.peer_waits]
    return any(age_s <= chosen().longest_wait_s + CERTAIN_S for age_s in ages_s)
