"""Writes records to files and reads them back: the black box of a run, and the small files that a
relay writes atomically.

A file begins with a line that names format and version; then come frames, each after its length and
checksum. A file only grows, or is written elsewhere and renamed, so that it can be read at any
moment. A reader takes every complete frame before the first damage and reports where that is. A
black box has two halves: the file itself, and the older one (`.1`) beside it. A crash at the seam
of a ring in one file would lose both of its ends.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ddtop import private
from ddtop.wire.frames import FRAME_BYTES_MAX

HEAD = b"ddtop journal 1\n"
_FRAME = struct.Struct("<II")
FILE_BYTES_MAX = 64 << 20
"""`read` holds a file's frames in memory; a `Reader` holds one at a time and reads files of any
size.
"""
OLDER = ".1"
"""The suffix of the older half of a black box."""
CARRIED_PART = 4
"""The carried frames at the beginning of a new half may take one part in so many of it. In a world
whose Hellos alone are larger, they are cut.
"""
KNOWN_AGAIN_MAX = 1 << 18
"""How many frames are remembered while reading, so that carried frames are returned only once."""


class JournalError(Exception):
    """The file cannot be read as a journal at all; the text says why."""


@dataclass(frozen=True, slots=True)
class JournalFrames:
    """The complete frames of a file. `damage`: where and why the reading stopped early."""

    frames: tuple[bytes, ...]
    damage: str | None


def write(path: Path, frames: Iterable[bytes]) -> None:
    """Write the frames atomically.

    Raises:
        OSError: the disk is full, the folder cannot be written, ...
    """
    with private.written(path) as file:
        file.write(HEAD)
        for frame in frames:
            file.write(_pack(frame))


def _pack(frame: bytes) -> bytes:
    return _FRAME.pack(len(frame), zlib.crc32(frame)) + frame


class Journal:
    """The black box of a run, being written: at most `budget_bytes` on disk.

    At half of the budget the file becomes the older half, in place of the one before, and a new one
    begins with the frames of `carried`, without which a reader could not understand the rest. A
    file that is there already is continued. One thread at a time; nothing is opened before the
    first `append`.
    """

    def __init__(
        self, path: Path, budget_bytes: int, carried: Callable[[], Iterable[bytes]]
    ) -> None:
        self.path = path
        self._half = budget_bytes // 2
        self._carried = carried
        self._descriptor: int | None = None
        self._size = self._begun_size = 0

    @property
    def batch_bytes_max(self) -> int:
        """The most that one `append` may be given (or else one frame), so that the budget holds."""
        return self._half // CARRIED_PART

    def append(self, frames: Iterable[bytes]) -> None:
        """Write these frames: all of them, or none if it raises.

        Raises:
            OSError: the disk is full, the folder cannot be written, ...
        """
        data = b"".join(_pack(frame) for frame in frames)
        if self._descriptor is None:
            self._open()
        if self._size + len(data) > self._half and self._size > self._begun_size:
            self._begin()
        assert self._descriptor is not None
        try:
            _write_all(self._descriptor, data, self._size)
        except OSError:
            self._take_back()
            raise
        self._size += len(data)

    def renew(self) -> None:
        """Write the carried frames again, because frames were lost: a reader needs them to
        understand the rest.

        Raises:
            OSError: as `append`.
        """
        self.append(self._some_carried())

    def sync(self) -> None:
        """Flush the written data to the disk.

        Raises: OSError: that failed.
        """
        if self._descriptor is not None:
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file; the next `append` opens it again."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _open(self) -> None:
        try:
            # Another user's file is neither written nor moved: this user must be told about it.
            descriptor = private.open_file(self.path, os.O_RDWR)
        except FileNotFoundError:
            self._begin()
            return
        try:
            size = _whole_bytes(descriptor)
            if size is not None:
                # The incomplete frame at the end is cut off: its writer died, and nobody will
                # finish it.
                os.ftruncate(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        if size is None:
            os.close(descriptor)
            self._begin()
        else:
            self._descriptor, self._size, self._begun_size = descriptor, size, len(HEAD)

    def _begin(self) -> None:
        """Start a new file; an existing one becomes the older half, whatever it contains."""
        head = HEAD + b"".join(_pack(frame) for frame in self._some_carried())
        descriptor, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".new-")
        try:
            _write_all(descriptor, head, 0)
            os.fdatasync(descriptor)
            if os.path.lexists(self.path):
                os.rename(self.path, older_half(self.path))
            os.rename(temporary, self.path)
        except OSError:
            os.close(descriptor)
            Path(temporary).unlink(missing_ok=True)
            raise
        self.close()
        self._descriptor, self._size, self._begun_size = descriptor, len(head), len(head)

    def _some_carried(self) -> list[bytes]:
        kept, room = [], self._half // CARRIED_PART
        for frame in self._carried():
            room -= len(frame) + _FRAME.size
            if room < 0:
                break
            kept.append(frame)
        return kept

    def _take_back(self) -> None:
        """Remove an incomplete frame: frames after it could not be read."""
        assert self._descriptor is not None
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError:
            self.close()


def older_half(path: Path) -> Path:
    """The path of the older half of a black box."""
    return path.parent / (path.name + OLDER)


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def _whole_bytes(descriptor: int) -> int | None:
    """The offset from which an existing journal can be continued; None if it cannot be."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        if file.read(len(HEAD)) != HEAD:
            return None
        size = len(HEAD)
        found = _frames(file, size)
        try:
            while True:
                size += len(next(found)) + _FRAME.size
        except StopIteration as end:
            return size if end.value is None or end.value.startswith("cut off") else None


def _frames(file: BinaryIO, at: int) -> Generator[bytes, None, str | None]:
    """The frames from here on, which is the file's byte `at`; returns the damage that ended the
    reading."""
    while head := file.read(_FRAME.size):
        if len(head) < _FRAME.size:
            return f"cut off inside a frame head at byte {at}"
        size, checksum = _FRAME.unpack(head)
        # Zeros, as a crashed file system leaves them, would read as empty frames with the right
        # checksum.
        if not 0 < size <= FRAME_BYTES_MAX:
            return f"damaged frame length at byte {at}"
        frame = file.read(size)
        if len(frame) < size:
            return f"cut off inside a frame at byte {at}"
        if zlib.crc32(frame) != checksum:
            return f"damaged frame at byte {at}"
        yield frame
        at += _FRAME.size + size
    return None


def _open_file(path: Path, ours: bool = False) -> BinaryIO:
    """The open file, positioned after its head line. `ours`: only if it is this user's.

    Raises:
        JournalError: no such file, not ours, or of another version.
    """
    try:
        # A named pipe would block here until somebody writes to it.
        descriptor = (
            private.open_file(path)
            if ours
            else os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise JournalError(f"cannot read {path}: {why}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise JournalError(f"{path} is not a file")
    file = os.fdopen(descriptor, "rb", buffering=1 << 18)
    try:
        head = file.read(len(HEAD))
    except OSError as error:
        file.close()
        raise JournalError(f"cannot read {path}: {error.strerror}") from None
    if head == HEAD:
        return file
    file.close()
    if not head:
        raise JournalError(f"{path} is empty")
    version = head.partition(b"\n")[0].decode("ascii", "replace")
    known = version.startswith("ddtop journal")
    raise JournalError(
        f"{path} is {version!r}, this ddtop reads 1" if known else f"{path} is not a ddtop journal"
    )


def read(path: Path, ours: bool = False) -> JournalFrames:
    """All complete frames in the first FILE_BYTES_MAX of one file. `ours`: only if it is this
    user's, and no symlink.

    Raises:
        JournalError: no such file, not ours, or of another version.
    """
    with _open_file(path, ours) as file:
        try:
            return parse(file.read(FILE_BYTES_MAX - len(HEAD)), len(HEAD))
        except OSError as error:
            raise JournalError(f"cannot read {path}: {error.strerror}") from None


def parse(data: bytes, at: int = 0) -> JournalFrames:
    """The frames after the head line; `at`: the offset of the first one in the file."""
    frames = []
    found = _frames(io.BytesIO(data), at)
    try:
        while True:
            frames.append(next(found))
    except StopIteration as end:
        return JournalFrames(tuple(frames), end.value)


class Reader:
    """The complete frames of a black box, older half first, each once. Can be iterated over once.

    `damage` says where and why the reading of a half stopped early; complete when the iteration is.

    Raises:
        JournalError: neither half is a journal; the text is about the newer one, or the older if
        only that is there.
    """

    def __init__(self, path: Path) -> None:
        self._damage: list[str] = []
        self._halves: list[tuple[BinaryIO, str]] = []
        missing = ""
        for half in (path, older_half(path)):
            try:
                self._halves.append((_open_file(half), half.name))
            except JournalError as error:
                if os.path.lexists(half):
                    self._damage.append(str(error))
                missing = missing or str(error)
        if not self._halves:
            raise JournalError((self._damage or [missing])[0])
        if os.path.sameopenfile(self._halves[0][0].fileno(), self._halves[-1][0].fileno()):
            # The newer half may have become the older one between the two openings.
            for file, _ in self._halves[1:]:
                file.close()
            del self._halves[1:]
        self._halves.reverse()
        self._bytes = sum(os.fstat(file.fileno()).st_size for file, _ in self._halves)
        self._bytes_read = 0

    @property
    def damage(self) -> str | None:
        """The damage found so far."""
        return "; ".join(self._damage) or None

    @property
    def read_ratio(self) -> float:
        """The share of the files that has been read."""
        return min(self._bytes_read / self._bytes, 1.0) if self._bytes else 1.0

    def __iter__(self) -> Iterator[bytes]:
        known: set[int] = set()
        while self._halves:
            file, name = self._halves[0]
            with file:
                for frame in self._of_half(file, name):
                    self._bytes_read += len(frame) + _FRAME.size
                    # Frames contain times in nanoseconds: two equal frames are the same frame.
                    mark = hash(frame)
                    if mark in known:
                        continue
                    if len(known) < KNOWN_AGAIN_MAX:
                        known.add(mark)
                    yield frame
            self._halves.pop(0)

    def _of_half(self, file: BinaryIO, name: str) -> Iterator[bytes]:
        try:
            damage = yield from _frames(file, len(HEAD))
        except OSError as error:
            damage = f"cannot be read on: {error.strerror}"
        if damage is not None:
            self._damage.append(f"{name}: {damage}")

    def close(self) -> None:
        """Close the files that were not read to the end."""
        for file, _ in self._halves:
            file.close()
        self._halves.clear()
