"""Exceptions that nothing caught.

Source: `sys.excepthook` and `threading.excepthook`. Existing hooks still run; ours runs first and
only reads. Caveat: `os._exit`, a signal and a crash in C code raise nothing. Check: the program's
stderr.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ddtop.agent import current
from ddtop.agent.guard import guard

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank
    from ddtop.wire.records import LastException

TEXT_CHARACTERS = 500


def install(rank: Rank) -> None:
    """Chain `sys.excepthook` and `threading.excepthook`."""
    before, thread_before = sys.excepthook, threading.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> Any:
        guard.run("exceptions", lambda: note(rank, kind, error, traceback, "main"))
        return before(kind, error, traceback)

    def thread_hook(arguments: Any) -> Any:
        name = arguments.thread.name if arguments.thread is not None else "thread"
        if arguments.exc_type is not SystemExit:
            guard.run(
                "exceptions",
                lambda: note(
                    rank,
                    arguments.exc_type,
                    arguments.exc_value,
                    arguments.exc_traceback,
                    name,
                    _leads(rank),
                ),
            )
        return thread_before(arguments)

    sys.excepthook, threading.excepthook = hook, thread_hook


def _leads(rank: Rank) -> bool:
    """Whether the calling thread is the training thread. The agent's last sample may be older than
    its first step."""
    own = threading.get_ident()
    return own != rank.main_id and own in (rank.stepper, rank.lead_id)


def note(
    rank: Rank,
    kind: type[BaseException],
    error: BaseException | None,
    traceback: TracebackType | None,
    thread: str,
    leads: bool = False,
) -> None:
    """Write the exception to the state page and to the next record.

    `leads`: it ends the thread that trained.
    """
    if current.get() is not rank:
        return

    from ddtop.agent.notes import LoaderNotes
    from ddtop.agent.probes.loader_workers import first_failed
    from ddtop.agent.stacks.frames import frames_of, user_frame_of
    from ddtop.wire.records import LastException, Place

    if rank.exception is not None and thread != "main" and not (leads and not rank.exception.leads):
        return
    found = user_frame_of(traceback, rank.frames)
    text = one_line(error)
    stack, omitted = frames_of(traceback, rank.frames)
    rank.exception = LastException(
        kind.__name__,
        text,
        time.time_ns(),
        Place(found[0], found[1], found[2]) if found else None,
        thread,
        leads,
        stack,
        omitted,
        first_failed(rank.notes[LoaderNotes]) if "DataLoader worker" in text else None,
    )
    rank.page.write_exception(_fitting(rank.exception))
    rank.wake()


def _fitting(exception: LastException) -> bytes:
    """The exception for the state page. Long paths may leave room for only a few frames."""
    import msgspec

    from ddtop.wire import frames
    from ddtop.wire.page import EXCEPTION_BYTES_MAX

    data = frames.encoded(exception)
    while len(data) > EXCEPTION_BYTES_MAX and exception.frames:
        kept = exception.frames[: len(exception.frames) // 2]
        left = exception.omitted + len(exception.frames) - len(kept)
        exception = msgspec.structs.replace(exception, frames=kept, omitted=left)
        data = frames.encoded(exception)
    return data


def one_line(error: BaseException | None) -> str:
    """The exception's text without line breaks and secrets; what is cut shows as an ellipsis."""
    from ddtop.redaction import TEXT_CHARACTERS_MAX, redacted_start

    # Cut first, because the text of an exception may be a whole batch. Keep one character more, so
    # that the next cut shows that something is missing.
    text = redacted_start(str(error)[: TEXT_CHARACTERS_MAX + 1], TEXT_CHARACTERS_MAX)
    text = " ".join(text.split())
    return text if len(text) <= TEXT_CHARACTERS else text[: TEXT_CHARACTERS - 1] + "…"


def note_last(rank: Rank) -> None:
    """At exit: an exception whose hook somebody replaced is still in `sys.last_value`."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if rank.exception is None and isinstance(error, BaseException):
        note(rank, type(error), error, error.__traceback__, "main")
