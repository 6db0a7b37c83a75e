"""A job on several hosts that was started without ddtop: the same look on each host, through ssh
or the scheduler and the bridge there, put together by rank.

Each host finds its part itself, because the pids differ.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from ddtop import registry
from ddtop.feeds.bridge import GREETING_S, RemoteTarget
from ddtop.feeds.feed import NO_DUMP_SIGNAL, LocalFeed
from ddtop.feeds.outside.jobs import jobs_of, of_node, read
from ddtop.feeds.outside.look import EAGER_PLACE_S, OutsideFeed
from ddtop.feeds.route import AGAIN_S, NoContactError
from ddtop.link.ssh_pipe import Pipe, PipeError
from ddtop.thresholds import chosen
from ddtop.wire import frames
from ddtop.wire.bridge import AskOutside, BridgeFrame, Done, Message, Refused
from ddtop.wire.frames import Envelope
from ddtop.wire.records import AnyRecord, Hello, OutsideLook, Reply, Stacks
from ddtop.wire.times import shift

NAME = "outside"
SECONDS_MAX = 30.0
LOOK_S, LATE_S = 0.5, 5.0


# -- there


async def serve(asked: AskOutside, say: Callable[[Message], Awaitable[None]]) -> None:
    """Look at the only job of this host that was started without ddtop, and send the records."""
    jobs = jobs_of(of_node(read(os.getuid()), os.environ))
    if len(jobs) != 1:
        names = ", ".join(f"{job.name} ({len(job.ranks)} ranks)" for job in jobs) or "none"
        await say(Refused(f"one job that was started without ddtop is looked for, there: {names}"))
        return
    (job,) = jobs
    # Containers of one host may have the same identity, and the same pids.
    sender = f"{registry.host_identity()}.{secrets.token_hex(4)}"
    feed = OutsideFeed(job.ranks, job.name, (), job, eager=True, sender=sender)
    running = asyncio.ensure_future(feed.run())
    until = time.monotonic() + min(max(asked.seconds, 0.0), SECONDS_MAX)
    try:
        while time.monotonic() < until and not running.done():
            await asyncio.sleep(LOOK_S / 2)
            for data in feed.heard():
                await say(BridgeFrame(data))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        feed.end()
    await say(Done())


# -- here


@dataclass
class HostRecords:
    """The records of one host. `why`: why there are none. `offset_ns`: added to its times.
    `sender`: the sender in all of its records, from every look there."""

    host: RemoteTarget
    sender: str | None = None
    pipe: Pipe | None = None
    done: bool = False
    why: str | None = None
    offset_ns: int | None = None
    frames: int = 0


class SeveralFeed(LocalFeed):
    """A feed of a job on several hosts: each of them looks at its part, and the records are put
    together by rank."""

    def __init__(self, hosts: Sequence[RemoteTarget]) -> None:
        super().__init__(NAME, registry.host_identity())
        self._policy = chosen()
        self._parts = [HostRecords(host) for host in hosts]
        self._where: dict[int, str] = {}

    async def connect(self, controller: bool) -> SeveralFeed:
        """Look at each host; again, after a pause, once none of them answers."""
        if self.over:
            await asyncio.sleep(AGAIN_S)
            # Each try has an ssh of its own, whose pipes would stay open.
            self.end()
            self._parts = [HostRecords(part.host, part.sender) for part in self._parts]
        await super().connect(controller)
        return self

    async def run(self) -> None:
        """Look until no host answers any more.

        Raises:
            NoContactError: none does.
        """
        await asyncio.gather(*(self._follow(part) for part in self._parts))
        whys = [f"{part.host.name}: {part.why}" for part in self._parts if part.why is not None]
        raise NoContactError("; ".join(whys) or "no host answers any more")

    def stacks(self, request: str, ranks: frozenset[int], how: str) -> Reply:
        """The stacks of the last looks; no rank is paused for them."""
        if how:
            return Reply("stacks", ok=False, text=NO_DUMP_SIGNAL)
        answers = [
            record
            for (kind, *_), data in self._latest.items()
            if kind == "Stacks" and isinstance(record := _open(data)[1], Stacks)
        ]
        wanted = [answer for answer in answers if not ranks or answer.of_rank in ranks]
        for answer in wanted:
            self.say(msgspec.structs.replace(answer, request=request), answer.of_rank, answer.pid)
        return Reply("stacks", text=request, count=sum(not answer.worker for answer in wanted))

    def signal(self, rank: int, number: int) -> Reply:
        """Refused: only possible on the host itself."""
        where = self._where.get(rank, "another host")
        why = f"signal {number} for rank {rank}: {where} is only looked at"
        return Reply("signal", ok=False, text=why)

    def end(self) -> None:
        """End the programs on the hosts."""
        for part in self._parts:
            if part.pipe is not None:
                part.pipe.close()

    def judged(self, looks: Sequence[OutsideLook | None]) -> bool:
        """Whether each host has answered or will not, and each rank was read twice."""
        if not all(part.frames or part.done for part in self._parts):
            return False
        return all(look is not None and look.looks_s >= EAGER_PLACE_S for look in looks)

    @property
    def silent_reasons(self) -> tuple[str, ...]:
        """Why hosts do not answer, one sentence each.

        Raises:
            NoContactError: none of them answers.
        """
        found = [f"{part.host.name}: {part.why}" for part in self._parts if part.why is not None]
        if len(found) == len(self._parts):
            raise NoContactError("; ".join(found))
        return tuple(found)

    async def _follow(self, part: HostRecords) -> None:
        """Take in the records of one host until it sends no more."""
        try:
            part.pipe = part.host.start(asks=False)
            await part.pipe.wait_for_greeting(GREETING_S)
            while not part.done:
                part.pipe.send(AskOutside(SECONDS_MAX))
                before = part.frames
                await self._take_in(part, part.pipe)
                part.done = part.done or part.frames == before
        except PipeError as error:
            part.why = (
                None
                if part.frames
                else part.host.sentence(error, part.pipe.words if part.pipe else [])
            )
        except NoContactError as error:
            part.why = str(error)
        part.done = True

    async def _take_in(self, part: HostRecords, pipe: Pipe) -> None:
        """Take in the records of one look of `SECONDS_MAX`."""
        until = time.monotonic() + SECONDS_MAX + LATE_S
        while time.monotonic() < until:
            async for data in pipe.frames(LOOK_S / 4):
                part.frames += 1
                self._take(part, data)
            answer = pipe.next_message()
            if isinstance(answer, Refused):
                part.done, part.why = True, None if part.frames else answer.text
            if answer is not None:
                return
        raise PipeError("it has not answered for long")

    def _take(self, part: HostRecords, data: bytes) -> None:
        """Pass the record on, with its times on this host's clock. Each look there names another
        sender; here it is the same host."""
        try:
            envelope, record = _open(data)
        except frames.WireError:
            # The follower counts it.
            self._waiting.append(data)
            return
        if part.offset_ns is None:
            offset_ns = time.time_ns() - envelope.unix_ns
            within = abs(offset_ns) <= self._policy.clock_apart_s * 1e9
            part.offset_ns = 0 if within else offset_ns
        part.sender = part.sender or envelope.sender
        if part.offset_ns:
            record, envelope = shift(record, part.offset_ns), shift(envelope, part.offset_ns)
            envelope = msgspec.structs.replace(envelope, record=msgspec.Raw(frames.encode(record)))
        envelope = msgspec.structs.replace(envelope, sender=part.sender)
        data = frames.encode(envelope)
        if isinstance(record, Reply):
            # Only this feed answers what is asked here.
            return
        if isinstance(record, Hello):
            self._where[record.rank or 0] = part.host.name
        self.keep((envelope.kind, envelope.sender, envelope.rank, envelope.pid), data)


def _open(data: bytes) -> tuple[Envelope, AnyRecord]:
    envelope = frames.open_envelope(data)
    return envelope, frames.open_record(envelope)
