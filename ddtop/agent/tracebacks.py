"""Leaves no line of the agent in the program's tracebacks: it would look like the cause.

Python 3.11 and later raise an exception again with the traceback that it has by then; 3.10 keeps
the one with our frame. This module is loaded in every Python of a DDTOP=1 shell, so it imports
nothing.
"""

from __future__ import annotations

# The getter of Python: a class of the program may have its own.
_traceback_of = vars(BaseException)["__traceback__"].__get__
_OURS = "ddtop.agent."


def leave_out(error: BaseException) -> None:
    """Take out our frames, which come first; a `raise` without arguments adds none.

    The exception stays as it is in all else: its cause, its context, its notes.
    """
    traceback = _traceback_of(error)
    while traceback is not None and str(
        traceback.tb_frame.f_globals.get("__name__", "")
    ).startswith(_OURS):
        traceback = traceback.tb_next
    # An exception may refuse to have its attributes set: a frozen dataclass does.
    BaseException.with_traceback(error, traceback)


class _WithoutOurs:
    """`with without_ours:` around the call of the original."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None:
            leave_out(error)


without_ours = _WithoutOurs()
