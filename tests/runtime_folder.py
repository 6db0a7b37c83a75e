"""A short folder for sockets. It is removed at the end even if a relay is still ending."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GONE_S = 10.0


@contextmanager
def runtime_folder() -> Iterator[Path]:
    """The path of a socket has at most 107 bytes, too few for pytest's own folders.

    A relay that ends removes its socket and closes its lock file; until then the folder cannot be
    removed. Fails if it is still there after `GONE_S`.
    """
    folder = Path(tempfile.mkdtemp(prefix="ddt-"))
    try:
        yield folder
    finally:
        end = time.monotonic() + GONE_S
        shutil.rmtree(folder, ignore_errors=True)
        while folder.exists():
            left = sorted(path.name for path in folder.rglob("*"))
            assert time.monotonic() < end, f"{folder} is still used: {left}"
            time.sleep(0.05)
            shutil.rmtree(folder, ignore_errors=True)
