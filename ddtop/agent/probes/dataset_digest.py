"""The content of a dataset, as far as its attributes and its code show it.

Source: the dataset's `__dict__` and the names in its code. It decides whether two ranks read the
same data. Caveat: `__getitem__` may read a disk, so it is never called. Check: print the dataset's
attributes on two ranks.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType
from typing import Any

_ATTRIBUTES, _VALUES, _CHARACTERS, _NUMBERS = 40, 8, 200, 64
_LEAST = 16
"""A container with this many values holds data, not only a shape or options."""
_FUNCTIONS = 40
_BY_RANK = re.compile(
    r"\A(environ|getenv|get_(\w+_)?rank|(local_|global_)?process_index|randn|randn_like"
    r"|standard_normal)\Z"
)
"""Names that give each rank its own samples: the code asks for the rank, or invents samples."""
_LIBRARIES = ("torch", "numpy", "datasets", "torchvision")
_GOLDEN = 0.6180339887
_ARRAYS = ("Tensor", "ndarray")


def holds(dataset: Any, length: int | None) -> bool:
    """Whether it holds data: enough values, or a path.

    A dataset that holds only sizes and shapes invents its samples.
    """
    return any(_holds(value, length or 0, 3) for value in _held(dataset).values())


def asks_rank(*programs: Any) -> bool:
    """Whether the code that makes samples asks for the rank, or for random numbers as content."""
    return any(
        _BY_RANK.match(name) for one in programs for code in _codes(one) for name in code.co_names
    )


def fingerprint(dataset: Any) -> str:
    """A digest of the dataset's attributes and of the constants that its code uses.

    It is equal for the same data, and differs if each rank holds a part.
    """
    found = hashlib.blake2b(digest_size=8)
    held = _held(dataset)
    for name in sorted(held)[:_ATTRIBUTES]:
        found.update(f"{name}={_value(held[name])};".encode("utf-8", "replace"))
    for name, value in sorted(_constants(dataset)):
        found.update(f"{name}:{value};".encode("utf-8", "replace"))
    return found.hexdigest()


def numbers(value: Any, most: int = _NUMBERS) -> list[Any]:
    """Some numbers from all over an array or a tensor in main memory, without a copy of it."""
    try:
        if type(value).__name__ == "ndarray":
            return [value.flat[at].item() for at in _scattered(value.size, most)]
        if value.device.type != "cpu" or not value.is_contiguous():
            return []
        found: list[Any] = value.detach().view(-1)[_scattered(value.numel(), most)].tolist()
    except Exception:  # noqa: BLE001 - empty, or of objects: only its shape is known
        return []
    return found


def _scattered(size: int, most: int) -> list[int]:
    """Indices that do not hit the same column of every row.

    Equal steps would, for example the black corner of each image.
    """
    if size <= most:
        return list(range(size))
    return [0, size - 1, *(int(at * _GOLDEN * size) % size for at in range(1, most - 1))]


def is_array(value: Any) -> bool:
    """A tensor of torch's or an array of numpy's, by its class alone."""
    return type(value).__module__ in ("torch", "numpy") and type(value).__name__ in _ARRAYS


def _held(one: Any) -> dict[str, Any]:
    held = getattr(one, "__dict__", None)
    return held if type(held) is dict else {}


def _spread(size: int, most: int) -> list[int]:
    return sorted({at * (size - 1) // max(most - 1, 1) for at in range(most)}) if size else []


def _holds(value: Any, length: int, deep: int) -> bool:
    if isinstance(value, (str, PurePath)):
        return not isinstance(value, str) or "/" in value or os.sep in value
    if is_array(value):
        # If all values are equal, they cannot distinguish two datasets.
        return (
            bool(value.shape)
            and value.shape[0] >= min(length, _LEAST)
            and len(set(numbers(value))) > 1
        )
    if type(value) in (list, tuple):
        some = [value[at] for at in _spread(len(value), _VALUES)]
        # Whole numbers are a shape, labels or indices.
        if len(value) >= min(length, _LEAST) and any(
            type(one) not in (int, bool, float, type(None)) for one in some
        ):
            return True
    else:
        # Datasets of Hugging Face have their own digest.
        if type(_held(value).get("_fingerprint")) is str:
            return True
        # A callable transforms samples and holds none.
        held = value if type(value) is dict else {} if callable(value) else _held(value)
        some = [held[key] for key in list(held)[:_ATTRIBUTES]]
    return deep > 0 and any(_holds(one, length, deep - 1) for one in some)


def _codes(one: Any) -> Iterator[CodeType]:
    """Code that runs when a sample is made: functions of the program, a few calls deep."""
    for function in _functions(one):
        yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    yield from (const for const in code.co_consts if isinstance(const, CodeType))


def _functions(one: Any) -> list[FunctionType]:
    found: list[FunctionType] = []
    waiting: list[tuple[Any, type]] = [(item, type(item)) for item in _makers(one, 3)]
    while waiting and len(found) < _FUNCTIONS:
        item, owner = waiting.pop(0)
        if isinstance(item, (FunctionType, MethodType)):
            function: Any = getattr(item, "__func__", item)
            if (
                function not in found
                and str(function.__module__).partition(".")[0] not in _LIBRARIES
            ):
                found.append(function)
                named = (value for _, value in _named(function, owner))
                waiting += [(value, owner) for value in named if isinstance(value, FunctionType)]
            continue
        methods = (
            getattr(type(item), name, None) for name in ("__getitem__", "__getitems__", "__call__")
        )
        waiting += [(method, type(item)) for method in methods if isinstance(method, FunctionType)]
    return found


def _makers(one: Any, deep: int) -> Iterator[Any]:
    """The object and the parts of it that have code: a dataset in a Subset, a transform."""
    yield one
    if deep and not isinstance(one, (FunctionType, MethodType)):
        for value in list(_held(one).values())[:_ATTRIBUTES]:
            for part in value[:_VALUES] if type(value) in (list, tuple) else (value,):
                if callable(part) or hasattr(type(part), "__getitem__"):
                    yield from _makers(part, deep - 1)


def _named(function: FunctionType, owner: type) -> Iterator[tuple[str, Any]]:
    """The values of the names in its code, as far as no code has to run to find them."""
    for code in _with_inner(function.__code__):
        for name in code.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]
            yield from ((name, vars(cls)[name]) for cls in owner.__mro__ if name in vars(cls))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents


def _constants(dataset: Any) -> set[tuple[str, str]]:
    """Plain values outside the dataset's attributes that its code names: a module's RANK."""
    return {
        (name, repr(value)[:_CHARACTERS])
        for function in _functions(dataset)
        for name, value in _named(function, type(dataset))
        if type(value) in (bool, int, float, str)
    }


def _value(value: Any, deep: int = 2) -> str:
    """Text of plain values; of others their class, length, and some of what they hold."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value[:_CHARACTERS] if isinstance(value, (str, bytes)) else value)
    if isinstance(value, PurePath):
        return str(value)
    kind = type(value)
    name = kind.__name__
    # Exactly these types: a class of the program may run any code.
    if kind in (list, tuple, range):
        return f"{name}[{len(value)}]({_texts(value, deep)})"
    if kind is dict:
        return f"{name}[{len(value)}]({_some(value, deep)})"
    if is_array(value):
        return f"{name}{tuple(value.shape)}{numbers(value)}"
    held = getattr(value, "__dict__", None) if deep else None
    return f"{name}({_some(held, deep)})" if type(held) is dict else name


def _texts(values: Sequence[Any], deep: int) -> str:
    return (
        ",".join(_value(values[at], deep - 1) for at in _spread(len(values), _VALUES))
        if deep
        else ""
    )


def _some(held: dict[Any, Any], deep: int) -> str:
    keys = list(held)[:_VALUES] if deep else ()
    return ",".join(
        f"{key if isinstance(key, (str, int)) else '?'}:{_value(held.get(key), deep - 1)}"
        for key in keys
    )
