"""Text that cannot be written as UTF-8: lone surrogates, as in file names that are no UTF-8.

It is written as Python writes it (`\\udcff`), so that a user sees what is there. Nothing else
changes.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")


def escaped(value: _T) -> _T:
    """The same record, tuple, list, dict or text with every lone surrogate in it escaped."""
    found: Any = value
    if isinstance(found, str):
        found = found.encode("utf-8", "backslashreplace").decode("utf-8")
    elif isinstance(found, msgspec.Struct):
        fields = {name: escaped(getattr(found, name)) for name in found.__struct_fields__}
        found = msgspec.structs.replace(found, **fields)
    elif isinstance(found, (tuple, list)):
        found = type(found)(escaped(one) for one in found)
    elif isinstance(found, dict):
        found = {escaped(name): escaped(one) for name, one in found.items()}
    return found  # type: ignore[no-any-return]
