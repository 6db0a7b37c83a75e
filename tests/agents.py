"""A test's stand-in for an agent: it answers a relay's requests for stacks on a thread of its
own.
"""

from __future__ import annotations

import threading
import time

from ddtop import registry
from ddtop.link.rank_side import RankLink
from ddtop.wire import frames
from ddtop.wire.records import Command, StackFrame, Stacks, ThreadStack

STEP = StackFrame("train_step", "/home/ada/train.py", 88, True)
LOAD = StackFrame("load_image", "/home/ada/data.py", 40, True)


class Answering:
    """Answers every request on this link while the block runs."""

    def __init__(self, link: RankLink, rank: int, pid: int, frame: StackFrame = STEP) -> None:
        self._link, self._rank, self._pid, self._frame = link, rank, pid, frame
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Answering:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._link.wake()
        self._thread.join()

    def _serve(self) -> None:
        while not self._over.is_set():
            self._link.wait(0.05)
            while (data := self._link.receive()) is not None:
                record = frames.open_record(frames.open_envelope(data))
                if isinstance(record, Command) and record.name == "dump":
                    self._answer(record.arguments[0])

    def _answer(self, request: str) -> None:
        main = ThreadStack((self._frame,), "MainThread", 1, True)
        stacks = Stacks(request, self._rank, self._pid, time.time_ns(), "agent", (main,))
        self._link.send(
            frames.seal(
                stacks,
                sender=registry.relay_identity("r1"),
                unix_ns=time.time_ns(),
                mono_ns=time.monotonic_ns(),
                rank=self._rank,
                pid=self._pid,
            )
        )
