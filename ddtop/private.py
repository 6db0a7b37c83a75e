"""Files and folders that are this user's alone: opened so that nobody can put another one in their
place.

What is checked is what was opened, never a name: between a look at a name and its opening somebody
else may change what stands there. A symlink is not followed, a pipe is not waited for, and what
belongs to somebody else is refused.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

_OTHERS_WRITE = 0o002


class ForeignError(OSError):
    """Not ours, or not what it should be; the text says what it is instead."""

    def __str__(self) -> str:
        return self.strerror or ""


class SharedError(ForeignError):
    """A folder of ours that others can enter. It is left as it is: they may work in it."""


def _foreign(text: str) -> ForeignError:
    return ForeignError(1, text)


def folder(path: Path) -> None:
    """Make this folder if need be, with those that are missing above it, for this user alone. One
    that is there is never changed.

    Raises:
        SharedError: it is ours, and others can enter it: a team's folder, or one with the modes of
        a usual umask.
        ForeignError: it is no folder, belongs to somebody else, or is everybody's.
        OSError: it cannot be made.
    """
    missing = []
    above = path
    while not above.exists() and above != above.parent and not above.is_symlink():
        missing.append(above)
        above = above.parent
    for one in reversed(missing):
        # Each by itself: the mode that `parents=True` gives those above is the umask's.
        with contextlib.suppress(FileExistsError):
            one.mkdir(mode=0o700)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise _foreign("is not a folder") from None
    except OSError as error:
        # What O_NOFOLLOW says of a symlink differs between file systems.
        if path.is_symlink():
            raise _foreign("is not a folder") from None
        if isinstance(error, PermissionError) and (owner := path.lstat().st_uid) != os.getuid():
            raise _foreign(f"belongs to uid {owner}, not to you") from None
        raise
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.getuid():
            raise _foreign(f"belongs to uid {found.st_uid}, not to you")
        if found.st_mode & (_OTHERS_WRITE | stat.S_ISVTX):
            raise _foreign("is everybody's, anybody may write there")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise SharedError(
                1, f"can be entered by others (mode {stat.S_IMODE(found.st_mode):04o})"
            )
    finally:
        os.close(descriptor)


def opened(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of this file of ours. With O_CREAT in `flags` it is made, readable for us alone.

    Raises:
        ForeignError: it is no regular file, or somebody else's.
        OSError: it cannot be opened; a symlink cannot.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid():
        return descriptor
    os.close(descriptor)
    raise _foreign(
        "is not a file"
        if not stat.S_ISREG(found.st_mode)
        else f"belongs to uid {found.st_uid}, not to you"
    )


def read(path: Path, at_most: int) -> bytes:
    """The first bytes of this file of ours.

    Raises:
        OSError: as `opened`.
    """
    with os.fdopen(opened(path), "rb") as file:
        return file.read(at_most)
