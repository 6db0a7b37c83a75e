"""A job on several hosts that was started without ddtop: the same look on each host, through ssh
and the bridge there, put together by rank.

Each host finds its part by itself: the pids differ, so nobody could name them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from ddtop import registry
from ddtop.diagnosis.finding import Verdict
from ddtop.diagnosis.judge import Judge
from ddtop.link.ssh_pipe import Pipe, PipeError
from ddtop.model.job import Job
from ddtop.model.state.facts import Snapshot
from ddtop.viewer.routes.outside import JUDGED_BY, OutsideSource
from ddtop.viewer.routes.outside_jobs import OutsideJob, jobs_of
from ddtop.viewer.routes.outside_processes import read
from ddtop.viewer.routes.relay import NoContactError
from ddtop.viewer.routes.ssh import ANSWER_S, SshTarget
from ddtop.viewer.thresholds import chosen
from ddtop.wire import frames
from ddtop.wire.bridge import AskOutside, BridgeFrame, Done, Message, Refused
from ddtop.wire.frames import Envelope
from ddtop.wire.records import AnyRecord
from ddtop.wire.times import moved

SECONDS_MAX = 30.0
LOOK_S, LATE_S = 0.5, 5.0


# -- there


async def serve(asked: AskOutside, say: Callable[[Message], Awaitable[None]]) -> None:
    """Look at the only job of this host that was started without ddtop, and send the records."""
    jobs = jobs_of(read(os.getuid()))
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
    """What one host says. `why`: why it says nothing. `offset_ns`: added to its times."""

    host: SshTarget
    pipe: Pipe | None = None
    done: bool = False
    why: str | None = None
    offset_ns: int | None = None
    frames: int = field(default=0)


async def look_at(hosts: Sequence[SshTarget], seconds: float) -> tuple[Snapshot, Verdict]:
    """Snapshot and verdict of the job that these hosts run together, after looking so long.

    Raises:
        NoContactError: no host says anything.
    """
    policy = chosen()
    job, judge = Job("outside", policy), Judge(policy)
    parts = [Part(host) for host in hosts]
    try:
        await asyncio.gather(*(_begin(part, seconds) for part in parts))
        until = time.monotonic() + seconds + LATE_S
        verdict = judge.observe(job.snapshot(time.time_ns()))
        while time.monotonic() < until and not all(part.done for part in parts):
            for part in parts:
                await _take(part, job)
            verdict = judge.observe(job.snapshot(time.time_ns()))
    finally:
        for part in parts:
            if part.pipe is not None:
                part.pipe.close()
    silent = [f"{part.host.name}: {part.why}" for part in parts if part.why is not None]
    if len(silent) == len(parts):
        raise NoContactError("; ".join(silent))
    job.notes.extend(silent)
    snapshot = job.snapshot(time.time_ns())
    verdict = judge.observe(snapshot)
    heard = ", ".join(part.host.name for part in parts if part.why is None)
    calm = f"{JUDGED_BY}, on {heard}; no rank is paused"
    health = verdict.health if verdict.findings else "unknown"
    return snapshot, replace(verdict, calm=calm, health=health)


async def _begin(part: Part, seconds: float) -> None:
    try:
        part.pipe = part.host.start(asks=False)
        await part.pipe.greeted(ANSWER_S)
        part.pipe.send(AskOutside(seconds))
    except (PipeError, NoContactError) as error:
        part.done, part.why = True, str(error)


async def _take(part: Part, job: Job) -> None:
    """Take in what this host has sent since."""
    if part.pipe is None or part.done:
        await asyncio.sleep(LOOK_S / 4)
        return
    try:
        async for data in part.pipe.frames(LOOK_S / 4):
            part.frames += 1
            _apply(part, data, job)
        answer = await part.pipe.answer(0.01)
    except PipeError as error:
        if str(error) != "no answer came":
            part.done, part.why = True, None if part.frames else str(error)
        return
    part.done = isinstance(answer, (Done, Refused))
    part.why = answer.text if isinstance(answer, Refused) else None


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
