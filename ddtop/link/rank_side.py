"""A rank's end of the unix socket: it never blocks, and when the relay is slow it drops and counts."""

from __future__ import annotations

import contextlib
import os
import select
import time
from pathlib import Path

import zmq

QUEUE_FRAMES = 8
"""Four seconds of states: what a relay that restarts needs at most; newer ones are worth more than older ones."""
RECONNECT_MS, RECONNECT_MAX_MS = 100, 1000


class RankLink:
    """A DEALER to the relay of this host. Made, used and closed by one thread; only `wake` is for others."""

    def __init__(self, path: Path) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, QUEUE_FRAMES)
        self._socket.setsockopt(zmq.RCVHWM, QUEUE_FRAMES)
        self._socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        self._socket.connect(f"ipc://{path}")
        self._wake: int | None = None
        with contextlib.suppress(OSError):
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll: select.poll | None = select.poll()
        self._poll.register(int(self._socket.getsockopt(zmq.FD)), select.POLLIN)
        if self._wake is not None:
            self._poll.register(self._wake, select.POLLIN)
        self.drops = 0

    def wait(self, seconds: float) -> tuple[bool, bool]:
        """Sleep until the time is over: (`wake` was called, something may have come in)."""
        if self._poll is None:
            time.sleep(seconds)
            return False, True
        ready = self._poll.poll(seconds * 1000)
        if not ready:
            return False, False
        if any(events & select.POLLNVAL for _, events in ready):
            # The program closed descriptors that it did not open: without this the loop would spin.
            self._poll = None
            return False, True
        woken = any(descriptor == self._wake for descriptor, _ in ready)
        if woken and self._wake is not None:
            with contextlib.suppress(OSError):
                os.eventfd_read(self._wake)
        return woken, len(ready) > woken

    def wake(self) -> None:
        """End a `wait` at once; from any thread."""
        if self._wake is not None:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake, 1)

    def send(self, frame: bytes) -> bool:
        """Hand a frame to the I/O thread; False (and counted) if its queue is full."""
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            self.drops += 1
            return False
        return True

    def receive(self) -> bytes | None:
        """The next frame from the relay, if one is there."""
        # Asked first: an empty receive raises, which costs ten times as much.
        if not int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            return None
        try:
            return self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def close(self, linger_ms: int = 0) -> None:
        """Close socket and context; what is queued gets `linger_ms` to leave."""
        self._poll = None
        self._socket.close(linger_ms)
        self._context.term()
        # The eventfd stays open: another thread may be in `wake`, and its number could be a file of the program's by then.
