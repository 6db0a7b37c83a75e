"""The data of a collective: its tensors and their bytes."""

from __future__ import annotations

from math import prod

from ddtop.present.text import clean
from ddtop.wire.records import Collective
from ddtop.words import units
from ddtop.words.sentences import op_name

_BYTES = {
    "float64": 8, "double": 8, "int64": 8, "long": 8, "complex64": 8,
    "float32": 4, "float": 4, "int32": 4, "int": 4,
    "float16": 2, "half": 2, "bfloat16": 2, "int16": 2,
    "int8": 1, "uint8": 1, "bool": 1, "char": 1, "byte": 1,
}  # fmt: skip


def what_moves(one: Collective) -> str:
    """Sizes, data types and bytes of a collective's input: `[1024, 1024] float32, 4.0 MiB`."""
    shapes = " ".join(f"[{', '.join(map(str, sizes))}]" for sizes in one.sizes[:3])
    if len(one.sizes) > 3:
        shapes += f" and {len(one.sizes) - 3} more"
    words = " ".join(part for part in (shapes, types_text(one)) if part)
    number = input_bytes(one)
    return words if number is None else f"{words}, {units.long_size(number)}"


def op_with_bytes(one: Collective) -> str:
    """`all_reduce 4.0 MiB float32`, as much of it as is known."""
    number = input_bytes(one)
    parts = (
        clean(op_name(one.op)) or "collective",
        "" if number is None else units.long_size(number),
        types_text(one),
    )
    return " ".join(part for part in parts if part)


def types_text(one: Collective) -> str:
    """The data types, each once."""
    return ", ".join(dict.fromkeys(clean(name.lower()) for name in one.dtypes))


def input_bytes(one: Collective) -> int | None:
    """Bytes of all input tensors; None if a type or a size is not known."""
    if not one.sizes or not one.dtypes:
        return None
    widths = [_BYTES.get(name.lower()) for name in one.dtypes]
    if len(widths) == 1:
        widths *= len(one.sizes)
    if len(widths) != len(one.sizes):
        return None
    total = 0
    for sizes, width in zip(one.sizes, widths, strict=True):
        if width is None:
            return None
        total += prod(sizes) * width
    return total
