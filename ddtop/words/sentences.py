"""Collectives, calls, places and process groups, as sentences and table cells name them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import prod

from ddtop.wire.calls import RECEIVES
from ddtop.wire.frameworks import FRAMEWORKS
from ddtop.wire.rank_runs import BESIDE
from ddtop.wire.records import Collective, Group, Place, RpcState, Stage
from ddtop.wire.samples import Spot
from ddtop.wire.stacks import StackFrame
from ddtop.words.ranks import rank_list, ranks_text
from ddtop.words.units import plural

RANGES_MOST = 4


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


def function_text(place: Place) -> str:
    """`on_train_batch_end of MyCallback`; a function that is no method by its name alone."""
    return f"{place.function} of {place.owner}" if place.owner else place.function


def framework_text(place: Place, whole: bool = False) -> str:
    """`, called by Lightning` or `, inside save_checkpoint of Lightning`; empty without one.

    `whole`: with the function of the framework that has called.
    """
    name = FRAMEWORKS.get(place.framework or "")
    if name is None or not place.framework_call:
        return ""
    call = f"{place.framework_call} of {name}"
    if place.framework_inside:
        return f", inside {call}"
    return f", called by {call if whole else name}"


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

    `peer` None: the call names no rank. `within`: the call that waits for this one. `tag` stands
    behind the peer unchanged."""
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


class GroupNames(Mapping[str, str]):
    """Torch's group names as users know them.

    `tp (ranks 4-7)` where it is known what the group is for, `fsdp` where there is one such group;
    else the description where it is unique, `group 2` where the group has none. `group weights
    (store 10.0.0.1:29511)` is not of this job. Each name is made
    when it is asked for: a job has thousands of groups, and a sentence names one of them.
    """

    def __init__(self, groups: Iterable[Group]) -> None:
        self._groups = {group.name: group for group in groups}
        self._texts = Counter(map(_named, self._groups.values()))

    def __getitem__(self, name: str) -> str:
        group = self._groups[name]
        alone = _names(group) and self._texts[_named(group)] == 1
        text = _named(group) if alone else _distinguished(group)
        return f"{text} (store {group.foreign})" if group.foreign else text

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)


_newest: tuple[tuple[Group, ...], GroupNames] | None = None
"""The groups that were asked for last, and their names. One value, because two threads ask."""


def names_of_groups(groups: tuple[Group, ...]) -> GroupNames:
    """The names of these groups.

    A screen asks for those of its snapshot with each key, and to count the descriptions of 1,250
    groups takes a millisecond. So the newest are kept.
    """
    global _newest
    newest = _newest
    if newest is None or newest[0] is not groups:
        newest = _newest = (groups, GroupNames(groups))
    return newest[1]


def group_name(group: Group) -> str:
    """What the group is for, else torch's description of it, else its name."""
    return (_named(group) if _names(group) else "") or group.name


def _named(group: Group) -> str:
    beside = " (gloo)" if group.name.endswith(BESIDE) else ""
    return group.meanings[0] + beside if group.meanings else group.description


def _names(group: Group) -> bool:
    return bool(group.meanings) or group.description not in ("", group.name)


def _distinguished(group: Group) -> str:
    if group.meanings and group.ranks:
        return f"{_named(group)} ({ranks_text(group.ranks, RANGES_MOST)})"
    return f"{_named(group) if _names(group) else 'group'} {group.name}"


def coordinates_text(places: Iterable[tuple[str, int]]) -> str:
    """`dp 0, tp 3, pp 1`."""
    return ", ".join(f"{name} {place}" for name, place in places)


def rpc_text(rpc: RpcState) -> str:
    """`RPC worker0: 1 call without an answer, serves 2 calls`."""
    parts = []
    if rpc.waits:
        parts.append(f"{plural(rpc.waits, 'call')} without an answer")
    if rpc.serves:
        parts.append(f"serves {plural(rpc.serves, 'call')}")
    return f"RPC {rpc.name}: {', '.join(parts) or 'no call is open'}"


def stage_text(stage: Stage) -> str:
    """`pipeline stage 1 (0-1), forward of microbatch 3 (0-7), 2 in flight`. All count from 0."""
    text = f"pipeline stage {stage.index} (0-{stage.stages - 1})"
    last = f" (0-{stage.microbatches - 1})" if stage.microbatches else ""
    if stage.pass_ is not None:
        text += f", {stage.pass_}"
        text += "" if stage.microbatch is None else f" of microbatch {stage.microbatch}{last}"
    if stage.in_flight:
        # Its forward is done, its backward has not begun.
        text += f", {rank_list(stage.in_flight, RANGES_MOST)} in flight"
        text += last if stage.microbatch is None else ""
    return text
