"""The user's settings of the dashboard, kept between sessions in a small file in the config folder.

They are a convenience: no problem with the file is an error. A file that cannot be read is left as
it is, and the screen says so once; if it cannot be written, nothing happens.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ddtop.present.table.columns import FORMER

SCHEMA = "ddtop.setup/1"
FILE_BYTES_MAX = 1 << 16


class Setup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings.

    `theme`: None for the one that suits the terminal. `hidden`: the keys of hidden columns. The
    sort order is not kept: it was for one job, and in the next one the rank at fault would not be
    on top.
    """

    schema: str = SCHEMA
    theme: str | None = None
    hidden: tuple[str, ...] = ()
    interval_s: float = 0.5
    follow: bool = False


class Kept:
    """The file, and the settings last read from it or written to it. `problem`: why it is not used;
    shown on the screen once."""

    def __init__(self, path: Path | None, chosen: Mapping[str, Any] | None = None) -> None:
        """`path`: None to keep nothing. `chosen`: the settings in the user's own config file: they
        apply at the start of each session and are not written here.
        """
        self._path, self._chosen = path, dict(chosen or {})
        self._own, self.problem = (Setup(), None) if path is None else _read(path)
        self.setup = msgspec.structs.replace(self._own, **self._chosen)
        self._one_at_a_time = threading.Lock()

    def save(self, setup: Setup) -> None:
        """Write the settings atomically if they have changed. A file that could not be read is not
        overwritten."""
        with self._one_at_a_time, contextlib.suppress(OSError):
            if setup == self.setup:
                return
            self.setup = setup
            if self._path is None or self.problem is not None:
                return
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            own = {name: getattr(self._own, name) for name in self._chosen}
            data = msgspec.json.encode(msgspec.structs.replace(setup, **own))
            _write(self._path, msgspec.json.format(data, indent=1) + b"\n")


def kept(chosen: Mapping[str, Any] | None = None) -> Kept:
    """This user's settings: `$XDG_CONFIG_HOME/ddtop/setup.json`, else in `~/.config`."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        # The XDG specification: a relative path is to be ignored.
        folder = Path(base) if os.path.isabs(base) else Path.home() / ".config"
    except RuntimeError:
        return Kept(None, chosen)
    return Kept(folder / "ddtop" / "setup.json", chosen)


def _read(path: Path) -> tuple[Setup, str | None]:
    left = f"your setup is not used, and left as it is: {path}"
    try:
        # A named pipe would block here until somebody writes into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return Setup(), None
    except OSError as error:
        return Setup(), f"{left}: {error.strerror}"
    try:
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return Setup(), f"{left} is no file"
            setup = msgspec.json.decode(file.read(FILE_BYTES_MAX), type=Setup)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Setup(), f"{left}: {error}"
    if setup.schema != SCHEMA:
        return Setup(), f"{left} is {setup.schema[:40]!r}, this ddtop reads {SCHEMA!r}"
    return _renamed(setup), None


def _renamed(setup: Setup) -> Setup:
    """Columns of an older ddtop, with their current keys."""
    hidden = dict.fromkeys(FORMER.get(key, key) for key in setup.hidden)
    return msgspec.structs.replace(setup, hidden=tuple(hidden))


def _write(path: Path, data: bytes) -> None:
    # A dotfile is often a link into a repository: what it points to is written, the link stays.
    path = Path(os.path.realpath(path))
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".setup-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.rename(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
