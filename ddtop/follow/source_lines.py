"""Lines of the program's source around a frame, read on a separate thread: a file server that hangs
must not block the screen.

No call waits for a file. Lines that are still being read are returned by a later call.
"""

from __future__ import annotations

import os
import queue
import stat
import threading
from dataclasses import dataclass

from ddtop.redaction import redact
from ddtop.words.units import SECOND_NS

FILE_BYTES_MAX = 4 << 20
"""A file that is larger than this was not written by a person."""
AROUND = 2
"""Lines shown before the frame's line, and one fewer behind it."""
LINE_CHARACTERS = 2000
"""Characters kept of a line: more than any screen is wide. A file of one line may be large."""
KEPT = 512
"""Number of excerpts that are kept."""
COARSE_CLOCK_NS = 2 * SECOND_NS
"""A file system's clock is coarser than the process table's: changes this close to the start are
not later than it."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Some lines of a file, `first` is the number of the first one. `changed`: the file is newer
    than the job's start, so that its lines may not be those that run; then there are none."""

    first: int = 0
    lines: tuple[str, ...] = ()
    changed: bool = False


Wanted = tuple[str, int, int]
"""File, line, and the start of the process that runs it (unix ns, 0: not known)."""


class Excerpts:
    """What was read so far. All methods are called by one thread, the reading is done by another.

    `shown` False, or DDTOP_SOURCE=0: no line of source is read or shown.
    """

    def __init__(self, shown: bool = True) -> None:
        self._shown = shown and os.environ.get("DDTOP_SOURCE", "1") != "0"
        self._known: dict[Wanted, Excerpt | None] = {}
        self._asked: set[Wanted] = set()
        self._questions: queue.SimpleQueue[Wanted] = queue.SimpleQueue()
        self._answered = threading.Condition()
        self._reader: threading.Thread | None = None

    def get(self, file: str, line: int, started_unix_ns: int = 0) -> Excerpt | None:
        """The lines around this one if they have been read; None if not, or if there are none to
        read."""
        if not self._shown:
            return None
        wanted = (file, line, started_unix_ns)
        with self._answered:
            if wanted in self._known:
                return self._known[wanted]
        if wanted not in self._asked and len(self._asked) < KEPT and os.path.isabs(file):
            self._asked.add(wanted)
            self._questions.put(wanted)
            self._start()
        return None

    @property
    def pending(self) -> bool:
        """Whether a requested excerpt has not been read yet."""
        with self._answered:
            return len(self._known) < len(self._asked)

    def wait(self, seconds: float) -> None:
        """Wait until all requested excerpts have been read, at most this long."""
        with self._answered:
            self._answered.wait_for(lambda: len(self._known) >= len(self._asked), seconds)

    def _start(self) -> None:
        if self._reader is None:
            # A daemon thread: one that hangs in a read must not keep the program from ending.
            self._reader = threading.Thread(target=self._read, name="source reader", daemon=True)
            self._reader.start()

    def _read(self) -> None:
        while True:
            wanted = self._questions.get()
            excerpt = read_excerpt(*wanted)
            with self._answered:
                self._known[wanted] = excerpt
                self._answered.notify_all()


def read_excerpt(file: str, line: int, started_unix_ns: int = 0) -> Excerpt | None:
    """The lines around this one, without secrets; None where the file is not here, is no regular
    file, or has no such line."""
    try:
        # Without O_NONBLOCK the open of a named pipe would wait for a writer.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > FILE_BYTES_MAX:
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
    return Excerpt(
        first,
        tuple(
            redact(one[:LINE_CHARACTERS].expandtabs(4).rstrip())
            for one in lines[first - 1 : line + AROUND - 1]
        ),
    )
