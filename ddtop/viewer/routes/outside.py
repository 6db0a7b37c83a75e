"""The dashboard's source for processes that were started without ddtop: /proc once a second, places
by py-spy.

Nobody inside counts collectives, so who waits for whom is not known, and the calm sentence says so
instead of "ok". What can be told from outside is told by the same rules as ever: a stopped rank, a
rank that is gone.
"""

from __future__ import annotations

import asyncio
import select
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from ddtop import registry
from ddtop.agent.environment import redacted_argv, redacted_environment
from ddtop.diagnosis.finding import Verdict
from ddtop.diagnosis.judge import Judge
from ddtop.model.job import Job
from ddtop.model.stacks.frames import Owner, owner_of
from ddtop.model.state.facts import Snapshot
from ddtop.relay.host.usage import HostProbe
from ddtop.relay.processes import pyspy, sample
from ddtop.relay.processes.exits import is_gone
from ddtop.relay.processes.pyspy import PySpy
from ddtop.viewer.routes.outside_jobs import Target
from ddtop.viewer.source import Dump, Look
from ddtop.viewer.thresholds import chosen
from ddtop.wire.frame_kinds import word_of
from ddtop.wire.frames import SCHEMA_MAJOR, SCHEMA_MINOR, Envelope
from ddtop.wire.records import AnyRecord, Hello, Place, RankState, Stacks
from ddtop.wire.stacks import StackFrame, ThreadStack
from ddtop.words.ranks import rank_list

LOOK_S, PLACE_S, POLL_S = 1.0, 2.0, 0.05
PLACE_SHARE = 5
"""After a look by py-spy five times its length nothing: it costs a fifth of a core at most, also
with many processes."""
DEADLINE_S, PLACE_DEADLINE_S = 15.0, 5.0
"""For a dump that somebody asked for, and for a place."""
PY_SPY = "py-spy"
PLACE_OLD_S = 10.0
"""A place that nobody has seen again for so long is not shown."""
REFUSED_S = 30.0
"""So long a process that could not be read is not tried again."""
SNAPSHOT_S = 0.25
JUDGED_BY = "started without DDTOP=1: stacks only"


@dataclass
class _Watched:
    """One rank. `seen`: the main thread's frames and how often it had gone to sleep, when it was
    last looked at, and since when both are the same."""

    target: Target
    process: sample.Watched
    place: Place | None = None
    placed_mono_s: float = 0.0
    tried_mono_s: float = -PLACE_S
    refused: str | None = None
    switches: int | None = None
    seen: tuple[object, int | None] | None = None
    since_unix_ns: int = 0
    exits_order: int | None = None


@dataclass(frozen=True)
class _Running:
    """The py-spy at work. `request` None: it looks for a place."""

    spy: PySpy
    target: Target
    rank: int
    request: str | None
    began_mono_s: float
    deadline_s: float


class OutsideSource:
    """Implements `viewer.source.Source`. Each process is looked at without pausing it; only
    `ask_stacks` pauses, for milliseconds."""

    def __init__(self, targets: Sequence[Target], name: str, notes: Sequence[str] = ()) -> None:
        self._targets = [one for one in targets if not one.worker]
        self._workers = [one for one in targets if one.worker]
        self._job = Job(name, chosen())
        self._judge = Judge(chosen())
        self._probe = HostProbe()
        self._sender = registry.host_identity()
        self._ranks: dict[int, _Watched] = {}
        self._running: _Running | None = None
        self._rest_until_s = 0.0
        self._asked: deque[tuple[Target, str]] = deque()
        self._dump: Dump | None = None
        self._shown: tuple[Snapshot, Verdict] | None = None
        self._shown_mono_s = 0.0
        self._exits = 0
        self._greet()
        # Behind the Hellos: the job is new until then.
        self._job.notes.extend(notes)
        self.observe()

    def look(self) -> Look:
        """What is true now."""
        now = time.monotonic()
        if self._shown is None or now - self._shown_mono_s >= SNAPSHOT_S:
            snapshot, found = self._judge.look(self._job.snapshot(time.time_ns()))
            self._shown, self._shown_mono_s = (snapshot, self._said(snapshot, found)), now
        return Look(*self._shown, dump=self._dump)

    def set_interval(self, seconds: float) -> None:
        """Looks are cheap, so nothing has to change."""

    def travel(self, at_unix_ns: int | None) -> None:
        """Nothing is kept to travel in."""

    async def ask_stacks(self, ranks: tuple[int, ...]) -> str | None:
        """A real dump of these ranks (empty: all) and of their workers that were named; it pauses
        each for milliseconds."""
        if pyspy.find() is None:
            return pyspy.NOT_INSTALLED
        living = [one.target for one in self._ranks.values() if one.exits_order is None]
        wanted = [one for one in (*living, *self._workers) if not ranks or one.rank in ranks]
        expected = sum(not one.worker for one in wanted)
        if not expected:
            return "these ranks are gone"
        now = time.time_ns()
        request = f"outside-{now}"
        self._asked = deque((one, request) for one in wanted)
        self._dump = Dump(request, now, expected)
        return None

    async def send_signal(self, rank: int, number: int) -> str:
        """Send it through the pidfd, which cannot name another process that got the same number."""
        watched = self._ranks.get(rank)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        if watched is None or watched.exits_order is not None:
            return f"no signal was sent: rank {rank} is gone"
        if watched.process.pidfd is None:
            return (
                "no signal was sent: no pidfd here, it could reach another process; by hand: kill"
                f" -{number} {watched.target.pid}"
            )
        try:
            signal.pidfd_send_signal(watched.process.pidfd, number)
        except OSError as error:
            return f"no signal was sent: {error.strerror}"
        return f"{name} sent to rank {rank} (pid {watched.target.pid})"

    async def run(self) -> None:
        """Look at the processes until cancelled."""
        next_look_s = 0.0
        try:
            while True:
                now = time.monotonic()
                if now >= next_look_s:
                    self.observe()
                    next_look_s = now + LOOK_S
                self._step(now)
                await asyncio.sleep(POLL_S)
        finally:
            self.close()

    def close(self) -> None:
        """End what is at work, let go of the processes."""
        if self._running is not None:
            self._running.spy.kill()
            self._running = None
        for one in self._ranks.values():
            if one.exits_order is None:
                one.exits_order = -1
                sample.forget(one.process)

    # -- records

    def observe(self) -> None:
        """One look at all processes through /proc."""
        self._note_exits()
        now_s, found = time.monotonic(), []
        for one in self._ranks.values():
            if one.exits_order is not None:
                continue
            state = sample.look(one.process, time.monotonic_ns())
            if state is not None:
                one.switches = state.switches
                # Without an agent there is no silence of one.
                found.append(msgspec.structs.replace(state, agent_age_ms=None))
            if one.place is not None and now_s - one.placed_mono_s > PLACE_OLD_S:
                one.place = None
            self._take(RankState("running", place=one.place), one.target)
        self._take(self._probe.look(tuple(found)))

    def take_stacks(self, stacks: Stacks, target: Target) -> None:
        """Keep the stacks of a rank, or of its worker."""
        watched = self._ranks.get(target.rank)
        if watched is not None:
            self._take(msgspec.structs.replace(stacks, of_rank=target.rank), watched.target)

    def _greet(self) -> None:
        world = max((one.rank for one in self._targets), default=-1) + 1
        for target in self._targets:
            hello = Hello(
                job=self._job.name,
                run="outside",
                attempt=0,
                rank=target.rank,
                local_rank=target.local_rank,
                world_size=world,
                host=self._probe.host,
                pid=target.pid,
                start_ticks=target.start_ticks,
                claim="guess" if target.guessed else "env",
                script=target.script,
                argv=redacted_argv(list(target.argv)),
                environment=redacted_environment(dict(target.environment)),
                started_unix_ns=target.started_unix_ns,
            )
            watched = sample.watch(hello, time.monotonic_ns())
            if watched is not None:
                self._ranks[target.rank] = _Watched(target, watched)
                self._take(hello, target)

    def _take(self, record: AnyRecord, of: Target | None = None) -> None:
        rank, pid = (of.rank, of.pid) if of is not None else (None, None)
        at = time.time_ns(), time.monotonic_ns()
        kind = type(record).__name__
        envelope = Envelope(
            SCHEMA_MAJOR,
            SCHEMA_MINOR,
            kind,
            self._sender,
            0,
            rank,
            pid,
            at[0],
            at[1],
            None,
            msgspec.Raw(b""),
        )
        self._job.apply(envelope, record)

    def _note_exits(self) -> None:
        poll = select.poll()
        living = [one for one in self._ranks.values() if one.exits_order is None]
        held = {one.process.pidfd: one for one in living if one.process.pidfd is not None}
        for pidfd in held:
            poll.register(pidfd, select.POLLIN)
        ended = [held[pidfd] for pidfd, _ in poll.poll(0)]
        for one in living:
            process = one.process
            if process.pidfd is None and is_gone(process.hello.pid, process.hello.start_ticks):
                ended.append(one)
        for one in ended:
            one.exits_order, self._exits = self._exits, self._exits + 1
            self._take(sample.last_words(one.process, one.exits_order, time.time_ns()), one.target)
            sample.forget(one.process)

    # -- py-spy

    def _step(self, now_s: float) -> None:
        """Go on with the py-spy at work, or begin the next."""
        running = self._running
        if running is not None:
            if running.spy.poll() is None and now_s - running.began_mono_s < running.deadline_s:
                return
            running.spy.kill()
            self._running = None
            took_s = now_s - running.began_mono_s
            self._rest_until_s = now_s + PLACE_SHARE * took_s
            self._finish(running, now_s)
        if self._asked:
            target, request = self._asked.popleft()
            self._begin(target, request, now_s)
        elif now_s >= self._rest_until_s and (due := self._due(now_s)) is not None:
            due.tried_mono_s = now_s
            due.seen = due.seen if due.seen is not None and due.seen[1] == due.switches else None
            self._begin(due.target, None, now_s)

    def _begin(self, target: Target, request: str | None, now_s: float) -> None:
        spy = PySpy(target.pid, nonblocking=request is None)
        deadline_s = PLACE_DEADLINE_S if request is None else DEADLINE_S
        self._running = _Running(spy, target, target.rank, request, now_s, deadline_s)

    def _due(self, now_s: float) -> _Watched | None:
        waiting = [
            one
            for one in self._ranks.values()
            if one.exits_order is None
            and now_s - one.tried_mono_s >= (REFUSED_S if one.refused else PLACE_S)
        ]
        return min(waiting, key=lambda one: one.tried_mono_s, default=None)

    def _finish(self, running: _Running, now_s: float) -> None:
        watched = self._ranks.get(running.rank)
        if watched is None:
            return
        if running.request is not None:
            stacks = stacks_from(running.spy, running.target, running.request, running.rank)
            self.take_stacks(stacks, running.target)
            if (
                self._dump is not None
                and self._dump.request == running.request
                and not running.target.worker
            ):
                self._dump = replace(self._dump, answered=self._dump.answered + 1)
            self._shown = None
            return
        result = running.spy.poll()
        if isinstance(result, tuple):
            watched.refused = None
            self._place(watched, result, now_s)
        else:
            watched.refused = result

    def _place(self, watched: _Watched, threads: tuple[ThreadStack, ...], now_s: float) -> None:
        """Where its main thread is; `since` only where that thread has not run in between, or it
        could have left and come back."""
        main = next((thread for thread in threads if thread.main), None)
        frames = main.frames if main is not None else ()
        at = next(
            (number for number, frame in enumerate(frames) if owner_of(frame) is Owner.USER), None
        )
        seen = (frames, watched.switches)
        same = watched.switches is not None and watched.seen == seen
        if not same:
            watched.since_unix_ns = time.time_ns()
        watched.seen = seen
        watched.placed_mono_s = now_s
        if at is None:
            watched.place = None
            return
        watched.place = _place_of(frames, at, watched.since_unix_ns if same else None)

    # -- what is said

    def _said(self, snapshot: Snapshot, verdict: Verdict) -> Verdict:
        """The verdict without what nobody outside can know."""
        if snapshot.ended is not None:
            return replace(verdict, calm=f"ended: {snapshot.ended.reason}")
        numbers = [one.rank for one in self._targets]
        words = [JUDGED_BY, self._places()]
        if len(numbers) < snapshot.world_size:
            words.append(f"only {rank_list(numbers)} watched")
        health = verdict.health if verdict.findings else "unknown"
        return replace(verdict, health=health, calm="; ".join(words))

    def _places(self) -> str:
        if pyspy.find() is None:
            return f"no places: {pyspy.NOT_INSTALLED}"
        refused = next(
            (
                one.refused
                for one in self._ranks.values()
                if one.refused and one.exits_order is None
            ),
            None,
        )
        return f"places from py-spy every {PLACE_S:.0f} s" + (
            f", not all: {refused}" if refused else ""
        )


def _place_of(frames: Sequence[StackFrame], at: int, since_unix_ns: int | None) -> Place:
    """The user's frame number `at`, and what the library frame nearest to it that says something is
    there for."""
    frame = frames[at]
    for inner in reversed(frames[:at]):
        function = inner.function.rpartition(".")[2]
        word = word_of(inner.file, function)
        if word is not None:
            return Place(frame.function, frame.file, frame.line, word, since_unix_ns, function)
    callee = frames[0].function if at else None
    return Place(frame.function, frame.file, frame.line, None, since_unix_ns, callee)


def stacks_from(spy: PySpy, target: Target, request: str, rank: int | None) -> Stacks:
    """A finished py-spy as a record; `why` of one with stacks says how they are less than what was
    asked for."""
    result = spy.poll()
    taken = time.time_ns()
    if isinstance(result, tuple):
        return Stacks(request, rank, target.pid, taken, PY_SPY, result, spy.note, target.worker)
    return Stacks(
        request, rank, target.pid, taken, why=result or "it did not answer", worker=target.worker
    )
