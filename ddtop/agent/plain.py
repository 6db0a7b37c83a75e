"""Reads objects of the program, and runs no code that the program may have written.

A property, `__getattr__`, `__str__`, `__len__`, `__fspath__` or a false `__class__` is such code.
It may be slow, count its calls, wait for a lock, or raise SystemExit. So an attribute is read where
Python keeps it, and a text is made of values of Python's own types. A property, or a `__str__` of
an exception, that a library has written is called.

`isinstance` asks an object for its `__class__`. So the functions here, and those that use them, ask
its type.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from io import BufferedRandom, BufferedReader, BufferedWriter, TextIOWrapper
from operator import index
from pathlib import Path
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, WrapperDescriptorType
from typing import Any

_classes = vars(type)["__mro__"].__get__
_held_by_class = vars(type)["__dict__"].__get__
name_of: Callable[[type], str] = vars(type)["__name__"].__get__
"""The name of a class. `cls.__name__` would ask its metaclass."""
module_of: Callable[[type], Any] = vars(type)["__module__"].__get__
traceback_of: Callable[[BaseException], Any] = vars(BaseException)["__traceback__"].__get__
_arguments_of = vars(BaseException)["args"].__get__
_file_of = vars(OSError)["filename"].__get__
# By their ids: to compare two classes asks the metaclass of one.
_VALUES = frozenset(map(id, (str, bytes, int, float, bool, complex, type(None))))
_CONTAINERS = frozenset(map(id, (list, tuple, dict, set, frozenset)))
_FILES = frozenset(map(id, (BufferedRandom, BufferedReader, BufferedWriter)))
_SLOTS = frozenset(map(id, (GetSetDescriptorType, MemberDescriptorType)))
_MOST = 8
_LIBRARIES = (
    os.path.dirname(os.__file__) + os.sep,
    os.path.dirname(os.path.dirname(__file__)) + os.sep,
)
PATH = type(Path())


def is_a(thing: object, *kinds: type) -> bool:
    """Whether it is of one of these classes, which are not of the program."""
    return issubclass(type(thing), kinds)


def held_by(thing: object) -> dict[str, Any]:
    """The attributes of this object itself; empty if it has no dictionary of its own."""
    for cls in _classes(type(thing)):
        found = _held_by_class(cls).get("__dict__")
        if found is not None:
            held = found.__get__(thing) if id(type(found)) in _SLOTS else None
            return held if type(held) is dict else {}
    return {}


def peek(thing: object, *names: str, default: Any = None) -> Any:
    """`thing.first.second`; the default where one is missing, or is code of the program."""
    for name in names:
        found = of_class(type(thing), name)
        if id(type(found)) in _SLOTS:
            try:
                thing = found.__get__(thing)
            except AttributeError:
                return default
        elif type(found) is property and is_of_library(found.fget):
            thing = found.__get__(thing)
        elif name in (held := held_by(thing)):
            thing = held[name]
        elif id(type(found)) in _VALUES and found is not None:
            thing = found
        else:
            return default
    return thing


def of_class(kind: type, name: str) -> Any:
    """What this class, or the first one above it that has this name, holds; else None."""
    return next((held[name] for held in map(_held_by_class, _classes(kind)) if name in held), None)


def is_of_library(function: object) -> bool:
    """Whether Python's library or an installed package has written this function."""
    if type(function) is not FunctionType:
        return False
    file = function.__code__.co_filename
    return file.startswith(_LIBRARIES) or "site-packages/" in file or "dist-packages/" in file


def whole(value: object) -> int | None:
    """The whole number that it is, of Python or of numpy; else None."""
    if is_a(value, int):
        return int.__int__(value)  # type: ignore[arg-type]
    try:
        return index(value) if module_of(type(value)) == "numpy" else None  # type: ignore[arg-type]
    except TypeError:
        return None


def number(value: object) -> float | None:
    """The value, if it is a number of Python; else None."""
    if is_a(value, float):
        return float.__float__(value)  # type: ignore[arg-type]
    return float(int.__int__(value)) if is_a(value, int) else None  # type: ignore[arg-type]


def text(value: object) -> str | None:
    """The text that it is; else None."""
    return str.__str__(value) if is_a(value, str) else None


def path_of(target: object) -> str | None:
    """The path that a program gives, or that of the file that it has opened; else None."""
    if type(target) is TextIOWrapper:
        target = target.buffer
    if id(type(target)) in _FILES:
        target = target.raw  # type: ignore[attr-defined]
    if not is_a(target, str, PATH):
        target = held_by(target).get("name")
    return str(target) if type(target) is PATH else text(target)


def shown(value: object, deep: int = 2) -> str:
    """A text like its `repr`; of what is not of Python's own types only the name of its class."""
    if id(type(value)) in _VALUES:
        return repr(value)
    if id(type(value)) in _CONTAINERS and deep:
        some = list(value)[:_MOST]  # type: ignore[call-overload]
        if type(value) is dict:
            some = [(key, value[key]) for key in some]
        return f"[{', '.join(shown(one, deep - 1) for one in some)}]"
    return f"<{name_of(type(value))}>"


def text_of(error: BaseException) -> str:
    """What an exception says."""
    given, speaks = _arguments_of(error), of_class(type(error), "__str__")
    parts = (*given, _file_of(error)) if is_a(error, OSError) else given
    plain = type(speaks) is WrapperDescriptorType and all(id(type(one)) in _VALUES for one in parts)
    if plain or is_of_library(speaks):
        try:
            return str(error)
        except Exception:  # noqa: BLE001 - the text of a library's exception is not worth an error
            return ""
    texts = ((text(one), one) for one in given)
    return ", ".join(said if said is not None else shown(one) for said, one in texts)
