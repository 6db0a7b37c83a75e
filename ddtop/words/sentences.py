"""Collectives, calls, places and process groups, as sentences and table cells name them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod

from ddtop.wire.calls import RECEIVES
from ddtop.wire.records import Collective, Group, Place
from ddtop.wire.samples import Spot
from ddtop.wire.stacks import StackFrame


def clipped(text: str, most: int) -> str:
    """The text in one line, at most so many characters; what is cut shows as an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def about(ratio: float) -> str:
    """`85%`, in steps of five: a sentence must not change with every sample of a share."""
    return f"{round(ratio * 20) * 5}%" if ratio >= 0.05 else f"{ratio:.0%}"


def file_line(place: Place | Spot | StackFrame) -> str:
    """`data.py:40`."""
    return f"{place.file.rpartition('/')[2]}:{place.line}"


def op_name(op: str) -> str:
    """The operation without the backend that torch writes before it: `all_reduce`."""
    return op.rpartition(":")[2] or op


def collective_text(op: str | None, seq: int | None, group: str | None = None) -> str:
    """`all_reduce #1203 of default_pg`, as much of it as is known."""
    text = op_name(op or "") or "collective"
    if seq is not None:
        text += f" #{seq}"
    return f"{text} of {group}" if group else text


def call_text(call: str, peer: int | None, within: str | None = None, tag: str = "") -> str:
    """A call for single ranks: `recv from rank 0`, `send to rank 1`, `Wait for Irecv from rank 0`.

    `peer` None: the call names no rank. `within`: the call that waits for this one. `tag` follows
    the peer as it is.
    """
    text = call
    if peer is not None:
        text += f" {'from' if call in RECEIVES else 'to'} rank {peer}"
    text += tag
    if within is None:
        return text
    return f"{within} for {text}" if within.lower().startswith("wait") else f"{within}: {text}"


def tensor_text(collective: Collective) -> str:
    """`all_reduce of 4,000,000 float32`; several tensors are added up."""
    root = f", root {collective.root}" if collective.root is not None else ""
    if not collective.sizes:
        return collective.op + root
    numbers = sum(prod(shape) for shape in collective.sizes)
    dtypes = ",".join(sorted({dtype.lower() for dtype in collective.dtypes})) or "values"
    return f"{collective.op} of {numbers:,} {dtypes}{root}"


def names_of_groups(groups: Iterable[Group]) -> dict[str, str]:
    """Torch's group names as users know them.

    The description where it is unique, `group 2` where the group has none.
    """
    found = list(groups)
    texts = Counter(group.description for group in found)
    return {
        group.name: group.description
        if _names(group) and texts[group.description] == 1
        else _numbered(group)
        for group in found
    }


def _names(group: Group) -> bool:
    return group.description not in ("", group.name)


def _numbered(group: Group) -> str:
    return f"{group.description if _names(group) else 'group'} {group.name}"
