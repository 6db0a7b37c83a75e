"""Whose code a stack frame is: the program's, a library's, native, or ddtop's own.

The path decides if the agent did not.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache

from ddtop.wire.stacks import StackFrame


class Owner(str, Enum):
    """Whose code runs in a frame."""

    USER = "user"
    FRAMEWORK = "framework"
    NATIVE = "native"
    OWN = "own"


_OWN = re.compile(r"/ddtop/(?:(?:agent|wire|link)/(?:\w+/)?\w+|registry)\.py$")
"""The files of ddtop that run inside a rank. `ddtop/demo` is a training like any other."""
_TYPED = ("<stdin", "<ipython", "<python-input")
_LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python3(?:\.\d+)?t?/|/python3\d*\.zip/"
)
_NATIVE = re.compile(r"\.(?:so(?:\.[\w.]+)?|c|cc|cpp|cxx|cu|cuh|h|hpp|rs|S|pyx)$")
_PACKAGE = re.compile(r"/(?:site|dist)-packages/(?P<name>[^/]+)")
_STANDARD = re.compile(r"(?:/lib(?:64)?/python3(?:\.\d+)?t?|/python3\d*\.zip)/(?P<name>[^/]+)")
_SHARED = re.compile(r"^(?:lib)?(?P<name>\w+?)(?:[-_](?:cpu|cuda|python|c))?(?:[.-].*)?$")


def owner_of(frame: StackFrame) -> Owner:
    """Whose code the frame is."""
    return _judge(frame.file, frame.user)


# Thousands of ranks run the same few hundred files.
@lru_cache(maxsize=4096)
def _judge(file: str, user: bool | None) -> Owner:
    if user or "/ddtop/demo/" in file or (user is None and file.startswith(_TYPED)):
        return Owner.USER
    if _OWN.search(file):
        return Owner.OWN
    if not file or _NATIVE.search(file):
        return Owner.NATIVE
    return (
        Owner.FRAMEWORK
        if user is False or file.startswith("<") or _LIBRARY.search(file)
        else Owner.USER
    )


def is_birth(function: str, file: str) -> bool:
    """Whether multiprocessing starts a process in this frame. The frames further out come from the
    parent of a forked worker.

    py-spy and agents put the class before the function's name, faulthandler does not.
    """
    return function.rpartition(".")[2] == "_bootstrap" and file.endswith(
        "multiprocessing/process.py"
    )


def package_of(file: str) -> str:
    """The library of a framework or native frame: `torch`, `threading`; or `native`."""
    if file.startswith("<"):
        return (
            file.strip("<>").removeprefix("frozen ").partition(".")[0].partition(" ")[0] or "python"
        )
    match = _PACKAGE.search(file) or _STANDARD.search(file)
    if match is not None:
        return match["name"].removesuffix(".py")
    name = file.rpartition("/")[2]
    if ".so" in name and (shared := _SHARED.match(name)) is not None:
        return shared["name"]
    return name.rpartition(".")[0] if name.endswith(".py") else "native"
