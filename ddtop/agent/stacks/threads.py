"""All threads' stacks of this process, taken by the agent's thread.

Source: `ddtop.agent.stacks.walk`, one thread after the other. Each stack is of one moment, and the
other threads may run between two of them. No local is read. Caveat: Python frames only. Check:
`py-spy dump --pid PID`.
"""

from __future__ import annotations

import threading
import time

from ddtop.agent.stacks.frames import FrameReader
from ddtop.redaction import redacted_start
from ddtop.wire.records import Stacks
from ddtop.wire.stacks import StackFrame, ThreadStack
from ddtop.wire.truncation import fitting

THREADS_MAX, FRAMES_MAX, DEPTH_MAX = 128, 64, 5_000
"""Threads and frames of each that are sent, and how many frames are counted. To read 5,000 frames
takes 2 ms, in which no other thread runs."""
TEXT_CHARACTERS = 300


def take(
    request: str,
    rank: int | None,
    pid: int,
    reader: FrameReader,
    automatic: bool,
    lead: int | None = None,
) -> Stacks:
    """The stacks now.

    `lead`: Python's number of the rank's thread, None for the main thread. `pause_ns` of the record
    is how long this took, and so the longest time that other threads waited for the GIL.
    """
    began = time.perf_counter_ns()
    # One call of C, without threading's lock, which another thread may hold.
    known = threading._active.copy()  # type: ignore[attr-defined]
    names = {
        ident: redacted_start(str(thread.name), TEXT_CHARACTERS) for ident, thread in known.items()
    }
    idents = set(reader.walk.threads()) - {threading.get_ident()}
    main = lead if lead in idents else threading.main_thread().ident
    # The main thread first, so that it is not left out if there are too many threads.
    order = sorted(idents, key=lambda ident: (ident != main, ident))
    threads = tuple(
        _thread(ident, names.get(ident), ident == main, reader) for ident in order[:THREADS_MAX]
    )
    return Stacks(
        request=request,
        of_rank=rank,
        pid=pid,
        taken_unix_ns=time.time_ns(),
        method="agent",
        threads=fitting(threads),
        pause_ns=time.perf_counter_ns() - began,
        automatic=automatic,
        omitted_threads=max(0, len(order) - THREADS_MAX),
    )


def _thread(ident: int, name: str | None, main: bool, reader: FrameReader) -> ThreadStack:
    stack = reader.walk.stack(ident, DEPTH_MAX)
    found = tuple(
        StackFrame(
            qualname[:TEXT_CHARACTERS],
            file[-TEXT_CHARACTERS:],
            line or 0,
            reader.is_user(file),
        )
        for (file, _, qualname, line), _ in stack[:FRAMES_MAX]
    )
    return ThreadStack(found, name, ident, main, len(stack) - len(found))
