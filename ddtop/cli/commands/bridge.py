"""`ddtop bridge`: the other end of `attach --ssh`, on the host of the job. ssh starts it.

It joins the relay there as a viewer of this user, and copies frames between the relay and its own
stdin and stdout. It ends when ssh closes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

import ddtop
from ddtop import journal, private, registry
from ddtop.cli.errors import USAGE, CommandError, DdtopCommand, Trait
from ddtop.link.viewer_side import AsyncViewerLink
from ddtop.patience import within
from ddtop.wire import bridge
from ddtop.wire.bridge import (
    LAST,
    NEWER,
    OLDER,
    AskFiles,
    AskJobs,
    AskOutside,
    BridgeFrame,
    BridgeJob,
    Message,
    Open,
    Refused,
)

IDLE_S = 600.0
"""After this time without a message the other side counts as gone, even if TCP has not noticed.

A dashboard may be suspended for that long.
"""
FILES_BYTES_MAX = 64 << 20
JOBS_MAX = 500
READ_BYTES = 1 << 16


@click.command("bridge", cls=DdtopCommand, exits="0", traits=Trait.WITHOUT_CONFIG, hidden=True)
@click.option("--readonly", is_flag=True, help="Read-only, whatever the other side asks for.")
def command(readonly: bool) -> int:
    """The other end of attach --ssh: ssh starts it."""
    return serve(readonly)


def serve(readonly: bool) -> int:
    """Serve the other side until stdin ends.

    Returns:
        0, or 1 if the connection broke, or if the other side sent something that is not a message.

    Raises:
        CommandError: 2, stdin and stdout are not pipes.
    """
    if not all(_is_pipe(descriptor) for descriptor in (0, 1)):
        raise CommandError(
            "ddtop: the bridge talks to a program: ddtop attach --ssh HOST starts it there", USAGE
        )
    # Text that is printed by mistake must not get between the messages.
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        asyncio.run(_serve(out, readonly))
    except (ConnectionError, bridge.BridgeError):
        return 1
    return 0


def _is_pipe(descriptor: int) -> bool:
    """True for a pipe, and for a socket, which some sshds use."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


async def _serve(out: int, readonly: bool) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    stdin, stdout = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(out, "wb", buffering=0)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdin)
    ends = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, stdout)
    serving = _Bridge(asyncio.StreamWriter(*ends, reader=None, loop=loop), readonly)
    try:
        await serving.serve(reader)
    finally:
        serving.close()
        ends[0].abort()


class _Bridge:
    """One viewer. While the viewer does not read, nothing is read from the relay for it."""

    def __init__(self, writer: asyncio.StreamWriter, readonly: bool) -> None:
        self._writer, self._readonly = writer, readonly
        self._one_at_a_time = asyncio.Lock()
        self._link: AsyncViewerLink | None = None
        self._copying: asyncio.Task[None] | None = None

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Handle messages until the other side ends, or is silent for `IDLE_S`."""
        await self._write(bridge.greet(ddtop.__version__, socket.gethostname()))
        incoming = bridge.Incoming(greeted=True)
        with contextlib.suppress(asyncio.TimeoutError):
            while data := await within(reader.read(READ_BYTES), IDLE_S):
                for message in incoming.feed(data):
                    try:
                        await self._take(message)
                    except registry.RegistryError as error:
                        await self._say(Refused(str(error)))

    async def _take(self, message: Message) -> None:
        if isinstance(message, BridgeFrame):
            if self._link is not None:
                await self._link.send(message.data)
        elif isinstance(message, AskJobs):
            await self._say(_jobs())
        elif isinstance(message, Open):
            await self._open(message)
        elif isinstance(message, AskFiles):
            await self._send_files(message)
        elif isinstance(message, AskOutside):
            from ddtop.feeds.several import serve

            await serve(message, self._say)
        else:
            await self._say(Refused("a bridge does not take this message"))

    async def _open(self, message: Open) -> None:
        self.close()
        entry = registry.of_run(message.job, message.run)
        if entry is None or not entry.reachable(time.time_ns()):
            await self._say(bridge.Gone())
            return
        controller = message.controller and not self._readonly
        self._link = AsyncViewerLink(*entry.endpoint(), registry.secret(), controller)
        await self._say(bridge.Opened())
        self._copying = asyncio.create_task(self._copy(self._link))

    async def _copy(self, link: AsyncViewerLink) -> None:
        while True:
            async for data in link.receive(1.0):
                await self._say(BridgeFrame(data))

    async def _send_files(self, message: AskFiles) -> None:
        entry = registry.of_run(message.job, message.run)
        for kind, path, size in _files(entry, message.last) if entry is not None else ():
            with contextlib.suppress(OSError), os.fdopen(private.open_file(path), "rb") as file:
                left = size
                while left > 0 and (data := file.read(min(left, bridge.PART_BYTES))):
                    left -= len(data)
                    await self._say(bridge.part(kind, size, data))
        await self._say(bridge.Done())

    async def _say(self, message: Message) -> None:
        await self._write(bridge.pack(message))

    async def _write(self, data: bytes) -> None:
        async with self._one_at_a_time:
            self._writer.write(data)
            await self._writer.drain()

    def close(self) -> None:
        """Leave the relay."""
        if self._copying is not None:
            self._copying.cancel()
        if self._link is not None:
            self._link.close()
        self._copying = self._link = None


def _jobs() -> bridge.Jobs:
    now = time.time_ns()
    entries = registry.read_entries()[:JOBS_MAX]
    listed = (
        BridgeJob(msgspec.json.encode(entry), entry.reachable(now), entry.over(now))
        for entry in entries
    )
    return bridge.Jobs(now, tuple(listed))


def _files(entry: registry.JobEntry, last: bool) -> Iterator[tuple[str, Path, int]]:
    """(kind, path, bytes) of what is to be sent: the newer half of the journal, then the older.

    The last state instead if `last`, or if there is no journal.
    """
    state = registry.left_path(entry)
    path = registry.journal_path(entry.job, entry.run, entry.sender)
    room, sent = FILES_BYTES_MAX, False
    halves = ((NEWER, path), (OLDER, journal.older_half(path)))
    for kind, one in () if last and state.exists() else halves:
        size = _size(one)
        if size is None:
            continue
        if size > room:
            break
        room, sent = room - size, True
        yield kind, one, size
    size = _size(state)
    if not sent and size is not None:
        yield LAST, state, min(size, FILES_BYTES_MAX)


def _size(path: Path) -> int | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None
