"""A viewer's end: a DEALER over TCP with CURVE, for asyncio and for a loop with many."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Hashable, Iterator
from typing import TypeVar

import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from ddtop.link.keys import CONTROLLER, SERVER, VIEWER, derive
from ddtop.link.leaf_side import place
from ddtop.link.options import Options, connecting, set_options
from ddtop.patience import within

QUEUE_BYTES_MAX, FRAME_COST_BYTES = 48 << 20, 128
"""The size of a link's queue, and Python's overhead for each frame."""
PING_S = 2.0
"""How often a viewer sends a ping. The relay forgets it after five missed pings."""
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 2000, 10_000
HEAP_FRAMES = 500
"""Read in one turn of the event loop: 2 ms."""
NO_LIMIT = 0
MOST_LINKS = 4096
"""Sockets of one context; the default of libzmq is 1023."""
FLOOD_PER_S, COUNT_S, GATHER_S = 400.0, 0.25, 0.02
_S = TypeVar("_S", bound="zmq.Socket[bytes] | zmq.asyncio.Socket")


def _connect(
    socket: _S,
    address: str,
    port: int,
    secret: bytes,
    controller: bool,
) -> _S:
    """A socket of a viewer.

    The queue of libzmq has no limit: libzmq 4.3.5 may abort the process when a queue that was full
    is read again (its issue 3937), and a viewer is sometimes busy for seconds. The owner of the
    socket empties it in each turn and bounds what it keeps.
    """
    keys = derive(secret, CONTROLLER if controller else VIEWER)
    options: Options = {
        zmq.LINGER: 0,
        zmq.RCVHWM: NO_LIMIT,
        zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
        zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS,
        zmq.RECONNECT_IVL_MAX: 2000,
        # Not for names: libzmq would first use their IPv6 addresses, even without a route.
        zmq.IPV6: int(":" in address),
    }
    set_options(socket, {**options, **connecting(derive(secret, SERVER), keys)})
    socket.connect(place(address, port))
    return socket


def admits(address: str, port: int, secret: bytes, seconds: float) -> bool:
    """Whether a relay at this address accepts this secret. Waits at most `seconds`.

    It completes the handshake, because the relay would count a peer that only connects as refused.
    """
    context = zmq.Context(io_threads=1)
    socket = context.socket(zmq.DEALER)
    failed = zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    try:
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | failed)
        _connect(socket, address, port, secret, controller=False)
        came = monitor.poll(int(seconds * 1000))
        return (
            bool(came)
            and parse_monitor_message(monitor.recv_multipart())["event"]
            == zmq.EVENT_HANDSHAKE_SUCCEEDED
        )
    except zmq.ZMQError:
        return False
    finally:
        context.destroy(linger=0)


class FrameQueue:
    """A queue of received frames, of at most `bytes_max`.

    Frames that arrive while it is full are dropped and counted.
    """

    def __init__(self, bytes_max: int = QUEUE_BYTES_MAX) -> None:
        self.dropped = 0
        self._bytes_max, self._bytes = bytes_max, 0
        self._frames: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, data: bytes) -> None:
        """Keep it, or drop it."""
        if self._bytes >= self._bytes_max:
            self.dropped += 1
            return
        self._frames.append(data)
        self._bytes += len(data) + FRAME_COST_BYTES

    def take(self) -> bytes:
        """The oldest; there must be one."""
        data = self._frames.popleft()
        self._bytes -= len(data) + FRAME_COST_BYTES
        return data

    def fill(self, socket: zmq.Socket[bytes], frames_max: int) -> int:
        """Move the available frames out of the socket. Returns their number."""
        for count in range(frames_max):
            try:
                data = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return count
            self.put(data)
        return frames_max


class ViewerLinks:
    """Many links in one thread, for a loop that follows many jobs. Each has a name.

    They share one context, because each context has its own threads. The caller reads all frames in
    each turn, and bounds what it keeps. Not thread-safe.
    """

    def __init__(self) -> None:
        self._context = zmq.Context(io_threads=1)
        self._context.max_sockets = MOST_LINKS
        self._poller = zmq.Poller()
        self._sockets: dict[Hashable, zmq.Socket[bytes]] = {}
        self._names: dict[zmq.Socket[bytes], Hashable] = {}

    def open(
        self, name: Hashable, address: str, port: int, secret: bytes, controller: bool = False
    ) -> None:
        """Connect to a relay. The link is there at once, whether the relay answers or not.
        `controller`: with the key that allows signals; the relay refuses signals from all others.

        Raises:
            OSError: there are no more descriptors.
        """
        try:
            socket = self._context.socket(zmq.DEALER)
            _connect(socket, address, port, secret, controller)
        except zmq.ZMQError as error:
            raise OSError(error.errno, error.strerror) from None
        self._sockets[name] = socket
        self._names[socket] = name
        self._poller.register(socket, zmq.POLLIN)

    def send(self, name: Hashable, frame: bytes) -> None:
        """Queue a frame; dropped if the relay does not take it."""
        with contextlib.suppress(zmq.Again):
            self._sockets[name].send(frame, zmq.NOBLOCK)

    def receive(self, seconds: float) -> Iterator[tuple[Hashable, bytes]]:
        """The frames that are there, after a wait of at most `seconds` for the first.

        Takes at most `HEAP_FRAMES` from each link, so that none keeps the others out.
        """
        for socket, _ in self._poller.poll(int(seconds * 1000)):
            name = self._names[socket]
            for _ in range(HEAP_FRAMES):
                try:
                    data = socket.recv(zmq.NOBLOCK)
                except zmq.Again:
                    break
                yield name, data

    def close_one(self, name: Hashable) -> None:
        """Close this link at once."""
        socket = self._sockets.pop(name)
        del self._names[socket]
        self._poller.unregister(socket)
        socket.close(0)

    def close(self) -> None:
        """Close all at once."""
        self._context.destroy(linger=0)


class AsyncViewerLink:
    """One link inside an asyncio loop, for all who look at one job.

    `controller`: as in `ViewerLinks.open`.
    """

    def __init__(self, address: str, port: int, secret: bytes, controller: bool = False) -> None:
        self._context = zmq.asyncio.Context(io_threads=1)
        self._socket = _connect(self._context.socket(zmq.DEALER), address, port, secret, controller)
        self._now: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket)
        self._counted, self._counted_from, self._per_s = 0, time.monotonic(), 0.0
        self.waiting = FrameQueue()
        self._came = asyncio.Event()
        self._filling: asyncio.Task[None] | None = None

    async def send(self, frame: bytes) -> None:
        """Queue a frame; dropped if the relay does not take it."""
        try:
            await self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return

    async def receive(self, seconds: float) -> AsyncIterator[bytes]:
        """The frames that come in during the next `seconds`; of thousands a second many at a time.

        A separate task moves them out of the socket, so that they do not pile up there while the
        caller waits, for example in a bridge with a slow ssh.
        """
        if self._filling is None:
            self._filling = asyncio.create_task(self._fill())
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for _ in range(min(len(self.waiting), HEAP_FRAMES)):
                yield self.waiting.take()
            if self.waiting:
                # Also where all is there already the loop has to get its turn.
                await asyncio.sleep(0)
                continue
            if self._filling.done():
                self._filling.result()
            self._came.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await within(self._came.wait(), left)

    async def _fill(self) -> None:
        """Move frames into our own queue until cancelled.

        asyncio needs 0.1 ms for each awaited frame, a whole core at 10,000 frames per second. So
        available frames are read without awaiting, and at high rates it first pauses to let frames
        gather.
        """
        try:
            while True:
                await self._socket.poll()
                taken = self.waiting.fill(self._now, HEAP_FRAMES)
                self._counted += taken
                self._came.set()
                # Let the event loop run, even if all frames are already there. If there are more,
                # do not pause: for the history of 10,000 ranks these pauses took 1.4 s.
                gathers = self._is_flood() and taken < HEAP_FRAMES
                await asyncio.sleep(GATHER_S if gathers else 0)
        finally:
            self._came.set()

    def _is_flood(self) -> bool:
        now = time.monotonic()
        if now - self._counted_from > COUNT_S:
            self._per_s = self._counted / (now - self._counted_from)
            self._counted, self._counted_from = 0, now
        return self._per_s > FLOOD_PER_S

    def close(self) -> None:
        """Close at once."""
        if self._filling is not None:
            self._filling.cancel()
        self._context.destroy(linger=0)
