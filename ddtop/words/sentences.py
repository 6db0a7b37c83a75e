"""Collectives, places and process groups as a sentence has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod

from ddtop.wire.records import Collective, Group, Place
from ddtop.wire.stacks import StackFrame


def clipped(text: str, most: int) -> str:
    """The text in one line, at most so many characters; what is cut shows as an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def about(ratio: float) -> str:
    """`85%`, in steps of five: a sampled share that a sentence repeats must not change with every sample."""
    return f"{round(ratio * 20) * 5}%" if ratio >= 0.05 else f"{ratio:.0%}"


def file_line(place: Place | StackFrame) -> str:
    """`data.py:40`."""
    return f"{place.file.rpartition('/')[2]}:{place.line}"


def collective_text(op: str | None, seq: int | None, group: str | None) -> str:
    """`all_reduce #1203 of default_pg`."""
    text = op or "collective"
    if seq is not None:
        text += f" #{seq}"
    return f"{text} of {group}" if group else text


def tensor_text(collective: Collective) -> str:
    """`all_reduce of 4,000,000 float32`; several tensors are added up."""
    root = f", root {collective.root}" if collective.root is not None else ""
    if not collective.sizes:
        return collective.op + root
    numbers = sum(prod(shape) for shape in collective.sizes)
    dtypes = ",".join(sorted({dtype.lower() for dtype in collective.dtypes})) or "values"
    return f"{collective.op} of {numbers:,} {dtypes}{root}"


def names_of_groups(groups: Iterable[Group]) -> dict[str, str]:
    """Torch's group names as people know them: the description where it is unique, `group 2` where nobody named it."""
    found = list(groups)
    texts = Counter(group.description for group in found)
    return {
        group.name: group.description if _names(group) and texts[group.description] == 1 else _numbered(group)
        for group in found
    }


def _names(group: Group) -> bool:
    return group.description not in ("", group.name)


def _numbered(group: Group) -> str:
    return f"{group.description if _names(group) else 'group'} {group.name}"
