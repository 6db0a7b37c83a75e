"""All threads' stacks of this process, taken by the agent's thread while it has the GIL.

Source: `sys._current_frames()`. Nothing is stopped: the other threads continue as soon as the
interpreter switches. No frame object outlives `take`, and no local is read. Caveat: Python frames
only. Check: `py-spy dump --pid PID`.
"""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType

from ddtop.agent.stacks.frames import FrameReader
from ddtop.redaction import redacted_start
from ddtop.wire.records import Stacks
from ddtop.wire.stacks import StackFrame, ThreadStack
from ddtop.wire.truncation import fitting

THREADS_MAX, FRAMES_MAX = 128, 64
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
    names = {
        thread.ident: redacted_start(str(thread.name), TEXT_CHARACTERS)
        for thread in threading.enumerate()
    }
    main, own = lead, threading.get_ident()
    if main is None or main not in sys._current_frames():
        main = threading.main_thread().ident
    frames = sys._current_frames()
    frames.pop(own, None)
    # The main thread first, so that it is not left out if there are too many threads.
    order = sorted(frames, key=lambda ident: (ident != main, ident))
    threads = tuple(
        _thread(frames[ident], ident, names.get(ident), ident == main, reader)
        for ident in order[:THREADS_MAX]
    )
    frames.clear()
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


def _thread(
    frame: FrameType | None, ident: int, name: str | None, main: bool, reader: FrameReader
) -> ThreadStack:
    found: list[StackFrame] = []
    omitted = 0
    while frame is not None:
        if len(found) < FRAMES_MAX:
            code = frame.f_code
            function = getattr(code, "co_qualname", code.co_name)[:TEXT_CHARACTERS]
            file = code.co_filename
            found.append(
                StackFrame(
                    function, file[-TEXT_CHARACTERS:], frame.f_lineno or 0, reader.is_user(file)
                )
            )
        else:
            omitted += 1
        frame = frame.f_back
    return ThreadStack(tuple(found), name, ident, main, omitted)
