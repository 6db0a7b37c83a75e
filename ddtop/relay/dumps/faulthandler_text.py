"""Parses the text that faulthandler writes. Pure: text in, records out.

The writer is a signal handler: it writes a few bytes at a time, without a head, a length or an end,
every thread newest first, so the main thread comes last. A text that is read while it is written
may end anywhere. With more than a hundred threads, the main thread is never written. Seen in
CPython 3.10 to 3.14:

    Current thread 0x00007f7f (most recent call first):         the thread on which the signal's
        handler ran
    Thread 0x00007f7e [pt_data_worker] (most recent call first):    the name from 3.14 on
      Garbage-collecting
      File "/a/b\\xe9.py", line 12 in load
      <no Python frame>
      ...                                                        more than 100 frames
          (indented), or threads (not indented)

From 3.13 on, a stack of more than 100 frames ends after the hundredth without a mark. `<freed
thread state>`, not indented, ends a text of 3.14: the list of threads was lost.
"""

from __future__ import annotations

import re

from ddtop.wire.stacks import StackFrame, ThreadStack
from ddtop.wire.truncation import fitting

THREADS_MAX = 256
"""faulthandler stops at 100; a file may hold something else."""
FRAMES_MAX = 128
"""Frames kept of a thread."""
WRITTEN_MAX = 100
"""Frames that faulthandler writes of a thread."""
NAME_MAX = 1000
"""Characters of a path or a function; faulthandler cuts at 500 of them, before escapes."""
COLLECTING = "Garbage-collecting"
"""Function of the frame that stands for faulthandler's line of that name."""

_HEAD = re.compile(
    r"(?:Current thread|Thread) 0x([0-9a-f]{1,16})(?: \[(.{0,64})\])? \(most recent call first\):"
)
_LONE_HEAD = "Stack (most recent call first):"
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")
_HEAD_END = b" (most recent call first):\n"
_LOST_THREADS = ("...", "<freed thread state>")
_OUTERMOST = ("<module>", "_run_module_as_main")
_THREAD_BEGINS = "_bootstrap"
"""Outermost frame of a `threading.Thread`."""


def parse(text: str | bytes) -> tuple[ThreadStack, ...]:
    """Every thread in the text, in its order.

    Other lines are ignored.

    A last line without a newline is not read, because it may be half a name. `main` marks the
    thread that is listed last, unless more threads were to follow. `omitted` is a lower bound:
    faulthandler does not count what it leaves out.
    """
    threads: list[_Thread] = []
    cut = not (text.endswith("\n") if isinstance(text, str) else text.endswith(b"\n"))
    for line in _lines(text):
        if line in _LOST_THREADS:
            cut = True
            continue
        found = _head(line)
        if found is not None:
            threads.append(found)
        elif threads:
            threads[-1].take(line)
    if not threads:
        return ()
    last = threads[-1].stack(main=not cut and not threads[-1].started_by_another)
    return fitting(
        (
            *(thread.stack(main=False) for thread in threads[: min(len(threads), THREADS_MAX) - 1]),
            last,
        )
    )


def is_complete(data: bytes) -> bool:
    """Whether the main thread is complete: the text ends after a frame that can be the outermost
    one.

    This is a sign, not a proof. Between a module's frame and those of its importer a text looks
    complete for a few microseconds, so a caller reads again and accepts a text that has not grown.
    """
    if not data.endswith(b"\n"):
        return False
    last_thread = data[data.rfind(_HEAD_END) + len(_HEAD_END) :] if _HEAD_END in data else b""
    lines = _lines(last_thread)
    last = lines[-1] if lines else ""
    if (
        last in _LOST_THREADS
        or last == "  ..."
        or sum(line.startswith("  File ") for line in lines) >= WRITTEN_MAX
    ):
        return True
    # A thread without a frame that is not the last one is followed by an empty line at once, as all
    # threads are.
    if last.startswith("  <") and last.endswith(">"):
        return True
    frame = _frame(last)
    return frame is not None and frame.function in _OUTERMOST


class _Thread:
    """One thread while its lines are read."""

    def __init__(self, thread_id: int | None, name: str | None) -> None:
        self._thread_id = thread_id
        self._name = name
        self._history: list[StackFrame] = []
        self._omitted = 0
        self._cut = False

    @property
    def started_by_another(self) -> bool:
        """Whether it cannot be the main thread."""
        return bool(self._history) and self._history[-1].function == _THREAD_BEGINS

    def take(self, line: str) -> None:
        frame = StackFrame(COLLECTING, "", 0) if line == f"  {COLLECTING}" else _frame(line)
        if frame is None:
            self._cut |= line == "  ..."
        elif len(self._history) < FRAMES_MAX:
            self._history.append(frame)
        else:
            self._omitted += 1

    def stack(self, main: bool) -> ThreadStack:
        frames = tuple(self._history)
        full = len(frames) == WRITTEN_MAX and frames[-1].function not in (
            *_OUTERMOST,
            _THREAD_BEGINS,
        )
        return ThreadStack(
            frames, self._name, self._thread_id, main, self._omitted + (self._cut or full)
        )


def _lines(text: str | bytes) -> list[str]:
    raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
    # Not splitlines: it also splits at characters that a thread's name may hold.
    return raw.decode("utf-8", "replace").split("\n")[:-1]


def _head(line: str) -> _Thread | None:
    if line == _LONE_HEAD:
        return _Thread(None, None)
    match = _HEAD.fullmatch(line)
    return _Thread(int(match[1], 16), match[2] or None) if match else None


def _frame(line: str) -> StackFrame | None:
    """`  File "PATH", line N in NAME`; `???` stands for what is not known."""
    if not line.startswith("  File "):
        return None
    at = line.rfind(", line ")
    number, separator, function = line[at + 7 :].partition(" in ")
    path = line[7:at]
    if at < 7 or not separator or not (number == "???" or (number.isascii() and number.isdigit())):
        return None
    if path.startswith('"') and path.endswith('"') and len(path) >= 2:
        path = path[1:-1]
    elif path != "???":
        return None
    return StackFrame(
        _unescape(function),
        _unescape(path),
        int(number) if len(number) <= 9 and number != "???" else 0,
    )


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_character, text)[:NAME_MAX]


def _character(match: re.Match[str]) -> str:
    """The character behind an escape.

    A character that faulthandler does not escape is part of the name.

    Half a surrogate pair (a byte that is not UTF-8) stays escaped, because it could not be sent.
    """
    code = int(match[1] or match[2] or match[3], 16)
    if 32 <= code < 127 or 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        return match[0]
    return chr(code)
