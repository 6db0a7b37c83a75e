"""Opens files and folders that belong to this user alone, so that nobody can replace them by
others.

The checks are made on the open file, never on a name: between a check of a name and the opening,
another user could replace the file. Symlinks are not followed, pipes are not waited for, and files
of other users are refused.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_OTHERS_WRITE = 0o002


class ForeignError(OSError):
    """The file is not ours, or of the wrong kind; the text says what it is instead."""

    def __str__(self) -> str:
        return self.strerror or ""


class SharedError(ForeignError):
    """A folder of ours that others can enter. It is left unchanged: they may be using it."""


def _foreign_error(text: str) -> ForeignError:
    return ForeignError(1, text)


def folder(path: Path) -> None:
    """Create this folder if necessary, and its missing parents, for this user alone. An existing
    folder is never changed.

    Raises:
        SharedError: it is ours, and others can enter it: a team's folder, or one with the modes of
        a usual umask.
        ForeignError: it is not a folder, belongs to somebody else, or is everybody's.
        OSError: it cannot be made.
    """
    missing = []
    above = path
    while not above.exists() and above != above.parent and not above.is_symlink():
        missing.append(above)
        above = above.parent
    for one in reversed(missing):
        # One by one: `parents=True` would give the parents the mode of the umask.
        with contextlib.suppress(FileExistsError):
            one.mkdir(mode=0o700)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise _foreign_error("is not a folder") from None
    except OSError as error:
        # The error of O_NOFOLLOW for a symlink differs between file systems.
        if path.is_symlink():
            raise _foreign_error("is not a folder") from None
        if isinstance(error, PermissionError) and (owner := path.lstat().st_uid) != os.getuid():
            raise _foreign_error(f"belongs to uid {owner}, not to you") from None
        raise
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.getuid():
            raise _foreign_error(f"belongs to uid {found.st_uid}, not to you")
        if found.st_mode & (_OTHERS_WRITE | stat.S_ISVTX):
            raise _foreign_error("is everybody's, anybody may write there")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise SharedError(
                1, f"can be entered by others (mode {stat.S_IMODE(found.st_mode):04o})"
            )
    finally:
        os.close(descriptor)


def open_file(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of this file of ours. With O_CREAT in `flags` it is created, readable for us
    alone.

    Raises:
        ForeignError: it is not a regular file, or somebody else's.
        OSError: it cannot be opened; a symlink cannot.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid():
        return descriptor
    os.close(descriptor)
    raise _foreign_error(
        "is not a file"
        if not stat.S_ISREG(found.st_mode)
        else f"belongs to uid {found.st_uid}, not to you"
    )


@contextlib.contextmanager
def written(path: Path, mode: int = 0o600, only_if_absent: bool = False) -> Iterator[IO[bytes]]:
    """A file that is at this path once the block has ended; after an error it is not.

    The folder may be everybody's: the file is a new one with a name that nobody can guess, and no
    link that somebody has left there is followed. A link at `path` is replaced. `only_if_absent`:
    what is there stays.

    Raises:
        OSError: it cannot be written; FileExistsError only with `only_if_absent`.
    """
    new = path.with_name(f".new-{os.urandom(8).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(new, flags, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        (os.link if only_if_absent else os.rename)(new, path)
    finally:
        new.unlink(missing_ok=True)


def read(path: Path, at_most: int) -> bytes:
    """The first bytes of this file of ours.

    Raises:
        OSError: as `open_file`.
    """
    with os.fdopen(open_file(path), "rb") as file:
        return file.read(at_most)
