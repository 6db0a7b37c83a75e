"""Makes sure that the agent imports installed packages, never a folder of the program with the same
name.

The folder of the script comes first on `sys.path`, right after the start-up line has run. A
`msgspec/` in it is the program's. The agent must neither run it nor put another one in its place.
So everything that a rank needs is imported before that. If the program has a module of that name,
the agent stays off and says why.
"""

from __future__ import annotations

import os
import sys

# Not at run time: this module is loaded in every Python of a DDTOP=1 shell.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

NEEDED = ("msgspec",)
_installed = tuple(sys.path)
"""`sys.path` at the time of the start-up line."""


class ShadowedError(ImportError):
    """The program has a module with a name that the agent needs; the text says where."""


def check(argv: Sequence[str]) -> None:
    """Check whether the program has modules with names that the agent needs.

    `argv` is `sys.orig_argv`. Costs two stats a folder. Call it before anything that imports them.

    Raises:
        ShadowedError: the program has such a module.
    """
    for name in NEEDED:
        for folder in _first_folders(argv):
            for path in (os.path.join(folder, name), os.path.join(folder, name + ".py")):
                if os.path.exists(path):
                    raise ShadowedError(f"the program has its own {name}: {path}")
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if loaded is not None and not _is_installed(loaded):
            raise ShadowedError(f"the program has its own {name}: {loaded}")


def _first_folders(argv: Sequence[str]) -> list[str]:
    """Folders before the installed ones on the path: those there now, and the one that will be
    added.
    """
    found = []
    for entry in sys.path:
        if entry in _installed:
            break
        found.append(entry or os.getcwd())
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return found
    # Before `sys.path[0]` is set, only the command line shows the script. An additional folder does
    # no harm.
    scripts = [word for word in argv[1:] if word.endswith(".py")][:1]
    found += [os.path.dirname(os.path.realpath(word)) for word in scripts]
    if not scripts or "-m" in argv or "-c" in argv:
        found.append(os.getcwd())
    return found


def _is_installed(file: str) -> bool:
    return any(entry and file.startswith(entry.rstrip(os.sep) + os.sep) for entry in _installed)


def is_main_interpreter() -> bool:
    """Whether this is the main interpreter of the process.

    A subinterpreter runs the start-up line again.
    """
    import _thread

    known = getattr(_thread, "_is_main_interpreter", None)
    if known is not None:
        return bool(known())
    try:
        # Python 3.10 and 3.11.
        import _xxsubinterpreters as interpreters  # type: ignore[import-not-found]
    except ImportError:
        return True
    return bool(interpreters.get_current() == interpreters.get_main())
