"""Copies of frozen objects with some fields changed."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")


def replace(value: _T, /, **changes: Any) -> _T:
    """The same with some fields changed: of a dataclass, or of a Struct such as the facts of a
    rank.

    A dict changes fields of a part: `replace(rank, process={"working": False})`.
    """
    for name, change in changes.items():
        part = getattr(value, name)
        if isinstance(change, dict) and isinstance(part, msgspec.Struct):
            changes[name] = replace(part, **change)
    make: Any = (
        msgspec.structs.replace if isinstance(value, msgspec.Struct) else dataclasses.replace
    )
    changed: _T = make(value, **changes)
    return changed
