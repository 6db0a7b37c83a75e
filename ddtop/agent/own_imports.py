"""Makes sure that the agent imports installed packages, never a folder of the program with the same
name.

The folder of the script comes first on `sys.path`, right after the start-up line has run. A
`msgspec/` or a `uuid.py` in it is the program's. The agent must neither run it nor put another one
in its place. So everything that a rank needs is imported before that. If the program has a module
of that name, the agent stays off and says why.
"""

from __future__ import annotations

import _imp
import os
import sys

# Not at run time: this module is loaded in every Python of a DDTOP=1 shell.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

NEEDED = ("msgspec",)
LIBRARY = frozenset((
    "__future__", "_blake2", "_ctypes", "_datetime", "_decimal", "_hashlib", "_heapq",
    "_opcode", "_opcode_metadata", "_posixsubprocess", "_sha2", "_sha512", "_socket", "_struct",
    "_typing", "_uuid", "_weakrefset", "annotationlib", "array", "ast", "base64", "binascii",
    "collections", "contextlib", "copy", "copyreg", "ctypes", "dataclasses", "datetime",
    "decimal", "dis", "enum", "faulthandler", "fcntl", "fnmatch", "functools", "glob", "grp",
    "hashlib", "heapq", "importlib", "inspect", "ipaddress", "keyword", "linecache", "locale",
    "math", "mmap", "ntpath", "numbers", "opcode", "operator", "pathlib", "platform", "re",
    "reprlib", "select", "selectors", "signal", "socket", "sre_compile", "sre_constants",
    "sre_parse", "string", "struct", "subprocess", "sysconfig", "textwrap", "threading",
    "token", "tokenize", "types", "typing", "urllib", "uuid", "warnings", "weakref", "zlib",
))  # fmt: skip
"""Modules of the standard library that the agent, and what it needs, may load."""
_ENDINGS = (".py", ".pyc", *_imp.extension_suffixes())
_STANDARD = os.path.dirname(os.__file__)
_installed = tuple(sys.path)
"""`sys.path` at the time of the start-up line."""


_entries: dict[str, list[str]] = {}
"""Of each folder that was listed: a folder of data may have many."""


class ShadowedError(ImportError):
    """The program has a module with a name that the agent needs; the text says where."""


def check(argv: Sequence[str]) -> None:
    """Check whether the program has modules with names that the agent needs.

    `argv` is `sys.orig_argv`. Lists the folders that come before the installed ones, as Python does
    at its first import from them. Call it before anything that imports such a module.

    Raises:
        ShadowedError: the program has such a module.
    """
    ours, first = _first_folders(argv, _installed), _first_folders(argv, (_STANDARD,))
    for names, folders in ((NEEDED, ours), (LIBRARY, first)):
        absent = set(names).difference(sys.modules)
        for folder in folders if absent else ():
            for name, path in _modules_in(folder, absent):
                raise ShadowedError(f"the program has its own {name}: {path}")
        for name in set(names).difference(absent):
            loaded = getattr(sys.modules[name], "__file__", None) or ""
            folder = os.path.dirname(loaded)
            if folder and not {folder, os.path.dirname(folder)}.isdisjoint(folders):
                raise ShadowedError(f"the program has its own {name}: {loaded}")


def _modules_in(folder: str, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Those of these modules that the folder has, each with its path."""
    if folder not in _entries:
        try:
            _entries[folder] = os.listdir(folder)
        except OSError:
            _entries[folder] = []
    for entry in _entries[folder]:
        name, dot, end = entry.partition(".")
        path = f"{folder}/{entry}"
        # A folder without this file is found only where no other folder has the module.
        if name in names and (
            dot + end in _ENDINGS if dot else os.path.exists(f"{path}/__init__.py")
        ):
            yield name, path


def _first_folders(argv: Sequence[str], until: Sequence[str]) -> list[str]:
    """Folders before those of `until` on the path: those there now, and the one that will be
    added.
    """
    found = []
    for entry in sys.path:
        if entry in until:
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
