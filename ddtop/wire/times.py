"""Moves the times inside a record by some ns: from one clock to another.

The names of the fields say which are times (`unix_ns`, `..._unix_ns`). That is worked out once per
type. A record without times is passed on unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

Moved = Callable[[Any, int], Any]
"""(value, ns) -> the value with its times moved; of None and 0 ("not set") themselves."""
T = TypeVar("T", bound=msgspec.Struct)


def moved(record: T, by_ns: int) -> T:
    """The record with all of its times `by_ns` later, in the structs inside it too.

    `mono_ns` is not moved.
    """
    move = _of_struct(type(record))
    return record if move is None or not by_ns else move(record, by_ns)


@lru_cache(maxsize=256)
def _of_struct(cls: type[msgspec.Struct]) -> Moved | None:
    """How to move the times of such a struct; None where it has none."""
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    moves = []
    for field in info.fields:
        move = (
            _move_time
            if field.name == "unix_ns" or field.name.endswith("_unix_ns")
            else _of_type(field.type)
        )
        if move is not None:
            moves.append((field.name, move))
    if not moves:
        return None

    def move_struct(value: Any, by_ns: int) -> Any:
        changes = {}
        for name, move in moves:
            # None, 0 and () have no time in them.
            if before := getattr(value, name):
                changes[name] = move(before, by_ns)
        return msgspec.structs.replace(value, **changes) if changes else value

    return move_struct


def _move_time(value: int, by_ns: int) -> int:
    return value + by_ns


def _of_type(kind: inspect.Type) -> Moved | None:
    if isinstance(kind, inspect.StructType):
        return _of_struct(kind.cls)
    if isinstance(kind, inspect.UnionType):
        return next((move for one in kind.types if (move := _of_type(one)) is not None), None)
    if isinstance(kind, inspect.VarTupleType) and (inner := _of_type(kind.item_type)) is not None:
        move_one: Moved = inner
        return lambda value, by_ns: tuple([move_one(one, by_ns) for one in value])
    return None
