"""What other packages add to ddtop: findings, launchers, frameworks. docs/extend/plugin.md

Each is an entry point. Only packages whose name begins with `ddtop-` are asked, because a listing
of the folder shows them: to read the metadata of every installed package takes many times longer.
This module is loaded in every Python of a DDTOP=1 shell, so it imports nothing.
"""

from __future__ import annotations

import os
import stat
import sys

# Not at run time: see above.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint
    from typing import TypeVar

    Loaded = TypeVar("Loaded")

FINDINGS, LAUNCHERS, FRAMEWORKS = "ddtop.findings", "ddtop.launchers", "ddtop.frameworks"
FILE_BYTES_MAX = 8192
"""A package adds a few plugins, a line each. A longer file would slow down every Python."""
REASON_CHARACTERS = 200
left_out: dict[str, str] = {}
"""Why a plugin of this process is left out, by its name."""
_found: dict[str, tuple[EntryPoint, ...]] | None = None


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The plugins of a group. The folders are listed once in a process.

    Check: `ddtop doctor` lists them.
    """
    global _found
    if _found is None:
        _found = {}
        for folder in sys.path:
            # Programs put paths there too, although only text is read.
            if "-packages" in str(folder):
                _read(str(folder), _found)
    return _found.get(group, ())


def installed() -> tuple[EntryPoint, ...]:
    """The plugins of all groups."""
    groups = (FINDINGS, LAUNCHERS, FRAMEWORKS)
    return tuple(point for group in groups for point in entry_points(group))


def _read(folder: str, found: dict[str, tuple[EntryPoint, ...]]) -> None:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        if name.startswith("ddtop_") and name.endswith(".dist-info"):
            from importlib.metadata import EntryPoint

            group = ""
            try:
                for line in _text(os.path.join(folder, name, "entry_points.txt")).splitlines():
                    line = line.strip()
                    key, assigns, value = line.partition("=")
                    if line.startswith("["):
                        group = line.strip("[] ")
                    elif assigns and not line.startswith("#"):
                        point = EntryPoint(key.strip(), value.strip(), group)
                        known = found.get(group, ())
                        # lib64 is often a link to lib, and both are on the path.
                        found[group] = known if point in known else (*known, point)
            except FileNotFoundError:
                continue
            except Exception as error:  # noqa: BLE001 - a file of another package
                left_out[name] = reason(error)


def _text(path: str) -> str:
    """The text of this file. A pipe is not waited for, and an endless file is not read."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > FILE_BYTES_MAX:
            raise ValueError(f"entry_points.txt is not a file of at most {FILE_BYTES_MAX} bytes")
        return file.read(FILE_BYTES_MAX).decode()


def load(group: str, add: Callable[[EntryPoint], Loaded]) -> list[Loaded]:
    """Call `add` with each plugin of the group and return the results. A plugin that raises is
    left out, whatever it raises: SystemExit would end the rank or the command.

    A KeyboardInterrupt counts as the plugin's own. A command that a person can interrupt lets
    SIGINT end the process meanwhile.
    """
    loaded = []
    for point in entry_points(group):
        try:
            loaded.append(add(point))
        except BaseException as error:  # noqa: BLE001 - code of another package
            left_out[f"{point.name} ({point.value})"] = reason(error)
    return loaded


def reason(error: BaseException) -> str:
    """Why a plugin is left out."""
    try:
        return f"{type(error).__name__}: {error}"[:REASON_CHARACTERS]
    except BaseException:  # noqa: BLE001 - the text of another package's error
        return type(error).__name__
