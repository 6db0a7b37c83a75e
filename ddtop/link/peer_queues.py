"""What waits for the viewers of a relay, in a queue of its own for each.

Problem: libzmq copies each frame for each peer, and keeps the copy until the peer has read it. 50
viewers that joined and read nothing made a relay take 1.2 GB. What we do: libzmq gets at most 1 MiB
for a peer. The rest waits here as references to frames that the history has too, and all of it
together is bounded. The kernel closes a connection whose peer reads nothing for `UNREAD_S`.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import zmq

from ddtop.link.leaf_side import send_parts

HELD_MESSAGES, PIECE_BYTES = 16, 64 << 10
"""libzmq holds so many messages for a peer, of at most so many bytes; a larger frame is alone."""
WAITING_BYTES_MAX, SHARE_BYTES = 64 << 20, 1 << 20
"""All queues together. Above it, a queue of less than a share takes frames all the same: viewers
that read nothing do not stop the frames of those that read."""
TURN_BYTES = 1 << 20
"""What is sent in one turn: 5 ms. Then the ranks are served."""
UNREAD_S = 10.0
AGAIN_S, AGAIN_MOST_S = 0.002, 0.1
TRIM_AFTER_BYTES = 8 << 20


@dataclass
class _Queue:
    """`moved_s`: when libzmq last took something of it."""

    moved_s: float
    frames: deque[bytes]
    size_bytes: int


class PeerQueues:
    """The queues of one ROUTER. Used by the thread of the ROUTER only."""

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        self._router = router
        self._queues: dict[bytes, _Queue] = {}
        self._turn_s = float("inf")
        self._moved_bytes = 0
        router.setsockopt(zmq.SNDHWM, HELD_MESSAGES)
        # It also counts the time in which the peer's window is closed (tcp(7), TCP_USER_TIMEOUT).
        router.setsockopt(zmq.TCP_MAXRT, int(UNREAD_S * 1000))

    @property
    def waiting_bytes(self) -> int:
        """What waits in all queues."""
        return sum(queue.size_bytes for queue in self._queues.values())

    def owes(self, peer: bytes) -> bool:
        """Whether something waits for this peer."""
        return peer in self._queues

    def put(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        """Send these frames, or queue what libzmq does not take yet.

        False: too much waits already, and they are dropped.

        Raises:
            zmq.ZMQError: the peer has gone.
        """
        queue = self._queues.get(peer)
        if queue is not None:
            if queue.size_bytes > SHARE_BYTES and self.waiting_bytes > WAITING_BYTES_MAX:
                return False
            queue.frames.extend(frames)
            queue.size_bytes += sum(map(len, frames))
        elif len(frames) > 1 or not self._took(peer, frames):
            now = time.monotonic()
            queue = _Queue(now, deque(frames), sum(map(len, frames)))
            self._send(peer, queue, TURN_BYTES, now)
            if queue.frames:
                self._queues[peer] = queue
                self._turn_s = min(self._turn_s, now + AGAIN_S)
        return True

    def due_in_s(self) -> float:
        """Seconds until the next turn; infinity if nothing waits."""
        return max(0.0, self._turn_s - time.monotonic())

    def turn(self) -> None:
        """Send what the peers take now, each its share."""
        now = time.monotonic()
        if now < self._turn_s:
            return
        share = TURN_BYTES // max(len(self._queues), 1)
        pauses = []
        for peer, queue in list(self._queues.items()):
            try:
                self._send(peer, queue, share, now)
            except zmq.ZMQError:
                queue.frames.clear()
            still_s = now - queue.moved_s
            if not queue.frames or still_s > UNREAD_S:
                # All is sent, or it has left, so nothing counts as dropped.
                del self._queues[peer]
            else:
                pauses.append(min(max(still_s / 4, AGAIN_S), AGAIN_MOST_S))
        self._turn_s = now + min(pauses, default=float("inf"))

    def _send(self, peer: bytes, queue: _Queue, share: int, now: float) -> None:
        while queue.frames and share > 0:
            piece, size = _piece(queue.frames)
            if not self._took(peer, piece):
                return
            for _ in piece:
                queue.frames.popleft()
            queue.moved_s = now
            queue.size_bytes -= size
            self._moved_bytes += size
            share -= size

    def _took(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        try:
            send_parts(self._router, (peer, *frames))
        except zmq.Again:
            return False
        return True

    def give_back_memory(self) -> None:
        """Give back what libzmq has freed: glibc keeps it, in pieces between other objects."""
        if self._moved_bytes > TRIM_AFTER_BYTES and not self._queues:
            self._moved_bytes = 0
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)


def _piece(frames: Iterable[bytes]) -> tuple[list[bytes], int]:
    """The first frames that go into one message, and their size."""
    piece: list[bytes] = []
    size = 0
    for frame in frames:
        if piece and size + len(frame) > PIECE_BYTES:
            break
        piece.append(frame)
        size += len(frame)
    return piece, size
