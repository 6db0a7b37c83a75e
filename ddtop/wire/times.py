"""Moves the times inside a record by some ns: from one clock to another.

The names of the fields say which are times (`unix_ns`, `..._unix_ns`). That is worked out once per
type. A record without times is passed on unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import add
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

Moved = Callable[[Any, int], Any]
"""(value, ns) -> the value with its times moved; of None and 0 ("not set") themselves."""
T = TypeVar("T", bound=msgspec.Struct)


def shift(record: T, by_ns: int) -> T:
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
            add
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


def _of_type(kind: inspect.Type) -> Moved | None:
    if isinstance(kind, inspect.StructType):
        return _of_struct(kind.cls)
    if isinstance(kind, inspect.UnionType):
        return next((move for part in kind.types if (move := _of_type(part)) is not None), None)
    if isinstance(kind, inspect.VarTupleType) and (inner := _of_type(kind.item_type)) is not None:
        move_one: Moved = inner
        return lambda value, by_ns: tuple([move_one(item, by_ns) for item in value])
    return None


# -- How often the hub is sent the report of each rank: in a very large world less often
#
# Leaves and viewers compute it from the world size, so it does not have to be sent. While most
# ranks are stuck, a hub asks for more: each report of the ranks that are not.


RANKS_PER_S = 16_384
"""Reports of ranks that a hub receives each second: half of a core for the hub."""
HOST_SHARE = 4
"""A host reports this many times as often. At 131,072 ranks that is every two seconds, which does
not count as silence."""
UNSTUCK = "unstuck"
"""Name of the `Reply` with which a hub asks a leaf for each report of its ranks that are not stuck,
and of its host. An older leaf ignores it."""
UNSTUCK_RANKS = 1024
"""A hub asks for that while at most so many ranks of the whole job are not stuck: the cause is
among them, and they add a sixteenth to what it receives."""
UNSTUCK_S = 3.0
"""The hub asks once a second. This long after its last request, the ranks report in turns again."""


def rank_period_s(world_size: int) -> float:
    """Seconds between two reports of a rank to the hub."""
    return max(1.0, world_size / RANKS_PER_S)


def host_period_s(world_size: int) -> float:
    """Seconds between two reports of a host to the hub."""
    return max(1.0, rank_period_s(world_size) / HOST_SHARE)
