"""Follows all live jobs at once, on one thread, and looks at each of them every second.

The dashboard follows one job with an engine on a thread of its own. A list of 200 jobs cannot have
200 threads. Here the engines of all jobs share one thread, one ZeroMQ context and one budget for
looks, and only the result of `digest` is kept from each look.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Generic, TypeVar, cast

from ddtop import registry
from ddtop.diagnosis.finding import Verdict
from ddtop.feeds.route import Bounds
from ddtop.follow.engine import Engine, expect_ranks, short_turns, why_silent
from ddtop.follow.session import JobSession
from ddtop.link.viewer_side import ViewerLinks
from ddtop.model.facts import Snapshot
from ddtop.policy import Policy
from ddtop.wire.records import LEAF, is_loopback

READ_S = 2.0
"""How often the list of jobs is read."""
LOOK_S, LOOK_MOST_S = 1.0, 2.5
"""Pauses between two looks at one job. The longer one keeps what is shown less than 3 s old."""
SECOND_LOOK_S = 0.55
"""A finding needs two looks half a second apart. The second follows as soon as it counts."""
LOOK_SHARE, JOB_SHARE = 0.4, 0.15
"""Of one core, for looks at all jobs together, and at one job."""
TURN_S = 0.1
"""Frames are applied in batches, because waking up for each of them would cost more than the
frame."""
AGAIN_S = 2.0
"""Pause before a relay that does not answer is connected to again."""
ENDED_KEPT_S = 120.0
"""How long an ended job is kept, so that a collector that reads every minute sees its end."""

T = TypeVar("T")
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """A job to follow: its entry, and the secret of the user that it belongs to."""

    entry: registry.JobEntry
    secret: bytes

    @property
    def key(self) -> Key:
        """What identifies it: name, run and host."""
        return self.entry.job, self.entry.run, self.entry.sender


@dataclass(frozen=True, slots=True)
class FleetJob(Generic[T]):
    """One job, as it is known now.

    `value`: the result of `digest` for the last look; None before the first one. `contact`: None
    while its relay reports, else a sentence that says why not. `age_s`: the age of `value`,
    seconds. `looks`: the number of looks. `settled`: there were enough looks for a first verdict;
    the first looks at a job that hangs find nothing yet.
    """

    entry: registry.JobEntry
    value: T | None
    contact: str | None
    age_s: float
    looks: int
    settled: bool = False


class _Followed(Generic[T]):
    """What the thread keeps of one job."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.session: JobSession | None = None
        self.again = self.cost_s = 0.0
        # Here `age_s` is the moment of the look.
        self.job: FleetJob[T] = FleetJob(target.entry, None, None, time.monotonic(), 0)

    def note(self, **known: Any) -> None:
        """Change what is known of the job."""
        self.job = replace(self.job, **known)


class Fleet(Generic[T]):
    """Follows the jobs that `read` returns, while the block of its `with` runs.

    `jobs` and `wait` are for the caller's thread. `digest` is called on the
    thread of the fleet, with each look.
    """

    def __init__(
        self,
        read: Callable[[], Iterable[Target]],
        digest: Callable[[registry.JobEntry, Snapshot, Verdict, T | None], T],
    ) -> None:
        """`read`: returns the jobs to follow; it is called every two seconds on a separate thread.
        If it raises `RegistryError`, the jobs stay as they are. `digest` also gets its previous
        result.
        """
        self._read, self._digest = read, digest
        self._targets: list[Target] | None = None
        self._followed: dict[Key, _Followed[T]] = {}
        self._shown: tuple[FleetJob[T], ...] = ()
        self._links: ViewerLinks | None = None
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._total_s = 0.0
        self._threads: list[threading.Thread] = []
        self.failure: BaseException | None = None
        self._turns = contextlib.ExitStack()

    def __enter__(self) -> Fleet[T]:
        """Start following; once. Like the engine, it changes the settings of the GIL and the
        garbage collector so that other threads wait as little as possible.
        """
        self._turns.enter_context(short_turns())
        for run, name in (
            (self._read_targets, "ddtop-jobs"),
            (self._follow_targets, "ddtop-fleet"),
        ):
            thread = threading.Thread(target=run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it, without waiting for a folder that does not answer."""
        self._stop.set()
        for thread in self._threads[1:]:
            thread.join()
        self._turns.close()

    def jobs(self) -> tuple[FleetJob[T], ...]:
        """All jobs, in the order in which `read` named them."""
        if self.failure is not None:
            raise RuntimeError("the fleet has failed") from self.failure
        now = time.monotonic()
        # `age_s` was the moment of the look; here it becomes an age.
        return tuple(replace(job, age_s=max(now - job.age_s, 0.0)) for job in self._shown)

    def wait(self, seconds: float) -> tuple[FleetJob[T], ...]:
        """The jobs, as soon as each has a settled verdict or is known to be silent; at the latest
        after this many seconds.
        """

        def known() -> bool:
            return self.failure is not None or (
                self._targets is not None
                and len(self._shown) == len(self._targets)
                and all(job.settled or job.contact is not None for job in self._shown)
            )

        with self._changed:
            self._changed.wait_for(known, seconds)
        return self.jobs()

    # -- the thread that reads

    def _read_targets(self) -> None:
        while not self._stop.is_set():
            try:
                self._targets = list(self._read())
            except registry.RegistryError:
                self._targets = self._targets or []
            self._stop.wait(READ_S)

    # -- the thread that follows

    def _follow_targets(self) -> None:
        self._links = ViewerLinks()
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                self._adopt()
                self._take_in()
                self._keep_contact()
                self._look()
                self._show()
                self._stop.wait(max(TURN_S - (time.monotonic() - began), 0.005))
        except BaseException as error:  # noqa: BLE001 - whatever it is, `jobs` raises it
            self.failure = error
            with self._changed:
                self._changed.notify_all()
        finally:
            self._links.close()

    def _adopt(self) -> None:
        """Begin to follow new jobs, and drop those that have ended."""
        targets = self._targets
        if targets is None:
            return
        kept: dict[Key, _Followed[T]] = {}
        for target in targets:
            followed = self._followed.pop(target.key, None) or _Followed(target)
            if followed.target.entry.endpoint() != target.entry.endpoint():
                self._disconnect(followed)
            followed.target = target
            followed.note(entry=target.entry)
            kept[target.key] = followed
        for gone in self._followed.values():
            self._disconnect(gone)
        self._followed = kept

    def _disconnect(self, followed: _Followed[T]) -> None:
        if followed.session is not None and self._links is not None:
            self._links.close_one(followed.target.key)
        followed.session, followed.again = None, 0.0
        followed.note(settled=False)

    def _take_in(self) -> None:
        """Move all frames from libzmq into the bounded queues of the engines."""
        assert self._links is not None
        until, came = time.monotonic() + LOOK_S, True
        while came and not self._stop.is_set() and time.monotonic() < until:
            now, came = time.monotonic(), False
            for name, data in self._links.receive(0.0):
                came, followed = True, self._followed.get(cast(Key, name))
                if followed is not None and followed.session is not None:
                    followed.session.take(data, now)

    def _keep_contact(self) -> None:
        now = time.monotonic()
        for followed in self._followed.values():
            session, entry = followed.session, followed.job.entry
            if session is None:
                if now >= followed.again:
                    self._connect(followed, now)
                continue
            ping = session.turn(now)
            if session.contact is not None:
                followed.note(contact=f"the relay of {entry.job} refuses: {session.contact}")
            elif session.silent_s(now) > session.joined.policy.relay_silent_s:
                followed.note(contact=why_silent(entry))
            elif session.joined.live:
                followed.note(contact=None)
            if session.contact is not None or session.is_over(now):
                self._disconnect(followed)
                followed.again = now + (0.0 if session.joined.rejoin else AGAIN_S)
            elif ping is not None and self._links is not None:
                self._links.send(followed.target.key, ping)

    def _connect(self, followed: _Followed[T], now: float) -> None:
        entry = followed.target.entry
        followed.again = now + AGAIN_S
        why = unreachable_reason(entry)
        if why is not None or self._links is None:
            followed.note(contact=why)
            return
        try:
            self._links.open(followed.target.key, *entry.endpoint(), followed.target.secret)
        except OSError as error:
            followed.note(contact=f"no connection to {entry.job}: {error.strerror}")
            return
        period, untaped = partial(self._period_s, followed), Bounds(tape_bytes=0)
        engine = Engine(entry.job, bounds=untaped, period=period)
        followed.session = JobSession(engine, 0.0, now)
        self._links.send(followed.target.key, followed.session.opened(now))
        followed.session.joined.compares = False

    def _period_s(self, followed: _Followed[T], cost_s: float, wavers: bool) -> float:
        """As `period_of_looks_s`, beside the other jobs."""
        cost_s = max(cost_s, followed.cost_s)
        usual_s = max(LOOK_S, cost_s / JOB_SHARE, self._total_s / LOOK_SHARE)
        return min(max(SECOND_LOOK_S, 2 * cost_s) if wavers else usual_s, LOOK_MOST_S)

    def _look(self) -> None:
        self._total_s = sum(followed.cost_s for followed in self._followed.values())
        for followed in self._followed.values():
            if followed.session is None or self._stop.is_set():
                continue
            engine, job, worked = followed.session.engine, followed.job, time.thread_time()
            engine.turn()
            seen = engine.seen
            if seen is None or (snapshot := seen.look.snapshot) is None:
                continue
            followed.note(
                value=self._digest(job.entry, snapshot, seen.look.verdict, job.value),
                age_s=time.monotonic(),
                looks=job.looks + 1,
                settled=job.settled or seen.follower.settled,
            )
            del seen, snapshot
            engine.forget()
            followed.cost_s = time.thread_time() - worked
        sessions = (one.session for one in self._followed.values() if one.session is not None)
        expect_ranks(sum(len(session.joined.job.ranks) for session in sessions))

    def _show(self) -> None:
        self._shown = tuple(followed.job for followed in self._followed.values())
        with self._changed:
            self._changed.notify_all()


def unreachable_reason(entry: registry.JobEntry) -> str | None:
    """Why the relay of this entry cannot be reached from here, one sentence; None if it can."""
    if entry.sender == registry.ELSEWHERE:
        # It is known only by its port, which was asked.
        return None
    if not entry.reachable(time.time_ns()):
        return why_silent(entry)
    address, _ = entry.endpoint()
    if not entry.is_here and is_loopback(address) and entry.host != os.uname().nodename:
        return f"its relay listens on {entry.host} only: ddtop status --ssh {entry.host}"
    return None


def own_jobs() -> list[Target]:
    """The jobs of this user that live, or that ended a moment ago. A leaf is a part of its hub.

    Raises:
        RegistryError: the state folder or the key cannot be read.
    """
    now = time.time_ns()
    entries = registry.without_parts(registry.read_entries(), now)
    wanted = [entry for entry in entries if _is_wanted(entry, now)]
    # Without a job, do not create a key in an empty state folder.
    secret = registry.secret() if wanted else b""
    return [Target(entry, secret) for entry in wanted]


def _is_wanted(entry: registry.JobEntry, now_unix_ns: int) -> bool:
    if entry.role == LEAF and entry.part_of and entry.ended_unix_ns is not None:
        return False
    ended = entry.ended_unix_ns
    if ended is not None:
        young = now_unix_ns - ended < ENDED_KEPT_S * 1e9
        return young and entry.reachable(now_unix_ns)
    return entry.live(now_unix_ns)


# -- What a viewer adds up over looks at one job: time in iterations, and time lost to stragglers
#
# Pure: each look gives the next tally. Times are of the snapshots, ns on the hub's clock.


STEPS_KEPT = 31
"""The usual step time is the median of this many steps."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What was added up since `began_unix_ns`.

    `in_steps_s`: time in iterations of the usual length. `lost_s`: time that ranks waited for
    stragglers. `moved_unix_ns`: when `iteration` moved last.
    """

    policy: Policy
    run: tuple[str, int]
    began_unix_ns: int
    looked_unix_ns: int
    iteration: int | None = None
    moved_unix_ns: int | None = None
    steps_s: tuple[float, ...] = ()
    in_steps_s: float = 0.0
    lost_s: float = 0.0

    @property
    def usual_s(self) -> float | None:
        """The usual time of an iteration."""
        return median(self.steps_s) if self.steps_s else None

    @property
    def goodput_ratio(self) -> float | None:
        """Time in iterations over wall time; None before two iterations were seen to end."""
        if not self.steps_s or self.moved_unix_ns is None:
            return None
        until, usual_s = self.looked_unix_ns, self.usual_s or 0.0
        # An iteration counts when it has ended.
        if until - self.moved_unix_ns < self.policy.goodput_step_factor * usual_s * 1e9:
            until = self.moved_unix_ns
        wall_s = (until - self.began_unix_ns) / 1e9
        return min(self.in_steps_s / wall_s, 1.0) if wall_s > 0 else None


def tally_of(snapshot: Snapshot, before: Tally | None, policy: Policy) -> Tally:
    """The tally after this look. A new run of the job begins a new one; a restart goes on."""
    now = snapshot.time_unix_ns
    run = (snapshot.run, snapshot.attempt)
    if before is None or before.run[0] != run[0]:
        return Tally(policy, run, now, now, snapshot.iteration)
    elapsed_s = max(now - before.looked_unix_ns, 0) / 1e9
    tally = replace(before, run=run, looked_unix_ns=max(now, before.looked_unix_ns))
    if snapshot.ended is not None:
        # The time after the end does not belong to the job.
        return before
    if elapsed_s <= policy.goodput_gap_s and snapshot.still_since_unix_ns is None:
        tally = replace(tally, lost_s=before.lost_s + elapsed_s * _lost_ratio(snapshot))
    return _with_steps(tally, snapshot, before)


def _with_steps(tally: Tally, snapshot: Snapshot, before: Tally) -> Tally:
    now, iteration = snapshot.time_unix_ns, snapshot.iteration
    if iteration is None or iteration == before.iteration:
        return tally
    if before.iteration is None or iteration < before.iteration or tally.run != before.run:
        # The first count of this attempt: how long these took is not known.
        return replace(tally, iteration=iteration, moved_unix_ns=before.moved_unix_ns)
    moved_ns = before.moved_unix_ns
    if moved_ns is None:
        # Goodput begins where an iteration ended.
        return replace(tally, iteration=iteration, moved_unix_ns=now, began_unix_ns=now)
    known = [rank.progress.step_ms / 1000 for rank in snapshot.ranks if rank.progress.step_ms]
    steps_s = (*before.steps_s, median(known))[-STEPS_KEPT:] if known else before.steps_s
    passed_s, done = (now - moved_ns) / 1e9, iteration - before.iteration
    usual_s = median(steps_s) if steps_s else passed_s / done
    return replace(
        tally,
        iteration=iteration,
        moved_unix_ns=now,
        steps_s=steps_s,
        in_steps_s=before.in_steps_s + min(done * usual_s, passed_s),
    )


def _lost_ratio(snapshot: Snapshot) -> float:
    """Share of the time in which ranks wait for a straggler, now; the worst of all groups."""
    return max((rank.late.share_ratio for rank in snapshot.ranks if rank.late), default=0.0)
