"""What other packages add to ddtop: findings, launchers, frameworks. docs/extend/plugin.md

Each is an entry point. Only packages whose name begins with `ddtop-` are asked, because a listing
of the folder shows them: to read the metadata of every installed package takes many times longer.
This module is loaded in every Python of a DDTOP=1 shell, so it imports nothing.
"""

from __future__ import annotations

import os
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
            except Exception as error:  # noqa: BLE001 - a file of another package
                left_out[name] = reason(error)


def _text(path: str) -> str:
    """The text of this file. A pipe is not waited for, and an endless file is not read."""
    import stat

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("entry_points.txt is not a file")
        data = os.read(descriptor, FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"entry_points.txt has more than {FILE_BYTES_MAX} bytes")
    return data.decode()


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
