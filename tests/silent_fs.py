"""A file system that never answers, like a file server that hangs: a FUSE mount whose server reads
no requests.

A call on a path in it waits until the mount is ended, and is killable, as one on a hard NFS mount
is. Needs root and /dev/fuse.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def hangs(path: Path) -> Iterator[None]:
    """Every call on this folder, or on a path in it, waits. At the end of the block those calls
    fail and the folder is as before.
    """
    descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={descriptor},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if _libc.mount(b"silent", os.fsencode(path), b"fuse", 0, options.encode()) != 0:
        os.close(descriptor)
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        yield
    finally:
        _libc.umount2(os.fsencode(path), MNT_DETACH)
        # This ends the calls that wait.
        os.close(descriptor)


def _can_mount() -> bool:
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        return False
    with tempfile.TemporaryDirectory() as folder:
        try:
            with hangs(Path(folder)):
                return True
        except OSError:
            return False


NEEDS_FUSE = pytest.mark.skipif(not _can_mount(), reason="needs root and /dev/fuse")
