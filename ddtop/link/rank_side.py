"""A rank's end of the unix socket: it never blocks, and when the relay is slow it drops and counts."""

from __future__ import annotations

from pathlib import Path

import zmq

QUEUE_FRAMES = 8
"""Four seconds of states: what a relay that restarts needs at most; newer ones are worth more than older ones."""
RECONNECT_MS, RECONNECT_MAX_MS = 100, 1000


class RankLink:
    """A DEALER to the relay of this host. Made, used and closed by one thread."""

    def __init__(self, path: Path) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, QUEUE_FRAMES)
        self._socket.setsockopt(zmq.RCVHWM, QUEUE_FRAMES)
        self._socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        self._socket.connect(f"ipc://{path}")
        self.drops = 0

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
        try:
            return self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def close(self, linger_ms: int = 0) -> None:
        """Close socket and context; what is queued gets `linger_ms` to leave."""
        self._socket.close(linger_ms)
        self._context.term()
