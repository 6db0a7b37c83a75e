"""`ddtop --sim N`: the dashboard on a simulated job.

Its facts take the same path as those of a real job. A link stands in for the relay: it delivers the
frames that are due, and answers the viewer's requests.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace

from ddtop.cli import dashboard
from ddtop.cli.errors import USAGE, CommandError, did_you_mean
from ddtop.cli.output import echo, no_dashboard, print_status
from ddtop.cli.ranks import parse_ranks
from ddtop.diagnosis.finding import Verdict
from ddtop.feeds.route import Connection, Route
from ddtop.follow.engine import seen
from ddtop.follow.live import LiveSource
from ddtop.follow.look import Look
from ddtop.model.facts import Snapshot
from ddtop.patience import within
from ddtop.sim.fleet import WORLD_MAX
from ddtop.sim.incidents import SCENARIOS, TOUR
from ddtop.sim.job import SLOT_NS, SimulatedJob
from ddtop.wire import frames
from ddtop.wire.records import AnyRecord, Command, Reply

OF_SEVERAL = ("straggler", "gpu-straggler", "not-in-collective", "rank-missing")
"""Scenarios that one rank alone cannot show."""
NOTE = "simulated{slowly}: ddtop --sim makes these ranks up ({scenario}, seed {seed})"
NO_SIGNALS = "these ranks are simulated: there is no process to send a signal to"
LARGEST = 12_000
"""Ranks that one process can simulate and follow in real time. Larger jobs are slower."""
REPORTS_PER_S = 6_000
"""Reports a second of all ranks of a larger job together."""
MOST_NS = 500_000_000
"""The most that the job's time advances between two calls of its clock: the job waits for a viewer
that cannot keep up or was stopped.
"""
HISTORY_FRAMES = 30_000
"""Frames of history for a viewer that joins, so that shares and rates are there at once.

They take a second to make.
"""
HISTORY_S = 12.0
AT_ONCE = 200
"""Frames between two chances for the event loop, which must answer keys meanwhile."""
SHOWN_S = 25.0
"""The time from the first incident to the moment that is shown without a terminal: by then the
finding is confirmed."""
LOOK_S, WATCHED_S = 0.5, 12.0


class JobClock:
    """The clock of a simulated job, in unix ns.

    It advances only when it is called, which the link does while a viewer listens. `pace`: job
    seconds a second. `now_unix_ns`: the time at the last call, for everybody else.
    """

    def __init__(self, pace: float = 1.0, clock: Callable[[], int] = time.time_ns) -> None:
        self.pace, self._clock = pace, clock
        self._seen = self.now_unix_ns = clock()

    def __call__(self) -> int:
        before, self._seen = self._seen, self._clock()
        self.now_unix_ns += round(min(max(self._seen - before, 0), MOST_NS) * self.pace)
        return self.now_unix_ns


class SimLink:
    """A link to a simulated relay. `clock` gives unix ns."""

    def __init__(self, job: SimulatedJob, clock: Callable[[], int]) -> None:
        self._job, self._clock = job, clock
        self._sent_to_unix_ns: int | None = None
        # Not in `receive`: a viewer may leave it in the middle and go on later.
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
        """The answers that are due, and the frames that become due in the next `seconds`."""
        until = time.monotonic() + seconds
        while True:
            self._asked.clear()
            self._make_due()
            while (data := self._next_frame()) is not None:
                yield data
                self._given += 1
                if self._given % AT_ONCE == 0:
                    await asyncio.sleep(0)
            left = until - time.monotonic()
            if left <= 0:
                return
            try:
                await within(self._asked.wait(), min(left, SLOT_NS / 1e9))
            except asyncio.TimeoutError:
                continue

    def close(self) -> None:
        """Send nothing more."""
        self._waiting.clear()
        self._sent_to_unix_ns = None

    def _next_frame(self) -> bytes | None:
        while self._waiting:
            data = next(self._waiting[0], None)
            if data is not None:
                return data
            self._waiting.popleft()
        return None

    def _make_due(self) -> None:
        """Add the frames since the last call to the queue."""
        sent_to, now = self._sent_to_unix_ns, self._clock()
        if sent_to is None or self._waiting:
            return
        self._sent_to_unix_ns = now
        self._waiting.append(self._job.frames(sent_to, now))

    def _answer(self, command: Command) -> Iterator[bytes]:
        now = self._clock()
        if command.name == "join":
            # At least a second of it, so that every rank has reported.
            most_s = max(HISTORY_FRAMES / self._job.fleet.world_size, 1.0)
            history_s = min(command.history_s, HISTORY_S, most_s)
            yield self._say(Reply("joined"))
            yield from self._job.joining(now, history_s)
            self._sent_to_unix_ns = now
            yield self._say(Reply("live"))
        elif command.name == "stacks":
            request, text = (*command.arguments, "", "")[:2]
            # Already checked if a user typed it.
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


class SimRoute(Route):
    """The route to a simulated job. Its script goes on while nobody is connected."""

    def __init__(self, job: SimulatedJob, clock: Callable[[], int]) -> None:
        super().__init__(job.name)
        self._simulated, self._clock = job, clock

    async def connect(self, controller: bool) -> Connection:
        """A link to it."""
        del controller
        return SimLink(self._simulated, self._clock)


class SimSource(LiveSource):
    """The source of a real job, with a note that this one is simulated."""

    def __init__(self, job: SimulatedJob, note: str, clock: JobClock) -> None:
        super().__init__(SimRoute(job, clock), controller=True, clock=lambda: clock.now_unix_ns)
        self._note = note

    def look(self) -> Look:
        """The newest facts, with the note."""
        look = super().look()
        if look.snapshot is None:
            return look
        return replace(look, snapshot=_mark(look.snapshot, self._note))


def _mark(snapshot: Snapshot, note: str) -> Snapshot:
    return replace(snapshot, notes=(note, *snapshot.notes))


def simulate(text: str, scenario: str | None, seed: int, readonly: bool = False) -> None:
    """The dashboard on a simulated job; without a terminal a moment of it as text.

    `text`: how many ranks, as typed.

    Raises:
        CommandError: 2, no such number of ranks, or no such scenario.
    """
    world_size, name = ranks_of(text), scenario or TOUR
    if name not in SCENARIOS:
        there = ", ".join(SCENARIOS)
        raise CommandError(
            f"ddtop: there is no scenario {name!r}{did_you_mean(name, SCENARIOS)}\n"
            f"there are: {there}",
            USAGE,
        )
    if world_size == 1 and name in OF_SEVERAL:
        raise CommandError(
            f"ddtop: {name} needs ranks that wait for another: give --sim 2 or more", USAGE
        )
    why = no_dashboard()
    if why is not None:
        print_moment(world_size, name, seed, why)
        return
    clock = JobClock(1.0 if world_size <= LARGEST else REPORTS_PER_S / world_size)
    slowly = f" at {clock.pace:.0%} of its speed" if clock.pace < 1 else ""
    job = SimulatedJob(world_size, seed, SCENARIOS[name], began_unix_ns=clock())
    note = NOTE.format(slowly=slowly, scenario=name, seed=seed)
    dashboard.show(SimSource(job, note, clock), job.name, readonly=readonly)


def ranks_of(text: str) -> int:
    """The number of ranks that was typed: `64`, `1,024`.

    Raises:
        CommandError: 2, not a number of ranks that can be simulated.
    """
    cleaned = text.replace(",", "").replace("_", "")
    digits = cleaned.isascii() and cleaned.isdigit() and len(cleaned) < 10
    if digits and 1 <= int(cleaned) <= WORLD_MAX:
        return int(cleaned)
    raise CommandError(
        f"ddtop: --sim takes a number of ranks from 1 to {WORLD_MAX:,}, not {text[:40]!r}", USAGE
    )


def print_moment(world_size: int, name: str, seed: int, why: str) -> None:
    """Print the status table at the moment at which the scenario's first incident is confirmed.

    The job is made up as fast as possible, so nobody waits for that moment.
    """
    incidents = SCENARIOS[name].incidents
    at_s = SHOWN_S + (incidents[0].begin_s if incidents else 0.0)
    job = SimulatedJob(world_size, seed, SCENARIOS[name], began_unix_ns=time.time_ns())
    snapshot, verdict = moment(job, at_s)
    echo(f"ddtop: {why}, so here is the status table {at_s:.0f} s after its beginning", err=True)
    print_status(_mark(snapshot, NOTE.format(slowly="", scenario=name, seed=seed)), verdict)


def moment(job: SimulatedJob, at_s: float) -> tuple[Snapshot, Verdict]:
    """What a viewer sees `at_s` seconds after the job's beginning.

    The viewer has followed it for `WATCHED_S` by then.
    """
    until, step = job.began_unix_ns + round(at_s * 1e9), round(LOOK_S * 1e9)
    begin = until - round(WATCHED_S * 1e9)
    steps = ((at + step, job.frames(at, at + step)) for at in range(begin, until, step))
    return seen(job.name, [(begin, job.joining(begin)), *steps])
