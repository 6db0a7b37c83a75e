"""Numbers and places as they stand in a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from ddtop.model.facts import Blame, PeerWait
from ddtop.wire.calls import RECEIVES
from ddtop.wire.records import Collective, Group, Place
from ddtop.wire.stacks import StackFrame


def rank_range(ranks: Iterable[int]) -> str:
    """`0,2-4`: ascending, runs of three and more joined."""
    parts: list[str] = []
    run: list[int] = []
    for rank in [*sorted(set(ranks)), -2]:
        if run and rank == run[-1] + 1:
            run.append(rank)
            continue
        if run:
            parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(one) for one in run]
        run = [rank]
    return ",".join(parts)


def clipped(text: str, most: int) -> str:
    """The text in one line, at most so many characters; what is cut shows as an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def about(ratio: float) -> str:
    """`85%`, in steps of five: a sampled share that a sentence repeats must not change with every sample."""
    return f"{round(ratio * 20) * 5}%" if ratio >= 0.05 else f"{ratio:.0%}"


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 2`, `ranks 0,1,3`; of very many only how many."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    text = rank_range(ranks)
    return f"ranks {text}" if len(text) <= 40 else f"{len(ranks)} ranks"


def told_apart(values: Mapping[int, str]) -> dict[str, list[int]]:
    """The ranks of each value, in the order in which the values first come."""
    found: dict[str, list[int]] = {}
    for rank, value in values.items():
        found.setdefault(value, []).append(rank)
    return found


def verb(ranks: Sequence[int], one: str, many: str) -> str:
    """The verb in the number of its subject."""
    return one if len(ranks) == 1 else many


def duration(seconds: float) -> str:
    """`0.4 s`, `31 s`, `2 min 5 s`, `1 h 3 min`."""
    if seconds < 1:
        return f"{max(0.0, seconds):.1f} s"
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def file_line(place: Place | StackFrame) -> str:
    """`data.py:40`."""
    return f"{place.file.rpartition('/')[2]}:{place.line}"


def collective_text(op: str | None, seq: int | None, group: str | None) -> str:
    """`all_reduce #1203 of default_pg`."""
    text = op or "collective"
    if seq is not None:
        text += f" #{seq}"
    return f"{text} of {group}" if group else text


def peer_text(wait: PeerWait) -> str:
    """`recv from rank 0, tag 7`, `send to rank 2`, `monitored_barrier`, `Wait for Irecv from rank 0, tag 7`.

    The tag only where it is not the default; of MPI's communicators always, where it is not any.
    """
    text, receives = wait.call, wait.call in RECEIVES
    if wait.peer is not None:
        text += f" {'from' if receives else 'to'} rank {wait.peer}"
    elif receives and wait.group is not None:
        text += " from any rank"
    if wait.tag or (wait.tag == 0 and wait.group is not None):
        text += f", tag {wait.tag}"
    if wait.within is None:
        return text
    return f"{wait.within} for {text}" if wait.within.lower().startswith("wait") else f"{wait.within}: {text}"


def waited_text(blame: Blame, groups: Iterable[Group]) -> str:
    """In what the waiters of a blamed rank wait: a collective of a group, or a call for single ranks."""
    if blame.peer_wait is not None:
        single = len(blame.waiters) == 1
        return peer_text(blame.peer_wait) if single else blame.peer_wait.call
    name = names_of_groups(groups).get(blame.group, blame.group) if blame.group is not None else None
    return collective_text(blame.op, blame.seq, name)


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
