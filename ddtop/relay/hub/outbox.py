"""What a leaf has to send to its hub: facts first, then the newest frames in order.

The outbox is bounded. When the hub takes nothing, a new state of a rank replaces the one before,
and what does not fit is dropped, oldest first, and counted. A fact that was dropped is sent again
later, because the hub has no other source for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from ddtop.wire.frames import Envelope

BYTES_MAX = 8 << 20
BATCH_FRAMES, BATCH_BYTES = 128, 256 << 10
"""Limits of one message, so that neither side works on one for an eighth of a second."""
STATES = ("RankState", "HostState")
URGENT = ("Exit", "Hello", "Stacks", "Reply")
"""These are sent at once and do not wait for the next batch."""


class Outbox:
    """Frames that wait to be sent.

    `facts` gives the frames that a hub needs to understand the others.
    """

    def __init__(self, facts: Callable[[], Iterable[bytes]], bytes_max: int = BYTES_MAX) -> None:
        self._facts, self._bytes_max = facts, bytes_max
        self._first: deque[bytes] = deque()
        self._waiting: dict[object, bytes] = {}
        self._bytes = self._order = 0
        self._refused = self._lost_fact = False
        self.dropped = 0

    def __bool__(self) -> bool:
        return bool(self._first or self._waiting or self._lost_fact)

    def begin(self, frames: Iterable[bytes]) -> None:
        """Send all these frames first, because a new hub knows nothing of this host."""
        self._first = deque(frames)
        self._waiting.clear()
        self._bytes = 0
        self._refused = self._lost_fact = False

    def clear(self) -> None:
        """The hub is gone: drop what waits."""
        self.dropped += len(self._waiting)
        self.begin(())

    def put(self, envelope: Envelope, frame: bytes) -> None:
        """Queue a frame."""
        key: object
        if envelope.kind in STATES:
            key = (envelope.kind, envelope.rank, envelope.pid)
            before = self._waiting.pop(key, None)
            if before is not None:
                self._bytes -= len(before)
                # Within one interval the newer state has all that the older one had. If the hub
                # has refused messages, the older one is a gap in its history.
                self.dropped += self._refused
        else:
            self._order += 1
            key = self._order
        self._waiting[key] = frame
        self._bytes += len(frame)
        while self._bytes > self._bytes_max and len(self._waiting) > 1:
            oldest = next(iter(self._waiting))
            self._bytes -= len(self._waiting.pop(oldest))
            self._lost_fact = self._lost_fact or not isinstance(oldest, tuple)
            self.dropped += 1

    def send(self, send: Callable[[list[bytes]], bool], messages: int) -> None:
        """Send what waits, in at most `messages` messages, until one is refused."""
        for _ in range(messages):
            batch, taken = self._next()
            if not batch:
                break
            if not send(batch):
                self._refused = True
                return
            for key in taken:
                self._bytes -= len(self._waiting.pop(key))
            for _ in range(len(batch) - len(taken)):
                self._first.popleft()
            self._refused = False

    def _next(self) -> tuple[list[bytes], list[object]]:
        """The frames of the next message, and the keys of those that are new."""
        if not self._first and not self._waiting and self._lost_fact:
            self._lost_fact = False
            self._first.extend(self._facts())
        batch: list[bytes] = []
        taken: list[object] = []
        room = BATCH_BYTES
        for frame in self._first:
            room -= len(frame)
            if len(batch) >= BATCH_FRAMES or (room < 0 and batch):
                return batch, taken
            batch.append(frame)
        for key, frame in self._waiting.items():
            room -= len(frame)
            if len(batch) >= BATCH_FRAMES or (room < 0 and batch):
                break
            batch.append(frame)
            taken.append(key)
        return batch, taken
