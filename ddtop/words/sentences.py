"""Collectives, calls, places and process groups, as sentences and table cells name them."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from math import prod
from typing import NamedTuple

from ddtop.grouped import grouped
from ddtop.wire.names import CONNECTIONS, FRAMEWORKS, ORDERS, RECEIVES, RESULTS
from ddtop.wire.records import (
    BESIDE,
    CHECKPOINT,
    COMPILE,
    IDLE,
    OF_TASK,
    SANITY_CHECK,
    TEST,
    TRAIN,
    VALIDATE,
    Asked,
    CallSite,
    Collective,
    Expectation,
    Group,
    Place,
    RpcState,
    Spot,
    StackFrame,
    Stage,
    TrainingProgress,
)
from ddtop.words import units
from ddtop.words.units import plural

# -- Lists of ranks as text and back, and the verb that fits them


_PART = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")
_UNFINISHED = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})?)?")


def rank_list(ranks: Iterable[int], most: int = 0) -> str:
    """Rank numbers the way people write them: `0-4,6,7`.

    `most` > 0 limits the number of ranges; the rest is said as a count.
    """
    ranges: list[list[int]] = []
    numbers = sorted(set(ranks))
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    for rank in numbers:
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    texts = []
    for first, last in ranges[: most or None]:
        if last - first == 1:
            texts.append(f"{first},{last}")
        else:
            texts.append(str(first) if first == last else f"{first}-{last}")
    rest = sum(last - first + 1 for first, last in ranges[most:]) if most else 0
    return ",".join(texts) + (f" and {rest:,} more" if rest else "")


def rank_ranges(text: str, unfinished: bool = False) -> tuple[range, ...] | None:
    """`0-7,12` as ranges, in that order; None if it is not such a list.

    A range whose end is below its beginning is empty. `unfinished`: the user is still typing, so
    `3-` is rank 3, and an empty part between two commas is ignored.
    """
    ranges: list[range] = []
    for part in text.split(","):
        if unfinished and not part:
            continue
        match = _UNFINISHED.fullmatch(part) if unfinished else _PART.fullmatch(part.strip())
        if match is None:
            return None
        first = int(match[1])
        ranges.append(range(first, int(match[2] or first) + 1))
    return tuple(ranges)


def ranks_text(ranks: Collection[int], most: int = 0) -> str:
    """`rank 2`, `ranks 0,1,3`; empty for none.

    `most` > 0 limits the number of ranges. Without it, a list of more than 40 characters becomes a
    count: `200 ranks`.
    """
    if not ranks:
        return ""
    if len(ranks) == 1:
        return f"rank {next(iter(ranks))}"
    text = rank_list(ranks, most)
    return f"ranks {text}" if most or len(text) <= 40 else f"{len(ranks):,} ranks"


def by_value(values: Mapping[int, str]) -> dict[str, list[int]]:
    """The ranks of each value, in the order in which the values first appear."""
    return grouped((value, rank) for rank, value in values.items())


def verb(ranks: Sized | int, one: str, many: str) -> str:
    """The verb in the number of its subject, which is a collection or a number."""
    return one if (ranks if isinstance(ranks, int) else len(ranks)) == 1 else many


# -- Collectives, calls and places in sentences


RANGES_MOST = 4


_NAME = re.compile(r"[\w.:-]{1,64}", re.ASCII)


def quoted(text: str) -> str:
    """Text of the job in an advice: one line, in quotes as a shell reads them; the name of a host
    or of a job without.

    Whoever follows an advice, a person or a language model, must see which words are not ours.
    """
    line = "".join(character if character.isprintable() else " " for character in text)
    return line if _NAME.fullmatch(line) else "'" + line.replace("'", "'\\''") + "'"


def clipped(text: str, most: int) -> str:
    """The text in one line of at most this many characters, cut after a word; a cut shows as an
    ellipsis. A first word that is too long, such as a path, is cut inside."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    start = line[:most].rpartition(" ")[0] or line[: most - 1]
    return start.rstrip(" ,;:") + "…"


def about(ratio: float) -> str:
    """`85%`, in steps of five: a sentence must not change with every sample of a share."""
    return f"{round(ratio * 20) * 5}%" if ratio >= 0.05 else f"{ratio:.0%}"


def file_line(place: Place | Spot | StackFrame) -> str:
    """`data.py:40`."""
    return f"{place.file.rpartition('/')[2]}:{place.line}"


def thread_text(name: str) -> str:
    """`thread writer`, `task produce`: of a task of asyncio the name says so."""
    return name if name.startswith(OF_TASK) else f"thread {name}"


def function_text(place: Place) -> str:
    """`MyCallback.on_train_batch_end`; a function that is not a method by its name alone."""
    return f"{place.owner}.{place.function}" if place.owner else place.function


def asked_text(asked: Asked) -> str:
    """`RolloutWorker (pid 4711) in generate and 2 more`, `Engine, which Ray calls DEAD`."""
    text = asked.actor + (f" (pid {asked.pid})" if asked.pid is not None else "")
    text += f" in {asked.method}" if asked.method is not None else ""
    text += f" and {asked.others} more" if asked.others else ""
    return text if asked.state == "ALIVE" else f"{text}, which Ray calls {asked.state}"


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


def site_text(site: CallSite) -> str:
    """`log_mean (train.py:88)`; `library code` where no frame of the program was there."""
    if not site.file:
        return "library code"
    return f"{site.function} ({site.file.rpartition('/')[2]}:{site.line})"


def made_text(site: CallSite, other: CallSite) -> str:
    """`called all_reduce in log_mean (train.py:88)`; with its caller if `other` is there too."""
    if site.calls is None:
        text = f"called {site.op} in {site_text(site)}"
        alike = site.caller_line and (site.file, site.line) == (other.file, other.line)
        return f"{text[:-1]}, called in line {site.caller_line})" if alike else text
    return f"made {plural(site.calls, 'call')} before the optimizer's step in {site_text(site)}"


_OF_TORCH = {"0": "default_pg", "0" + BESIDE: "default_pg (gloo)"}
"""Torch numbers the groups, beginning with the default one. Whoever looks while that is being made
or destroyed finds no description."""


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

    def of(self, name: str) -> str:
        """The same, also of a group that no rank has described."""
        return self[name] if name in self._groups else _OF_TORCH.get(name, name)

    def short(self, name: str) -> str:
        """For a reader who knows the rank, which is in one such group: `tp`."""
        return group_name(self._groups[name]) if name in self._groups else self.of(name)

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
    if not group.meanings and group.description in ("", group.name):
        return _OF_TORCH.get(group.name, group.description)
    return group.meanings[0] + beside if group.meanings else group.description


def _names(group: Group) -> bool:
    return _named(group) not in ("", group.name)


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


# -- What a rank does: the word in JSON, the text of a table cell, and the phrase of a sentence
#
# Cell and phrase stand side by side, so that the NOW column and a finding never use two names for
# one thing.


class Activity(NamedTuple):
    """One activity. `word`: as in JSON and evidence. `cell`: a few characters for a table cell.
    `phrase`: follows "is" or "has been", as in "rank 2 has been waiting for a lock"."""

    word: str
    cell: str
    phrase: str


WAITS: dict[str, Activity] = {
    "DataLoader": Activity("loader", "DataLoader", "in the DataLoader"),
    "child": Activity("child", "child process", "waiting for a child process"),
    "pool": Activity("child", "worker pool", "waiting for a pool of worker processes"),
    "future": Activity("lock", "future", "waiting for a future of another thread or process"),
    "lock": Activity("lock", "lock", "waiting for a lock"),
    "queue": Activity("queue", "queue", "waiting for a queue"),
    CONNECTIONS: Activity("lock", "connection", "waiting for a free connection of a pool"),
    ORDERS: Activity("queue", "next task", "waiting for the next task"),
    RESULTS: Activity("lock", "results", "waiting for results of the workers"),
    "pipe": Activity("pipe", "pipe", "waiting on a pipe"),
    "rpc": Activity("rpc", "RPC", "waiting for the answer to an RPC"),
    "ray.get": Activity("rpc", "ray.get", "in ray.get"),
    "ray.wait": Activity("rpc", "ray.wait", "in ray.wait"),
    "actor": Activity("socket", "actor", "waiting for calls of the actor"),
    "rpc-shutdown": Activity("lock", "rpc.shutdown", "in rpc.shutdown, waiting for all workers"),
    "socket": Activity("socket", "socket", "waiting on a socket"),
    "asyncio": Activity("socket", "event loop", "waiting in its event loop"),
    "join": Activity("collective", "Join", "in Join, out of data"),
    "stdin": Activity("stdin", "terminal input", "waiting for input from the terminal"),
    "file": Activity("file", "file", "reading or writing a file"),
    "checkpoint-save": Activity("checkpoint-save", "saving checkpoint", "saving a checkpoint"),
    "checkpoint-load": Activity("checkpoint-load", "loading checkpoint", "loading a checkpoint"),
    "cuda-sync": Activity("cuda-sync", "GPU wait", "waiting for the GPU"),
    "debugger": Activity("debugger", "debugger", "in a debugger"),
    "compile": Activity("compile", "compiling", "compiling"),
    "import": Activity("import", "importing", "importing a module"),
    "exit": Activity("exit", "exit", "waiting at exit for its other threads"),
}
"""By the words of `wire.records.Place.waits_on`."""

COLLECTIVE = Activity("collective", "collective", "in a collective")
P2P = Activity("p2p", "point-to-point", "in a point-to-point call")

COMPUTES = ("forward", "backward", "optimizer")
"""Of `wire.records.ACTIVITIES`: the rank computes. The name is the text of the cell."""

OF_THREAD: dict[str, Activity] = {
    "loader": WAITS["DataLoader"],
    "cuda_sync": WAITS["cuda-sync"],
    "collective": COLLECTIVE,
}
"""Of `wire.records.ACTIVITIES`: the rank waits."""


# -- How a process ended, as text


def signal_name(number: int) -> str:
    """`SIGKILL`; a number without a name stays a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_text(code: int | None, number: int | None, oom: bool | None = None) -> str:
    """`exit code 1`, `SIGKILL`, `SIGKILL (out of memory)`; `exit code unknown` where no one knows.

    `number` is the signal that ended the process, None where it was none.
    """
    if number is not None:
        name = signal_name(number)
        return f"{name} (out of memory)" if oom else name
    return f"exit code {code}" if code is not None else "exit code unknown"


# -- How far a training is, as text: `step 1,200 of 10,000, epoch 3.2 of 10, loss 2.31`


PHASE_WORDS = {
    TRAIN: "training",
    VALIDATE: "validating",
    TEST: "testing",
    CHECKPOINT: "saving a checkpoint",
    COMPILE: "compiling",
    SANITY_CHECK: "checking the validation loop",
    IDLE: "idle",
}


def phase_text(phase: str) -> str:
    """`saving a checkpoint`; a word of the program's own: `in phase warm-up`."""
    return PHASE_WORDS.get(phase) or f"in phase {phase}"


def expected_text(
    ranks: Sequence[int],
    region: Expectation,
    now_unix_ns: int,
    lasting: Callable[[float], str] = lambda seconds: f" for {units.duration(seconds)}",
) -> str:
    """`rank 0 has been in 'export' for 11 min; 10 min were expected`; until then the expected
    end."""
    who, where = ranks_text(ranks), f"in '{region.name}'"
    if now_unix_ns < region.until_unix_ns:
        return (
            f"{who} {verb(ranks, 'is', 'are')} {where}, which is expected to end by"
            f" {units.clock(region.until_unix_ns)}"
        )
    lasts_s = (now_unix_ns - region.since_unix_ns) / 1e9
    limit = units.duration((region.until_unix_ns - region.since_unix_ns) / 1e9)
    return (
        f"{who} {verb(ranks, 'has', 'have')} been {where}{lasting(lasts_s)}; {limit}"
        f" {'was' if limit == '1 s' else 'were'} expected"
    )


def progress_text(progress: TrainingProgress) -> str:
    """All that is known, in one line."""
    return ", ".join(progress_parts(progress))


def progress_parts(progress: TrainingProgress) -> tuple[str, ...]:
    """All that is known, a piece each; numbers that nobody counts are left out."""
    parts = [
        _of("step", progress.step, progress.total_steps),
        _of("epoch", progress.epoch, progress.total_epochs),
        phase_text(progress.phase) if progress.phase is not None else "",
        f"{number(progress.samples_per_s)} samples/s" if progress.samples_per_s is not None else "",
        f"{number(progress.tokens_per_s)} tokens/s" if progress.tokens_per_s is not None else "",
        f"loss {loss_text(progress.loss)}" if progress.loss is not None else "",
        f"lr {progress.lr:.3g}" if progress.lr is not None else "",
        f"{units.duration(progress.eta_s)} left" if progress.eta_s is not None else "",
    ]
    return tuple(part for part in parts if part)


def only_steps(progress: TrainingProgress) -> TrainingProgress:
    """The same without the parts that end with the job: only steps and epochs."""
    return TrainingProgress(
        source=progress.source,
        step=progress.step,
        total_steps=progress.total_steps,
        epoch=progress.epoch,
        total_epochs=progress.total_epochs,
    )


def number(value: float | None) -> str:
    """Three digits, and all digits of a large whole number: `2.31`, `41`, `12,480`."""
    if value is None:
        return units.NOT_MEASURED
    return f"{value:,.0f}" if abs(value) >= 100 and abs(value) < 1e15 else f"{value:.3g}"


def loss_text(value: float) -> str:
    """As `number`, but with the zeros at its end: `2.00` is not exactly 2, and keeps its width."""
    return number(value) if abs(value) >= 100 else f"{value:#.3g}"


def _of(name: str, done: float | None, total: float | None) -> str:
    if done is None:
        return ""
    own = f"{done:,.0f}" if done == int(done) else f"{done:,.1f}"
    return f"{name} {own}" + (f" of {total:,.0f}" if total else "")
