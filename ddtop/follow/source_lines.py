"""Lines of the program's source around a frame, read on a separate thread: a file server that hangs
must not block the screen.

No call waits for a file. Lines that are still being read are returned by a later call.

The job, or a recording, says which file a frame is of, and may name any. So only source files of
Python are read that belong to the user of the processes, or to root in a Python's folders, and
none in a hidden folder, such as ~/.ssh.
"""

from __future__ import annotations

import os
import queue
import re
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ddtop.redaction import HIDDEN, is_on, redact, secret_name
from ddtop.words.units import SECOND_NS

FILE_BYTES_MAX = 4 << 20
"""A file that is larger than this was not written by a person."""
AROUND = 2
"""Lines shown before the frame's line, and one fewer behind it."""
LINE_CHARACTERS = 2000
"""Characters kept of a line: more than any screen is wide. A file of one line may be large."""
KEPT = 512
"""Number of excerpts that are kept."""
SUFFIXES = (".py", ".pyx")
_OF_PYTHON = re.compile(r"/(?:(?:site|dist)-packages|lib(?:32|64)?/python\d[^/]*)/")
"""The folders of an environment and of the standard library."""
_HIDDEN_FOLDER = re.compile(r"/\.(?!(?:cache|venv)/)")
"""Except those with code: of uv, of Hugging Face, of an environment beside the program."""
COARSE_CLOCK_NS = 2 * SECOND_NS
"""A file system's clock is coarser than the process table's: changes this close to the start are
not later than it."""


_owner = os.getuid()


def show_files_of(uid: int) -> None:
    """From now on this process shows files of this user. Before, our own: root may look at the
    processes of others."""
    global _owner
    _owner = uid


def owner() -> int:
    """The user whose files are shown."""
    return _owner


def is_hidden(path: str, start: int = 0) -> bool:
    """Whether a folder of the path is hidden, but for those with code."""
    return _HIDDEN_FOLDER.search(path, start) is not None


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Some lines of a file, `first` is the number of the first one. `changed`: the file is newer
    than the job's start, so that its lines may not be those that run; then there are none."""

    first: int = 0
    lines: tuple[str, ...] = ()
    changed: bool = False


WantedT = TypeVar("WantedT")
FoundT = TypeVar("FoundT")
Wanted = tuple[str, int, int]
"""File, line, and the start of the process that runs it (unix ns, 0: not known)."""


class Readings(Generic[WantedT, FoundT]):
    """What `read` has returned so far for what was asked. One thread calls all methods, another
    one reads. `again_s`: what is older is read again; None: never.
    """

    def __init__(self, read: Callable[[WantedT], FoundT], again_s: float | None = None) -> None:
        self._read_one, self._again_s = read, again_s
        self._known: dict[WantedT, FoundT] = {}
        self._asked_s: dict[WantedT, float] = {}
        self._open = 0
        self._questions: queue.SimpleQueue[WantedT] = queue.SimpleQueue()
        self._answered = threading.Condition()
        self._reader: threading.Thread | None = None

    def find(self, wanted: WantedT) -> FoundT | None:
        """What was read; None before."""
        with self._answered:
            found = self._known.get(wanted)
        now, asked_s = time.monotonic(), self._asked_s.get(wanted)
        old = asked_s is not None and self._again_s is not None and now - asked_s >= self._again_s
        if old or (asked_s is None and len(self._asked_s) < KEPT):
            self._asked_s[wanted] = now
            with self._answered:
                self._open += 1
            self._questions.put(wanted)
            if self._reader is None:
                # A daemon thread: one that hangs in a read must not keep the program from ending.
                self._reader = threading.Thread(target=self._read, name="file reader", daemon=True)
                self._reader.start()
        return found

    @property
    def pending(self) -> bool:
        """Whether something that was asked has not been read yet."""
        with self._answered:
            return self._open > 0

    def wait(self, seconds: float) -> None:
        """Wait until all that was asked has been read, at most this long."""
        with self._answered:
            self._answered.wait_for(lambda: not self._open, seconds)

    def _read(self) -> None:
        while True:
            wanted = self._questions.get()
            found = self._read_one(wanted)
            with self._answered:
                self._known[wanted] = found
                self._open -= 1
                self._answered.notify_all()


class Excerpts(Readings[Wanted, "Excerpt | None"]):
    """What was read of source so far.

    `shown` False, or DDTOP_SOURCE=0: no line of source is read or shown.
    """

    def __init__(self, shown: bool = True) -> None:
        super().__init__(lambda wanted: read_excerpt(*wanted))
        self._shown = shown and os.environ.get("DDTOP_SOURCE", "1") != "0"

    def get(self, file: str, line: int, started_unix_ns: int = 0) -> Excerpt | None:
        """The lines around this one if they have been read; None if not, or if there are none to
        read."""
        if not self._shown or not os.path.isabs(file):
            return None
        return self.find((file, line, started_unix_ns))


def read_excerpt(file: str, line: int, started_unix_ns: int = 0) -> Excerpt | None:
    """The lines around this one, without secrets; None where the file is not here, may not be
    shown, or has no such line."""
    try:
        real = os.path.realpath(file)
        # Without O_NONBLOCK the open of a named pipe would wait for a writer.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(real, flags) if _is_source(real) else -1
    except (OSError, ValueError):
        descriptor = -1
    if descriptor < 0:
        return None
    try:
        about = os.fstat(descriptor)
        if not _may_be_shown(real, about):
            return None
        if started_unix_ns and about.st_mtime_ns > started_unix_ns + COARSE_CLOCK_NS:
            return Excerpt(changed=True)
        with open(descriptor, "rb", closefd=False) as opened:
            text = opened.read(FILE_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return None
    first = max(line - AROUND, 1)
    cut = [
        one[:LINE_CHARACTERS].expandtabs(4).rstrip() for one in lines[first - 1 : line + AROUND - 1]
    ]
    hides = is_on() and _has_secrets(real)
    return Excerpt(first, tuple(one and HIDDEN if hides else redact(one) for one in cut))


def _is_source(path: str) -> bool:
    """Whether this is the name of a source file of Python, and not hidden."""
    # ~/.local/lib/python3.12 and ~/.conda/envs/x/lib/python3.12 are not hidden folders.
    environment = _OF_PYTHON.search(path)
    start = environment.end() - 1 if environment else 0
    return path.endswith(SUFFIXES) and not is_hidden(path, start)


def _may_be_shown(path: str, about: os.stat_result) -> bool:
    ours = about.st_uid == _owner or (about.st_uid == 0 and _OF_PYTHON.search(path) is not None)
    return ours and stat.S_ISREG(about.st_mode) and about.st_size <= FILE_BYTES_MAX


def _has_secrets(path: str) -> bool:
    """Whether a file of the program has the name of a secret: secrets.py."""
    name = os.path.basename(path).partition(".")[0]
    return _OF_PYTHON.search(path) is None and bool(secret_name(name))
