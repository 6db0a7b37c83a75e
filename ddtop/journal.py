"""Records in a file and back: for now the last state of a run, which the views read when its relay is gone.

A file is a line that names format and version, then frames, each behind its length and checksum. It is written whole
and renamed into place; a reader takes every whole frame before the first damage and says where that is.
"""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ddtop.wire.frames import FRAME_BYTES_MAX

HEAD = b"ddtop journal 1\n"
_FRAME = struct.Struct("<II")
FILE_BYTES_MAX = 64 << 20


class JournalError(Exception):
    """The file cannot be read as a journal at all; the text says why."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The whole frames of a file; `damage` says where and why the reading stopped early."""

    frames: tuple[bytes, ...]
    damage: str | None


def write(path: Path, frames: Iterable[bytes]) -> None:
    """Write the frames, whole or not at all.

    Raises:
        OSError: the disk is full, the folder cannot be written, ...
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(HEAD)
            for frame in frames:
                file.write(_FRAME.pack(len(frame), zlib.crc32(frame)))
                file.write(frame)
        os.rename(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: Path) -> Reading:
    """All whole frames of the file.

    Raises:
        JournalError: no such file, not ours, or of another version.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX)
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from None
    if not data.startswith(HEAD):
        version = data[:32].partition(b"\n")[0].decode("ascii", "replace")
        known = version.startswith("ddtop journal")
        raise JournalError(f"{path} is {version!r}, this ddtop reads 1" if known else f"{path} is not a ddtop journal")
    return parse(data[len(HEAD) :])


def parse(data: bytes) -> Reading:
    """The frames behind the head line."""
    frames: list[bytes] = []
    at = 0
    while at < len(data):
        if at + _FRAME.size > len(data):
            return Reading(tuple(frames), f"cut off inside a frame head at byte {at}")
        size, checksum = _FRAME.unpack_from(data, at)
        start = at + _FRAME.size
        if size > FRAME_BYTES_MAX:
            return Reading(tuple(frames), f"damaged frame length at byte {at}")
        frame = data[start : start + size]
        if len(frame) < size:
            return Reading(tuple(frames), f"cut off inside a frame at byte {at}")
        if zlib.crc32(frame) != checksum:
            return Reading(tuple(frames), f"damaged frame at byte {at}")
        frames.append(frame)
        at = start + size
    return Reading(tuple(frames), None)
