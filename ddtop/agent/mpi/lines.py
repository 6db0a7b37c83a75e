"""Writes the MPI part of the state page: one line per thread."""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from struct import Struct
from threading import get_ident
from typing import Any

from ddtop.agent.mpi.communicators import Comm, Communicators
from ddtop.wire import mpi as layout

RING = 1024
"""Collectives that are remembered. Their times are used to find stragglers and the program's
pattern, and the last few to explain ranks that are blocked in a collective that this rank has
completed."""
MARKS_MAX = 1 << 16

Mark = tuple[int, int, int, int, bool]
"""Of a request: CALL, COMM, then PEER and TAG, or SEQ and SEQ_MARK; whether it is persistent."""
NO_MARK: Mark = (0, -1, layout.NONE, layout.NONE, False)
Past = tuple[Comm, int, int, int, int, int]
"""A collective that was entered: communicator, code, root, number, bytes, when (monotonic ns)."""


class Line:
    """One thread's place on the page. `inside`: it shows a call, or the thread has no place.

    `given`: the arguments of the collective that the thread is in. Other threads must not hold
    them: they could come to hold the last reference to a buffer of the program.
    """

    __slots__ = ("at_bytes", "call_at", "given", "inside", "serial", "thread")

    def __init__(self, index: int) -> None:
        self.call_at = layout.LINES_AT + index * layout.LINE_WORDS + layout.CALL
        self.at_bytes = (layout.LINES_AT + index * layout.LINE_WORDS) * 8
        self.inside = index < 0
        self.serial = 0
        self.thread = ctypes.c_int64(get_ident()).value
        self.given: tuple[Any, ...] = ()


class Lines:
    """All lines of this process, its communicators and its requests.

    The threads that call MPI write them.
    """

    def __init__(self, mpi: Any, part: memoryview, backend: str) -> None:
        self.part = part
        self.words = part[: layout.WORDS * 8].cast("q")
        self.communicators = Communicators(mpi, self.words, backend)
        self.comms = self.communicators.by_handle
        self.marks: dict[int, Mark] = {}
        self.by_thread: dict[int, Line] = {}
        self.ring: deque[Past] = deque(maxlen=RING)
        self.total = 0
        self.failed: tuple[str, int, Comm, int, int, int, int] | None = None
        self.nowhere = Comm(0, -1, (), None)
        self._overflow = Line(-1)
        self._given_out = 0
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        # The page belongs to the parent: nothing is written in a child, whatever it calls.
        self.by_thread.clear()
        self._given_out = layout.LINES

    def new_line(self) -> Line:
        """A line for the calling thread; if the page is full, one that is never shown."""
        if self._given_out >= layout.LINES:
            return self._overflow
        line = self.by_thread[get_ident()] = Line(self._given_out)
        self.words[line.call_at - layout.CALL + layout.THREAD] = line.thread
        self._given_out += 1
        return line

    def last(self, number: int) -> list[Past]:
        """The last `number` collectives, the oldest first. May be called on the agent's thread."""
        return list(self.ring)[-number:]

    def mark(self, handle: int, mark: Mark) -> None:
        """Remember what a request stands for. The next request with this handle replaces it."""
        if len(self.marks) < MARKS_MAX:
            self.marks[handle] = mark

    def write_parts(self, line: Line, parts: list[Mark]) -> None:
        """Write what the next call on this line waits for."""
        base = line.call_at - layout.CALL
        self.words[base + layout.PARTS] = len(parts)
        at = base + layout.PARTS_AT
        for number, (code, comm, what, tag, _) in enumerate(parts[: layout.PARTS_MAX]):
            place = at + number * layout.PART_WORDS
            words = self.words
            words[place], words[place + 1], words[place + 2], words[place + 3] = (
                code,
                comm,
                what,
                tag,
            )


PACK = Struct(f"={layout.HEAD_WORDS}q").pack_into
NOW = time.monotonic_ns
