"""Numbers and places as they stand in a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from ddtop.model.facts import RankFacts
from ddtop.wire.records import Collective, Group, Place


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


_WAITS = {
    "DataLoader": "in the DataLoader",
    "child": "waiting for a child process",
    "lock": "waiting for a lock",
    "queue": "waiting for a queue",
    "pipe": "waiting on a pipe",
    "socket": "waiting on a socket",
    "file": "reading or writing a file",
    "debugger": "in a debugger",
    "compile": "compiling",
    "exit": "waiting at exit for its other threads",
}


def where(facts: RankFacts) -> str:
    """Where a rank is instead, to follow "has been" or "is": `in the DataLoader (data.py:40 load_image)`."""
    call = next((call.name for call in facts.open_calls), None)
    place = facts.place
    if place is None:
        return f"in {call}" if call else "at a place that cannot be seen"
    spot, doing = f"{file_line(place)} {place.function}", None
    if call is not None:
        doing = f"in {call}"
    elif facts.activity == "loader":
        doing = "in the DataLoader"
    elif place.waits_on == "collective":
        doing = f"in {place.callee or 'a collective'}"
    elif place.waits_on in _WAITS:
        doing = _WAITS[place.waits_on]
    elif (kernel := _kernel_wait(facts)) is not None and facts.working is False:
        return f"{kernel} in {place.function} ({file_line(place)})"
    elif facts.activity in ("forward", "backward", "optimizer") and place.callee:
        doing = f"in {facts.activity}"
    return f"{doing} ({spot})" if doing else f"in {place.function} ({file_line(place)})"


_KERNEL_WAITS = (
    ("nanosleep", "asleep"),
    ("pipe_read", "reading a pipe"),
    ("pipe_write", "writing to a pipe"),
    ("do_wait", "waiting for a child process"),
    ("futex", "waiting for a lock"),
    ("unix_stream", "waiting on a socket"),
    ("wait_woken", "waiting on a socket"),
    ("sk_wait", "waiting on a socket"),
    ("n_tty_read", "waiting for input from the terminal"),
    ("nfs", "waiting for a file server"),
)


def _kernel_wait(facts: RankFacts) -> str | None:
    """What the main thread waits on, from the kernel's own word for it. Check: `cat /proc/PID/wchan`."""
    process = facts.process
    if process is None or process.wchan is None or process.state not in "SD":
        return None
    return next((text for part, text in _KERNEL_WAITS if part in process.wchan), None)


def collective_text(op: str | None, seq: int | None, group: str | None) -> str:
    """`all_reduce #1203 of default_pg`."""
    text = op or "collective"
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


def names_of_groups(groups: Iterable[Group]) -> dict[str, str]:
    """Torch's group names as people know them: the description where it is unique, `group 2` where nobody named it."""
    found = list(groups)
    texts = [group.description for group in found]
    return {
        group.name: group.description if _names(group) and texts.count(group.description) == 1 else _numbered(group)
        for group in found
    }


def _names(group: Group) -> bool:
    return group.description not in ("", group.name)


def _numbered(group: Group) -> str:
    return f"{group.description if _names(group) else 'group'} {group.name}"
