"""Which thread of a rank trains: the main thread, or the one for which the main thread waits. Pure.

Ray Train runs the training in a thread, and so do programs with an executor. Their main threads
wait for that thread all the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ddtop.model.stacks.frames import Owner, owner_of
from ddtop.wire.frame_kinds import word_of
from ddtop.wire.stacks import StackFrame, ThreadStack

_WAITS = frozenset({"future", "exit", "rpc-shutdown"})
"""Meanings of frames in which a main thread waits for other threads of its process."""
_JOINS = (("/threading.py", "join"), ("/ray/_private/worker.py", "main_loop"))
"""The same for frames without such a meaning: `join` is a lock like others there."""
_COMMUNICATES = "/torch/distributed/"


def training_thread(
    threads: Sequence[ThreadStack], tids: Mapping[int, int]
) -> tuple[ThreadStack, int | None] | None:
    """The thread to judge the rank by, with its kernel id, None for the main thread.

    None if it is not known which one is the main thread. `tids`: kernel ids by Python's. Another
    thread is chosen if the main thread waits for threads, and exactly one of these runs the
    program's own code, or exactly one communicates.
    """
    main = next((thread for thread in threads if thread.main), None)
    if main is None:
        return None
    if not _waits_for_threads(main):
        return main, None
    own = [thread for thread in threads if not thread.main and _runs_own_code(thread)]
    if len(own) > 1:
        own = [thread for thread in own if _communicates(thread)]
    tid = tids.get(own[0].thread_id or 0) if len(own) == 1 else None
    return (own[0], tid) if tid is not None else (main, None)


def marked(threads: Sequence[ThreadStack], trains: ThreadStack) -> tuple[ThreadStack, ...]:
    """The same stacks; this one is that of the rank's thread."""
    return tuple(msgspec.structs.replace(one, main=one is trains) for one in threads)


def _waits_for_threads(main: ThreadStack) -> bool:
    at = next((n for n, frame in enumerate(main.frames) if owner_of(frame) is Owner.USER), None)
    return any(_is_wait(frame) for frame in main.frames[:at])


def _is_wait(frame: StackFrame) -> bool:
    name = frame.function.rpartition(".")[2]
    if word_of(frame.file, name) in _WAITS:
        return True
    return any(frame.file.endswith(file) and name == function for file, function in _JOINS)


def _runs_own_code(thread: ThreadStack) -> bool:
    return any(owner_of(frame) is Owner.USER for frame in thread.frames)


def _communicates(thread: ThreadStack) -> bool:
    return any(_COMMUNICATES in frame.file for frame in thread.frames)
