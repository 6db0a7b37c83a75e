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
from dataclasses import dataclass, replace

from ddtop import registry
from ddtop.diagnosis.finding import UNKNOWN, Verdict
from ddtop.diagnosis.judge import Judge
from ddtop.feeds.bridge import GREETING_S, RemoteTarget
from ddtop.feeds.outside.jobs import OutsideJob, jobs_of, of_node, read
from ddtop.feeds.outside.look import (
    EAGER_PLACE_S,
    JUDGED_BY,
    NO_DUMP_SIGNAL,
    OF_LOOKS,
    OutsideSource,
)
from ddtop.feeds.relay import NoContactError
from ddtop.follow.look import Dump, Look
from ddtop.follow.thresholds import chosen
from ddtop.link.ssh_pipe import Pipe, PipeError
from ddtop.model.facts import Snapshot
from ddtop.model.job import Job
from ddtop.model.stragglers import suspects_of
from ddtop.wire import frames
from ddtop.wire.bridge import AskOutside, BridgeFrame, Done, Message, Refused
from ddtop.wire.frames import Envelope
from ddtop.wire.records import AnyRecord
from ddtop.wire.times import moved

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
    waiting: list[bytes] = []
    source = _source(jobs[0], waiting)
    running = asyncio.ensure_future(source.run())
    until = time.monotonic() + min(max(asked.seconds, 0.0), SECONDS_MAX)
    try:
        while time.monotonic() < until and not running.done():
            await asyncio.sleep(LOOK_S / 2)
            sent, waiting[:] = list(waiting), []
            for data in sent:
                await say(BridgeFrame(data))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    await say(Done())


def _source(job: OutsideJob, into: list[bytes]) -> OutsideSource:
    # Containers of one host may have the same identity, and the same pids.
    sender = f"{registry.host_identity()}.{secrets.token_hex(4)}"

    def seal(envelope: Envelope, record: AnyRecord) -> None:
        into.append(
            frames.seal(
                record,
                sender=sender,
                unix_ns=envelope.unix_ns,
                mono_ns=envelope.mono_ns,
                rank=envelope.rank,
                pid=envelope.pid,
            )
        )

    return OutsideSource(job.ranks, job.name, (), job, eager=True, on_record=seal)


# -- here


@dataclass
class Part:
    """The records of one host. `why`: why there are none. `offset_ns`: added to its times."""

    host: RemoteTarget
    pipe: Pipe | None = None
    done: bool = False
    why: str | None = None
    offset_ns: int | None = None
    frames: int = 0


class OutsideHosts:
    """Implements `viewer.source.Source` for a job on several hosts: each of them looks at its part,
    and the records are put together by rank."""

    def __init__(self, hosts: Sequence[RemoteTarget]) -> None:
        self._policy = chosen()
        self._job, self._judge = Job(NAME, self._policy), Judge(self._policy)
        self._parts = [Part(host) for host in hosts]
        self._shown: tuple[Snapshot, Verdict] | None = None
        self._shown_mono_s = 0.0
        self._dump: Dump | None = None

    def look(self) -> Look:
        """What is true now."""
        now = time.monotonic()
        if self._shown is None or now - self._shown_mono_s >= LOOK_S / 2:
            snapshot, verdict = self._judge.look(self._job.snapshot(time.time_ns()))
            self._shown, self._shown_mono_s = (snapshot, self._said(verdict)), now
        if not all(part.done for part in self._parts):
            return Look(*self._shown, dump=self._dump)
        whys = [f"{part.host.name}: {part.why}" for part in self._parts if part.why is not None]
        contact = "; ".join(whys) or "no host says anything more"
        if not any(part.frames for part in self._parts):
            return Look(None, Verdict(UNKNOWN, (), ""), contact)
        return Look(*self._shown, contact, dump=self._dump)

    def travel(self, at_unix_ns: int | None) -> None:
        """Does nothing: earlier moments are not kept."""

    async def ask_stacks(self, ranks: tuple[int, ...], by_signal: bool = False) -> str | None:
        """The stacks of the last samples; no rank is paused for them."""
        if by_signal:
            return NO_DUMP_SIGNAL
        count = len(ranks or self._job.snapshot(time.time_ns()).ranks)
        self._dump = Dump(OF_LOOKS, time.time_ns(), count, count)
        return None

    async def send_signal(self, rank: int, number: int) -> str:
        """Refused: only possible on the host itself."""
        host = self._job.snapshot(time.time_ns()).rank(rank).host
        return f"signal {number} was not sent: rank {rank} is on {host}, which is only looked at"

    async def run(self) -> None:
        """Look until cancelled, or until no host answers any more."""
        try:
            await asyncio.gather(*(_follow(part, self._job) for part in self._parts))
        finally:
            self.close()

    def close(self) -> None:
        """End the programs on the hosts."""
        for part in self._parts:
            if part.pipe is not None:
                part.pipe.close()

    @property
    def judged(self) -> bool:
        """Whether each host has answered, and each rank was looked at twice or has ended."""
        if not all(part.frames or part.done for part in self._parts):
            return False
        living = [rank for rank in self._job.snapshot(time.time_ns()).ranks if not rank.gone]
        looks = [rank.comm.outside for rank in living if rank.pid is not None]
        return all(look is not None and look.looks_s >= EAGER_PLACE_S for look in looks)

    @property
    def suspects(self) -> tuple[int, ...]:
        """The ranks that may be stragglers after the looks so far."""
        living = [rank for rank in self._job.snapshot(time.time_ns()).ranks if not rank.gone]
        found = suspects_of({rank.rank: rank.comm.outside for rank in living}, self._policy)
        return found.ranks if found is not None else ()

    @property
    def asks(self) -> bool:
        """Only the host of rank 0 knows whether NCCL's status service is asked."""
        return False

    @property
    def silent(self) -> tuple[str, ...]:
        """Why hosts do not answer, one sentence each.

        Raises:
            NoContactError: none of them answers.
        """
        found = [f"{part.host.name}: {part.why}" for part in self._parts if part.why is not None]
        if len(found) == len(self._parts):
            raise NoContactError("; ".join(found))
        return tuple(found)

    def _said(self, verdict: Verdict) -> Verdict:
        heard = ", ".join(part.host.name for part in self._parts if part.frames)
        calm = f"{JUDGED_BY}, on {heard or 'no host so far'}; no rank is paused"
        health = verdict.health if verdict.findings else "unknown"
        return replace(verdict, calm=calm, health=health)


async def _follow(part: Part, job: Job) -> None:
    """Take in the records of one host until it sends no more."""
    try:
        part.pipe = part.host.start(asks=False)
        await part.pipe.greeted(GREETING_S)
        while not part.done:
            part.pipe.send(AskOutside(SECONDS_MAX))
            before = part.frames
            await _take(part, part.pipe, job)
            part.done = part.done or part.frames == before
    except PipeError as error:
        part.why = (
            None if part.frames else part.host.why(error, part.pipe.words if part.pipe else [])
        )
    except NoContactError as error:
        part.why = str(error)
    part.done = True


async def _take(part: Part, pipe: Pipe, job: Job) -> None:
    """Take in the records of one look of `SECONDS_MAX`."""
    until = time.monotonic() + SECONDS_MAX + LATE_S
    while time.monotonic() < until:
        async for data in pipe.frames(LOOK_S / 4):
            part.frames += 1
            _apply(part, data, job)
        answer = pipe.answered()
        if isinstance(answer, Refused):
            part.done, part.why = True, None if part.frames else answer.text
        if answer is not None:
            return
    raise PipeError("it has not answered for long")


def _apply(part: Part, data: bytes, job: Job) -> None:
    try:
        envelope = frames.open_envelope(data)
        record = frames.open_record(envelope)
    except frames.WireError:
        job.garbled += 1
        return
    if part.offset_ns is None:
        offset_ns = time.time_ns() - envelope.unix_ns
        part.offset_ns = offset_ns if abs(offset_ns) > job.policy.clock_apart_s * 1e9 else 0
    if part.offset_ns:
        record = moved(record, part.offset_ns)
        envelope = moved(envelope, part.offset_ns)
    job.apply(envelope, record)
