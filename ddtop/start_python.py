"""How ddtop starts a Python: nothing in the folder where a command is typed may run in it.

`python -c` and `python -m` put the current folder before the standard library. A `warnings.py` that
somebody else has left there would run as this user. What does not work alone: Python 3.10 does not
know `-P` and PYTHONSAFEPATH, and `-I` also hides PYTHONPATH and the user's own packages. What we
do: a program takes that folder off the path before its first import, so it may be asked in any
folder, as a shim of pyenv must be. A module is started in `FOLDER`. `environment` protects what
these start in their turn.
"""

from __future__ import annotations

import os
import sys

FOLDER = "/"
"""Only root writes here."""
SAFE = {"PYTHONSAFEPATH": "1"}
_AFTER_OURS = "DDTOP_PYTHONPATH"
_FOLDER_OFF_THE_PATH = "import sys; sys.path[:] = filter(None, sys.path)"
"""`sys` is in the interpreter itself: no file is looked for."""


def program(python: str, code: str, *words: str) -> list[str]:
    """The command that runs this code, in any folder, also in a container."""
    return [python, "-c", f"{_FOLDER_OFF_THE_PATH}\n{code}", *words]


def module(name: str, *words: str) -> list[str]:
    """The command that runs a module of this Python. It must be started in `FOLDER`."""
    return [sys.executable, "-m", name, *words]


def environment() -> dict[str, str]:
    """Our environment for another Python: without DDTOP. An empty part of PYTHONPATH means the
    current folder, and is left out."""
    kept = {name: value for name, value in os.environ.items() if name != "DDTOP"}
    if paths := kept.pop("PYTHONPATH", ""):
        given = [os.path.abspath(path) for path in paths.split(os.pathsep) if path]
        kept["PYTHONPATH"] = os.pathsep.join(given)
    return kept | SAFE


def last_on_the_path(environ: dict[str, str], home: str) -> dict[str, str]:
    """This environment for a module of `home`: the program's PYTHONPATH comes behind the standard
    library, once the module calls `take_path`. A program may have its own `statistics.py` there.
    """
    paths = environ.pop("PYTHONPATH", "")
    return environ | SAFE | {"PYTHONPATH": home, _AFTER_OURS: paths}


def take_path() -> None:
    """Put the folders that `last_on_the_path` has passed on behind all others."""
    sys.path += filter(None, os.environ.pop(_AFTER_OURS, "").split(os.pathsep))
