"""Other values of what is frozen."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")


def replace(value: _T, /, **changes: Any) -> _T:
    """The same with some fields changed: of a dataclass, or of a Struct such as the facts of a
    rank."""
    change: Any = (
        msgspec.structs.replace if isinstance(value, msgspec.Struct) else dataclasses.replace
    )
    changed: _T = change(value, **changes)
    return changed
