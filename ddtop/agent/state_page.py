"""Writes the state page (layout: `wire.page`).

The page is a file, so that the relay can read the last state of a rank that has died. A memfd would
leave a descriptor in the job. The file is allocated whole with posix_fallocate and never truncated:
a sparse page on a full tmpfs would be a SIGBUS in the watched job. If no file can be made, the page
is heap memory: the probes work as usual, but the relay cannot read it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time
from pathlib import Path
from threading import get_ident

from ddtop import private, registry
from ddtop.wire import page as layout
from ddtop.wire.records import LastCall

_CALLS = slice(
    layout.SLOT_STARTS.start + layout.SLOT_CALL, layout.SLOT_STARTS.stop, layout.SLOT_STARTS.step
)


class StatePage:
    """The page of this process. The program's threads write `words`, one store a word.

    In a forked child `words` is replaced by heap memory, so a wrapper must read it at each call.
    """

    def __init__(self, pid: int, start_ticks: int) -> None:
        self.path: Path | None = None
        self.fallback: str | None = None
        self._map: mmap.mmap | None = None
        for folder in (Path("/dev/shm"), Path("/tmp")):
            try:
                self._map = self._make(folder, pid, start_ticks)
                break
            except OSError as error:
                self.fallback = f"{folder}: {error.strerror or error}"
        self._use(
            memoryview(self._map)
            if self._map is not None
            else memoryview(bytearray(layout.PAGE_BYTES))
        )
        words = self.words
        words[layout.VERSION_AT] = layout.VERSION
        words[layout.MAGIC_AT] = layout.MAGIC

    def _make(self, folder: Path, pid: int, start_ticks: int) -> mmap.mmap:
        home = folder / registry.pages_folder()
        private.folder(home)
        path = home / f"{pid}-{start_ticks}.page"
        # An existing file is not ours, because a pid with its start time exists only once. A
        # process that has it open could truncate it.
        path.unlink(missing_ok=True)
        descriptor = private.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(descriptor, 0, layout.PAGE_BYTES)
            mapped = mmap.mmap(descriptor, layout.PAGE_BYTES)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self.path, self.fallback = path, None
        return mapped

    def _use(self, memory: memoryview) -> None:
        self._bytes = memory
        self.words = memory[: layout.EXCEPTION_AT_BYTES].cast("q")

    def mpi_part(self) -> memoryview:
        """The bytes that MPI's wrappers write, laid out in `wire.mpi`."""
        return self._bytes[layout.MPI_AT_BYTES : layout.PAGE_BYTES]

    def forget(self) -> None:
        """In a forked child: write to separate memory from now on, because the file belongs to the
        parent."""
        self.path = None
        self._use(memoryview(bytearray(layout.PAGE_BYTES)))

    def remove(self) -> None:
        """Unlink the file; the mapping stays until the process ends."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def remove_with_folder(self) -> None:
        """The same, and the folder of this pid namespace where no other page is in it."""
        self.remove()
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.parent.rmdir()

    def write(self, part: layout.Part, data: bytes) -> None:
        """Put an encoded record on the page; readers retry while the sequence is odd. Of one that
        is too long they find none."""
        (sequence_at, start, end), words = part, self.words
        data = data if len(data) <= end - start else b""
        words[sequence_at] += 1
        self._bytes[start : start + len(data)] = data
        words[sequence_at + 1] = len(data)
        words[sequence_at] += 1

    def enter_call(self, call: int, peer: int = layout.NO_PEER, tag: int = 0) -> int:
        """Note a call that this thread is about to make.

        Returns the slot to leave, -1 if all slots are taken. Calls of one thread nest: a wrapped
        call that calls a wrapped call takes a second slot.
        """
        words = self.words
        for at in layout.SLOT_STARTS:
            if words[at + layout.SLOT_CALL] == 0:
                words[at + layout.SLOT_SEQUENCE] += 1
                words[at + layout.SLOT_THREAD] = ctypes.c_int64(get_ident()).value
                words[at + layout.SLOT_SINCE] = time.monotonic_ns()
                words[at + layout.SLOT_PEER], words[at + layout.SLOT_TAG] = peer, tag
                words[at + layout.SLOT_CALL] = call
                words[at + layout.SLOT_SEQUENCE] += 1
                return at
        return -1

    def leave_call(self, at: int) -> None:
        """The call of this slot has returned."""
        if at >= 0:
            self.words[at + layout.SLOT_CALL] = 0

    def write_call(self, at: int, text: bytes) -> None:
        """Put an encoded LastCall on the page, which is about to be made."""
        size = len(text) if len(text) <= layout.CALL_BYTES_MAX else 0
        begin = 8 * (at + layout.CALL_TEXT)
        self.words[at + layout.CALL_BYTES] = 0
        self._bytes[begin : begin + size] = text[:size]
        self.words[at + layout.CALL_BYTES] = size

    def last_calls(self) -> tuple[LastCall, ...]:
        """The collective calls that are on the page."""
        return tuple(layout.last_calls(self._bytes))

    def open_calls(self) -> list[tuple[int, int, int, int, int]]:
        """(call, since monotonic ns, peer, tag, thread) of the calls that have not returned."""
        words = self.words
        if not any(words[_CALLS].tolist()):
            return []
        found = []
        for at in layout.SLOT_STARTS:
            if 0 < words[at + layout.SLOT_CALL] < len(layout.CALLS):
                found.append(
                    (
                        words[at + layout.SLOT_CALL],
                        words[at + layout.SLOT_SINCE],
                        words[at + layout.SLOT_PEER],
                        words[at + layout.SLOT_TAG],
                        words[at + layout.SLOT_THREAD],
                    )
                )
        return found
