"""Numbers and places as they stand in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from ddtop.model.facts import RankFacts
from ddtop.wire.records import Collective, Place


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


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 2`, `ranks 0,1,3`; of very many only how many."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    text = rank_range(ranks)
    return f"ranks {text}" if len(text) <= 40 else f"{len(ranks)} ranks"


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


def file_line(place: Place) -> str:
    """`data.py:40`."""
    return f"{place.file.rpartition('/')[2]}:{place.line}"


def where(facts: RankFacts) -> str:
    """Where a rank is instead, to follow "has been" or "is": `in the DataLoader (data.py:40 load_image)`."""
    call = next((call.name for call in facts.open_calls), None)
    place = facts.place
    if call is not None:
        return f"in {call} ({file_line(place)} {place.function})" if place else f"in {call}"
    if place is None:
        return "at a place that cannot be seen"
    spot = f"{file_line(place)} {place.function}"
    names = {
        "DataLoader": "in the DataLoader",
        "child": "waiting for a child process",
        "lock": "waiting for a lock",
        "queue": "waiting for a queue",
        "pipe": "waiting on a pipe",
        "socket": "waiting on a socket",
        "file": "reading or writing a file",
        "debugger": "in a debugger",
        "compile": "compiling",
        "collective": f"in {place.callee}" if place.callee else "in a collective",
        "exit": "waiting at exit for its other threads",
    }
    if facts.activity == "loader":
        return f"in the DataLoader ({spot})"
    if place.waits_on in names:
        return f"{names[place.waits_on]} ({spot})"
    if facts.activity in ("forward", "backward", "optimizer") and place.callee:
        return f"in {facts.activity} ({spot})"
    return f"in {place.function} ({file_line(place)})"


def collective_text(op: str | None, seq: int | None, group: str | None) -> str:
    """`all_reduce #1203 of default_pg`."""
    text = op or "a collective"
    if seq is not None:
        text += f" #{seq}"
    return f"{text} of {group}" if group else text


def tensor_text(collective: Collective) -> str:
    """`all_reduce of 4,000,000 float32`; several tensors are added up."""
    if not collective.sizes:
        return collective.op
    numbers = sum(prod(shape) for shape in collective.sizes)
    dtypes = ",".join(sorted({dtype.lower() for dtype in collective.dtypes})) or "values"
    return f"{collective.op} of {numbers:,} {dtypes}"


def names_of_groups(groups: Iterable[object]) -> dict[str, str]:
    """Torch's group names as people know them: the description where it is unique, else both."""
    pairs = [(str(getattr(group, "name", "")), str(getattr(group, "description", ""))) for group in groups]
    texts = [description for _, description in pairs]
    return {
        name: description if description and texts.count(description) == 1 else f"{description or 'group'} {name}".strip()
        for name, description in pairs
    }
