"""Exceptions that nothing caught: the hooks that are there keep running, ours only looks first."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddtop.agent.runtime import Runtime

TEXT_CHARACTERS = 500


def install(running: Runtime) -> None:
    """Chain `sys.excepthook` and `threading.excepthook`."""
    before, thread_before = sys.excepthook, threading.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> Any:
        running.guarded("exceptions", lambda: note(running, kind, error, traceback, "main"))
        return before(kind, error, traceback)

    def thread_hook(arguments: Any) -> Any:
        name = arguments.thread.name if arguments.thread is not None else "thread"
        if arguments.exc_type is not SystemExit:
            running.guarded(
                "exceptions",
                lambda: note(running, arguments.exc_type, arguments.exc_value, arguments.exc_traceback, name),
            )
        return thread_before(arguments)

    sys.excepthook, threading.excepthook = hook, thread_hook


def note(
    running: Runtime,
    kind: type[BaseException],
    error: BaseException | None,
    traceback: TracebackType | None,
    thread: str,
) -> None:
    """Write the exception to the state page and hand it to the next record."""
    if not running.is_here():
        return
    import msgspec

    from ddtop.agent.place import user_frame_of
    from ddtop.wire.records import LastException, Place

    if running.exception is not None and thread != "main":
        return
    found = user_frame_of(traceback, running.frames)
    text = " ".join(str(error).split())[:TEXT_CHARACTERS]
    running.exception = LastException(
        kind.__name__,
        text,
        time.time_ns(),
        Place(found[0], found[1], found[2]) if found else None,
        thread,
    )
    running.page.write_exception(msgspec.msgpack.encode(running.exception))
    running.wake()


def note_last(running: Runtime) -> None:
    """At exit: an exception whose hook somebody replaced is still in `sys.last_value`."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if running.exception is None and isinstance(error, BaseException):
        note(running, type(error), error, error.__traceback__, "main")
