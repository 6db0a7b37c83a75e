"""Folders for copies of journals of other hosts. A copy is kept while a viewer shows it.

A viewer that is killed cannot remove its folder, so the next viewer that needs a folder removes it.
A viewer holds a lock on its folder, and the kernel frees the lock when the process ends. A process
id in the name would not do: in another container it means another process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "ddtop-copy-"
_NAME = re.compile(rf"{_PREFIX}\w{{8}}")
YOUNG_S = 60.0
"""A folder younger than this is never removed: its viewer may not have locked it yet."""


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A new folder that only this user can read; it is removed at the end.

    Raises:
        OSError: it cannot be made.
    """
    sweep()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name, contextlib.ExitStack() as stack:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        with contextlib.suppress(
            OSError
        ):  # On a file system without locks nothing can be removed safely.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Path(name)


def sweep() -> None:
    """Remove the folders of this user whose process has ended."""
    with contextlib.suppress(OSError):
        for path in Path(tempfile.gettempdir()).iterdir():
            if _NAME.fullmatch(path.name):
                _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        found = os.fstat(descriptor)
        if (
            found.st_uid != os.getuid()
            or stat.S_IMODE(found.st_mode) != 0o700
            or time.time() - found.st_mtime < YOUNG_S
        ):
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return
    finally:
        os.close(descriptor)
