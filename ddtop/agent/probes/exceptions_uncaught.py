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
                lambda: note(
                    running, arguments.exc_type, arguments.exc_value, arguments.exc_traceback, name, _leads(running)
                ),
            )
        return thread_before(arguments)

    sys.excepthook, threading.excepthook = hook, thread_hook


def _leads(running: Runtime) -> bool:
    """The calling thread is the one that trains; the agent's last look may be older than its first step."""
    own = threading.get_ident()
    return own != running.main_id and own in (running.stepper, running.lead_id)


def note(
    running: Runtime,
    kind: type[BaseException],
    error: BaseException | None,
    traceback: TracebackType | None,
    thread: str,
    leads: bool = False,
) -> None:
    """Write the exception to the state page and hand it to the next record. `leads`: it ends the thread that trained."""
    if not running.is_here():
        return

    from ddtop.agent.probes.place import user_frame_of
    from ddtop.wire import frames
    from ddtop.wire.records import LastException, Place

    if running.exception is not None and thread != "main" and not (leads and not running.exception.leads):
        return
    found = user_frame_of(traceback, running.frames)
    text = one_line(error)
    running.exception = LastException(
        kind.__name__,
        text,
        time.time_ns(),
        Place(found[0], found[1], found[2]) if found else None,
        thread,
        leads,
    )
    running.page.write_exception(frames.encoded(running.exception))
    running.wake()


def one_line(error: BaseException | None) -> str:
    """The exception's text without line breaks and secrets; what is cut shows as an ellipsis."""
    from ddtop.redaction import TEXT_CHARACTERS_MAX, redacted_start

    # Cut first: the text of an exception may be a whole batch. One character more tells the next cut that something is missing.
    text = redacted_start(str(error)[: TEXT_CHARACTERS_MAX + 1], TEXT_CHARACTERS_MAX)
    text = " ".join(text.split())
    return text if len(text) <= TEXT_CHARACTERS else text[: TEXT_CHARACTERS - 1] + "…"


def note_last(running: Runtime) -> None:
    """At exit: an exception whose hook somebody replaced is still in `sys.last_value`."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if running.exception is None and isinstance(error, BaseException):
        note(running, type(error), error, error.__traceback__, "main")
