"""The looks at a job that is followed: one after the other, until nothing more can come, until the
verdict has settled, or until the ranks that were asked for their stacks have answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import TypeVar

import msgspec

from ddtop import registry
from ddtop.diagnosis.finding import CRITICAL, Verdict
from ddtop.feeds.feed import LocalFeed
from ddtop.feeds.route import Route
from ddtop.follow import engine
from ddtop.follow.engine import (
    LOOK_S,
    Follower,
    NotHeardError,
    UnreachableError,
    left_behind,
    with_what_stood,
)
from ddtop.follow.live import LiveSource
from ddtop.follow.look import Dump, Look, Source
from ddtop.model.facts import Snapshot, State
from ddtop.model.stragglers import suspects_of
from ddtop.thresholds import chosen

SEEN_S, SLICE_S = 0.25, 0.02
BRIEF_S = 30.0
"""History for a short look."""
WORKERS_QUIET_S, WORKERS_S = 0.5, 3.0
"""DataLoader workers answer one by one after their rank. After this time without an answer, no more
are expected."""
CERTAIN_S, SETTLED_S = 1.5, 2.0
"""A wait that is this much older than its limit has been judged, with one more look to be sure. No
command waits longer than the limit and `SETTLED_S`."""
SUSPECTS_S = 12.0
"""A straggler takes a dozen looks, which takes longer than `SETTLED_S` on a busy host."""
TOLD_S = 5.0
"""Whoever waits longer than this for a verdict is told why."""
RAS_S = 16.0
"""If a rank is silent, NCCL answers only after ten seconds, and on GPUs the stacks alone show
little."""


JUDGED_NS = 1_500_000_000
"""A look that is this much later than the last question to NCCL includes the answer, and two looks
have confirmed its findings."""
LEAVE_TRIES = 4
T = TypeVar("T")


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


# -- Whether more can come


REREAD_S = 2.0
"""How often the job file is read."""
OVER_S = 30.0
"""If the file has said for this time that the run is over, no end will be reported any more.
Reading what a relay left may take that long, with a large journal on a file server."""


class RunFile:
    """The job file of a run, which says when the run is over. Times are monotonic, s."""

    def __init__(self, entry: registry.JobEntry) -> None:
        self.entry = entry
        self._read_s = float("-inf")
        self._over_since_s: float | None = None

    def heard(self) -> None:
        """The relay is heard, so the run is not over. Nothing but this renews the heartbeat of a
        relay that is known by its port only."""
        self._over_since_s = None
        if self.entry.sender == registry.ELSEWHERE:
            self.entry = msgspec.structs.replace(self.entry, heartbeat_unix_ns=time.time_ns())

    def over_s(self, now_s: float) -> float | None:
        """How long the file has said that the run is over; None: it is not."""
        if now_s - self._read_s >= REREAD_S:
            self._read_s = now_s
            with suppress(registry.RegistryError):
                again = registry.of_run(self.entry.job, self.entry.run, self.entry.sender)
                self.entry = again or self.entry
            over = self.entry.over(time.time_ns())
            self._over_since_s = (self._over_since_s or now_s) if over else None
        return None if self._over_since_s is None else now_s - self._over_since_s


# -- A job with a relay, which has told the past


class Joined:
    """Such a job, while the block of `joined` runs."""

    def __init__(self, source: LiveSource, looks: AsyncIterator[Look], snapshot: Snapshot) -> None:
        self.source, self._looks, self.snapshot = source, looks, snapshot

    async def watch(self, seconds: float) -> tuple[Snapshot, Verdict]:
        """Snapshot and verdict after so long, or earlier if the job ends; a little later until the
        verdict has settled. If the relay has fallen silent, health is unknown."""
        began = time.monotonic()
        async for look in self._looks:
            late_s = time.monotonic() - began - seconds
            self.snapshot = look.snapshot or self.snapshot
            if self.snapshot.ended or late_s >= (0.0 if look.settled else SETTLED_S):
                break
        if look.contact is None:
            return self.snapshot, look.verdict
        return self.snapshot, replace(look.verdict, unheard=self.source.why_silent())

    async def stacks(
        self,
        ranks: tuple[int, ...] = (),
        how: str = "",
        on_wait: Callable[[Dump], None] = lambda _: None,
    ) -> Dump:
        """Ask for the stacks of these ranks (empty: all), and wait until all have answered, with
        their DataLoader workers, or the time is over. `on_wait` is called meanwhile, a few times a
        second."""
        dump = Dump("", 0, refused=await self.source.ask_stacks(ranks, how))
        async for look in self._looks:
            dump = dump if dump.done else look.dump or dump
            if dump.done:
                break
            on_wait(dump)
        heard, quiet_s, until_s = -1, 0.0, time.monotonic() + WORKERS_S
        async for look in self._looks:
            snapshot, now_s = look.snapshot or self.snapshot, time.monotonic()
            asked = [rank for rank in snapshot.ranks if not ranks or rank.rank in ranks]
            count = sum(len(rank.dump.worker_stacks) for rank in asked)
            if count != heard:
                heard, quiet_s = count, now_s + WORKERS_QUIET_S
            loaders = [rank.loader.report for rank in asked if not rank.gone]
            works = any(loader is not None and loader.workers > 0 for loader in loaders)
            if not works or now_s >= min(until_s, quiet_s):
                break
        return dump


@asynccontextmanager
async def joined(source: LiveSource, join_s: float | None = None) -> AsyncIterator[Joined]:
    """The job of this source, once its relay has told the past and the job's name. `join_s`: how
    long that may take; None: JOIN_S.

    Raises:
        NotHeardError: the relay does not answer. UnreachableError: it refuses.
    """
    until = time.monotonic() + (engine.JOIN_S if join_s is None else join_s)
    async with aclosing(looks(source, SLICE_S)) as found:
        async for look in found:
            known = look.snapshot is not None and look.snapshot.job
            if known or look.contact is not None or time.monotonic() > until:
                break
        follower = source.session.joined
        if follower.refusal is not None:
            relay = follower.job.name or "that port"
            raise UnreachableError(f"the relay of {relay} refuses: {follower.refusal}")
        if look.snapshot is None or not known or look.contact is not None:
            raise NotHeardError(source.why_silent())
        yield Joined(source, found, look.snapshot)


def ask(
    entry: registry.JobEntry,
    work: Callable[[Joined], Awaitable[T]],
    of_left: Callable[[tuple[Snapshot, Verdict], str | None], T],
    controller: bool = False,
) -> T:
    """What `work` makes of the job, or `of_left` of the state that its relay left, and of why the
    relay does not answer; None: it is gone.

    Raises:
        UnreachableError: the relay refuses, or is gone and left nothing.
        RegistryError: the key cannot be read.
    """

    async def run() -> T:
        async with joined(LiveSource(entry, controller, history_s=BRIEF_S)) as job:
            return await work(job)

    if not entry.reachable(time.time_ns()):
        return of_left(left_behind(entry), None)
    registry.secret()
    try:
        return asyncio.run(run())
    except NotHeardError as error:
        return of_left(left_behind(entry, str(error)), str(error))


def look_once(entry: registry.JobEntry, seconds: float) -> tuple[Snapshot, Verdict]:
    """Snapshot and verdict after watching for `seconds`, or from what the relay left if it is gone.
    If it does not answer, and the job is not known to have ended, health is unknown. If it has
    ended, with the findings from before: reading a journal takes a second for 20 MiB.

    Raises:
        UnreachableError, RegistryError: as `ask`.
    """
    snapshot, verdict = ask(entry, lambda job: job.watch(seconds), lambda left, _: left)
    return snapshot, with_what_stood(entry, snapshot, verdict)


def present_of(job: registry.JobEntry | Route, seconds: float = 0.0) -> Follower:
    """What the relay of this job says, without the past: until the job's name is known, and for
    `seconds` after that.

    Raises:
        NotHeardError: nobody answers to this user's key. UnreachableError: it refuses.
        RegistryError: the key cannot be read.
    """

    async def follow() -> Follower:
        async with joined(LiveSource(job, history_s=0.0)) as found:
            if seconds:
                await found.watch(seconds)
            return found.source.session.joined

    registry.secret()
    return asyncio.run(follow())


# -- A job without a relay


async def settle(
    source: Source,
    feed: LocalFeed,
    seconds: float,
    patience_s: float = 0.0,
    on_stand: Callable[[], None] | None = None,
) -> Look:
    """The last look after `seconds`, and longer while a wait is too recent to be judged.

    `source` follows `feed`. `patience_s`: the most time to wait for the first looks at all ranks.
    `on_stand`: also until a job in which no rank moves has been judged; called once, when that
    takes longer. None: a job that stands is not waited for.
    """
    began, asked_unix_ns, told = time.monotonic(), 0, False
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
            stands = on_stand is not None and not says_why and _stands(look)
            if stands:
                limit_s = max(limit_s, chosen().no_progress_s + SETTLED_S)
            if on_stand is not None and stands and not told and waited_s >= max(seconds, TOLD_S):
                told = True
                on_stand()
            late = waited_s >= max(seconds, limit_s) and (judged or waited_s >= patience_s)
            if feed.over or late:
                break
            clear = says_why or not (suspects or asks or stands)
            if waited_s >= seconds and judged and clear and _is_settled(look):
                break
    return look


def _says_why(look: Look) -> bool:
    """Whether a finding explains a wait. Ranks that share a GPU do not: a hanging job may have them
    too."""
    return any(finding.severity == CRITICAL or finding.victims for finding in look.verdict.findings)


def _stands(look: Look) -> bool:
    """Whether no rank has been seen to move, for a time that no rule has judged yet."""
    snapshot = look.snapshot
    if snapshot is None or snapshot.still_since_unix_ns is None:
        return False
    still_s = (snapshot.time_unix_ns - snapshot.still_since_unix_ns) / 1e9
    return still_s <= chosen().no_progress_s + CERTAIN_S


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
    if any(rank.state in (State.JOINING, State.STOPPED) for rank in snapshot.ranks):
        return False
    if any(rank.loader.report is not None for rank in snapshot.ranks):
        return False
    now = snapshot.time_unix_ns
    ages_s = [(now - wait.since_unix_ns) / 1e9 for wait in snapshot.peer_waits]
    return all(age_s > chosen().longest_wait_s + CERTAIN_S for age_s in ages_s)
