"""`ddtop --sim N`: the dashboard on a simulated job, over the same way that the facts of a real one take.

What stands in for the relay is a link: it gives the frames that are due, and answers what a viewer asks.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ddtop.cli.jobs import USAGE, CommandError
from ddtop.cli.ranks import parse_ranks
from ddtop.diagnosis.finding import Verdict
from ddtop.model.state.facts import Snapshot
from ddtop.sim.fleet import WORLD_MAX
from ddtop.sim.incidents import SCENARIOS, TOUR
from ddtop.sim.job import SLOT_NS, SimulatedJob
from ddtop.viewer.follower import Follower
from ddtop.viewer.live import LiveSource
from ddtop.viewer.routes.relay import TrustedWay
from ddtop.viewer.source import Look
from ddtop.wire import frames
from ddtop.wire.records import AnyRecord, Command, Reply

if TYPE_CHECKING:
    from ddtop.viewer.routes.relay import Link

NOTE = "simulated{slowly}: ddtop --sim makes these ranks up ({scenario}, seed {seed})"
NO_SIGNALS = "these ranks are simulated: there is no process to send a signal to"
LARGEST = 12_000
"""Ranks of which every one can be made up and taken in once a second by one process; the time of larger jobs goes more slowly."""
REPORTS_PER_S = 6_000
"""So many of their ranks report in a second."""
MOST_NS = 500_000_000
"""Of the time since it was last looked at it goes on at most so far: it waits for who cannot keep up, or was stopped."""
HISTORY_FRAMES = 30_000
"""History that a viewer is given when it joins, so that shares and rates are there at once: a second of work at most."""
HISTORY_S = 12.0
AT_ONCE = 200
"""Frames given before others may run: keys are answered while a large job is made up."""
SHOWN_S = 25.0
"""Without a terminal the moment is shown that comes so long after something has begun to go wrong: by then it stands."""
LOOK_S, WATCHED_S = 0.5, 12.0


class JobClock:
    """Unix ns of a simulated job; its time goes at this pace, and while somebody listens: who does so calls it.

    `now_unix_ns` is what it said last, for everybody else.
    """

    def __init__(self, pace: float = 1.0, clock: Callable[[], int] = time.time_ns) -> None:
        self.pace, self._clock = pace, clock
        self._seen = self.now_unix_ns = clock()

    def __call__(self) -> int:
        before, self._seen = self._seen, self._clock()
        self.now_unix_ns += round(min(max(self._seen - before, 0), MOST_NS) * self.pace)
        return self.now_unix_ns


class SimLink:
    """A link to a relay that is not there. `clock` gives unix ns."""

    def __init__(self, job: SimulatedJob, clock: Callable[[], int]) -> None:
        self._job, self._clock = job, clock
        self._told_unix_ns: int | None = None
        # Not in `receive`: who listens may stop in the midst of it and go on later.
        self._waiting: deque[Iterator[bytes]] = deque()
        self._asked = asyncio.Event()
        self._given = 0

    async def send(self, frame: bytes) -> None:
        """Take a viewer's command."""
        record = frames.open_record(frames.open_envelope(frame))
        if isinstance(record, Command):
            self._waiting.append(self._answer(record))
            self._asked.set()

    async def receive(self, seconds: float) -> AsyncIterator[bytes]:
        """What was asked for, and what becomes due in the next `seconds`."""
        until = time.monotonic() + seconds
        while True:
            self._asked.clear()
            self._make_due()
            while (data := self._next()) is not None:
                yield data
                self._given += 1
                if self._given % AT_ONCE == 0:
                    await asyncio.sleep(0)
            left = until - time.monotonic()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._asked.wait(), min(left, SLOT_NS / 1e9))
            except asyncio.TimeoutError:
                continue

    def close(self) -> None:
        """Say nothing more."""
        self._waiting.clear()
        self._told_unix_ns = None

    def _next(self) -> bytes | None:
        while self._waiting:
            data = next(self._waiting[0], None)
            if data is not None:
                return data
            self._waiting.popleft()
        return None

    def _make_due(self) -> None:
        """Put what has become due since the last time behind what waits."""
        told, now = self._told_unix_ns, self._clock()
        if told is None or self._waiting:
            return
        self._told_unix_ns = now
        self._waiting.append(self._job.frames(told, now))

    def _answer(self, command: Command) -> Iterator[bytes]:
        now = self._clock()
        if command.name == "join":
            # At least a second of it, so that everybody has reported.
            most_s = max(HISTORY_FRAMES / self._job.fleet.world_size, 1.0)
            history_s = min(command.history_s, HISTORY_S, most_s)
            yield self._say(Reply("joined"))
            yield from self._job.joining(now, history_s)
            self._told_unix_ns = now
            yield self._say(Reply("live"))
        elif command.name == "stacks":
            request, text = (*command.arguments, "", "")[:2]
            # A list that people can type has been checked long before.
            ranks = parse_ranks(text) if text else ()
            found = list(self._job.stacks(now, request, ranks))
            asked = {frames.open_envelope(data).rank for data in found}
            yield self._say(Reply("stacks", count=len(asked), text=request))
            yield from found
        elif command.name == "signal":
            yield self._say(Reply("signal", ok=False, text=NO_SIGNALS))

    def _say(self, record: AnyRecord) -> bytes:
        now = self._clock()
        return frames.seal(record, sender=self._job.fleet.sender(0), unix_ns=now, mono_ns=now)


class SimWay(TrustedWay):
    """The way to a simulated job; its script goes on while nobody is connected."""

    def __init__(self, job: SimulatedJob, clock: Callable[[], int]) -> None:
        self._job, self._clock = job, clock

    @property
    def job(self) -> str:
        """`sim-4096`."""
        return self._job.name

    async def connect(self, controller: bool) -> Link:
        """A link to it."""
        del controller
        return SimLink(self._job, self._clock)

    async def left(self) -> tuple[Snapshot, Verdict] | None:
        """Nothing: it does not end before its viewer."""
        return None


class SimSource(LiveSource):
    """What a viewer of a real job would show, and that it is none."""

    def __init__(self, job: SimulatedJob, note: str, clock: JobClock) -> None:
        super().__init__(SimWay(job, clock), controller=True, clock=lambda: clock.now_unix_ns)
        self._note = note

    def look(self) -> Look:
        """As of a real job, with a note."""
        look = super().look()
        if look.snapshot is None:
            return look
        return replace(look, snapshot=_marked(look.snapshot, self._note))


def _marked(snapshot: Snapshot, note: str) -> Snapshot:
    return replace(snapshot, notes=(note, *snapshot.notes))


def simulate(text: str, scenario: str | None, seed: int, readonly: bool = False) -> None:
    """The dashboard on a simulated job of so many ranks; a moment of it as text where there is no terminal.

    Raises:
        CommandError: 2, no such job can be made up.
    """
    from ddtop.cli.looking import plain_terminal

    world_size, name = ranks_of(text), scenario or TOUR
    if name not in SCENARIOS:
        raise CommandError(f"ddtop: there is no scenario {name!r}; there are {', '.join(SCENARIOS)}", USAGE)
    why = plain_terminal()
    if why is not None:
        print_moment(world_size, name, seed, why)
        return
    from ddtop.ui.app import DdtopApp
    from ddtop.ui.settings import kept

    clock = JobClock(1.0 if world_size <= LARGEST else REPORTS_PER_S / world_size)
    slowly = f" at {clock.pace:.0%} of its speed" if clock.pace < 1 else ""
    job = SimulatedJob(world_size, seed, SCENARIOS[name], began_unix_ns=clock())
    note = NOTE.format(slowly=slowly, scenario=name, seed=seed)
    DdtopApp(SimSource(job, note, clock), job.name, readonly=readonly, kept=kept()).run()


def ranks_of(text: str) -> int:
    """How many ranks are meant.

    Raises:
        CommandError: 2, not a number of ranks that can be simulated.
    """
    cleaned = text.replace(",", "").replace("_", "")
    if cleaned.isascii() and cleaned.isdigit() and len(cleaned) < 10 and 1 <= int(cleaned) <= WORLD_MAX:
        return int(cleaned)
    raise CommandError(f"ddtop: --sim takes a number of ranks from 1 to {WORLD_MAX:,}, not {text[:40]!r}", USAGE)


def print_moment(world_size: int, name: str, seed: int, why: str) -> None:
    """Status table and verdict at the moment at which the first incident of the scenario stands; nobody waits for it."""
    from ddtop.cli import glyphs, width
    from ddtop.present.plain import status_text

    incidents = SCENARIOS[name].incidents
    at_s = SHOWN_S + (incidents[0].begin_s if incidents else 0.0)
    snapshot, verdict = moment(SimulatedJob(world_size, seed, SCENARIOS[name], began_unix_ns=time.time_ns()), at_s)
    click.echo(f"ddtop: {why}, so here is the status table {at_s:.0f} s after its beginning", err=True)
    shown = _marked(snapshot, NOTE.format(slowly="", scenario=name, seed=seed))
    click.echo(status_text(shown, verdict, width(), glyphs()), nl=False)


def moment(job: SimulatedJob, at_s: float) -> tuple[Snapshot, Verdict]:
    """What a viewer that has looked for some seconds sees so long after its beginning."""
    until = job.began_unix_ns + round(at_s * 1e9)
    at = until - round(WATCHED_S * 1e9)
    follower = Follower(job.name, clock=lambda: until)
    for data in job.joining(at):
        follower.take(data)
    found = follower.look(at)
    while at < until:
        after, at = at, min(at + round(LOOK_S * 1e9), until)
        for data in job.frames(after, at):
            follower.take(data)
        found = follower.look(at)
    return found
