"""The columns of the ranks table: which of them fit into a width, and the text of their cells."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ddtop.model.facts import Axis, RankFacts, Snapshot, State
from ddtop.present.now import now_age_s, now_text
from ddtop.present.text import UNICODE, Field, Glyphs, Table, bar, cell_width, clean, hollow, phases
from ddtop.words import units

NOW_LEAST, NOW_USEFUL, NOW_WANTED, NOW_MOST = 12, 17, 21, 44
HOST_MOST, PLACE_MOST = 16, 20
NUMBER = 5
"""Columns of a number beside a bar."""
WAITS = "wait"


@dataclass(frozen=True, slots=True)
class Column(Field):
    """One column of the ranks table.

    `metric`: the entry of `ddtop.metrics` that explains it. `descending`: sorted by this column,
    the largest value comes first.
    """

    metric: str = ""
    descending: bool = True


def _text(key: str, title: str, width: int, metric: str) -> Column:
    return Column(key, title, width, metric=metric, descending=False)


def _number(key: str, title: str, width: int, metric: str, descending: bool = True) -> Column:
    return Column(key, title, width, right=True, metric=metric, descending=descending)


COLUMNS = (
    _number("rank", "RANK", 4, "rank", descending=False),
    _text("state", "STATE", 11, "state"),
    _text("host", "HOST", 6, "host"),
    _text("place", "PLACE", 5, "coordinates"),
    _number("iteration", "ITER", 6, "iteration", descending=False),
    _text("progress", "PROGRESS", 14, "progress"),
    _number("step", "STEP ms", 7, "step_ms"),
    _text("now", "NOW", NOW_LEAST, "now"),
    _number("for", "FOR", 4, "now_age_s"),
    _number("comm", "COMM", 4, "wait_ratio"),
    Column("phases", "PHASES", 8, metric="activity_ratios"),
    _text("loader", "LOADER", 6, "loader"),
    _number("cpu", "CPU", 3, "cpu_ratio"),
    _number("rss", "RSS", 5, "rss_bytes"),
    _number("gpu", "GPU", 4, "gpu"),
    _number("vram", "VRAM", 5, "gpu_memory"),
    _number("power", "POWER", 5, "gpu_power"),
    _text("nccl", "NCCL", 4, "nccl"),
    _number("pid", "PID", 7, "pid", descending=False),
    _number("heard", "HEARD", 5, "report_age_s"),
)
"""In the order of the screen."""
FORMER = {"age": "for", "wait": "comm", "seen": "heard"}
"""Old keys of columns, in settings that an older ddtop saved, or that users still type."""

ALWAYS = ("rank", "state", "now")
_FIRST = ("for", "comm")
_THEN = ("iteration", "heard", "step", "gpu", "vram", "cpu", "loader")
_WIDE = ("host", "place", "power", "phases", "progress", "rss", "nccl", "pid")
_GROWTH = (
    ("now", 28),
    ("iteration", 7),
    ("power", 11),
    ("phases", 14),
    ("loader", 12),
    ("now", NOW_MOST),
)
_GPU_BARS = (("gpu", 10), ("vram", 11))
OF_GPUS = frozenset({"gpu", "vram", "power", "nccl"})


def rank_table(
    width: int,
    world_size: int = 0,
    host_width: int = 0,
    hidden: Collection[str] = (),
    place_width: int = 0,
) -> Table[Column]:
    """The columns for a table of that width. `hidden`: keys of hidden columns; `place_width`: 0 if
    no rank has a position in a grid.

    Widths depend on the size of the job, not on values that change with each tick. Columns are
    added in tiers, because NOW grows between them; `table_for` cannot do that.
    """
    widths = {column.key: column.width for column in COLUMNS}
    widths["rank"] = max(4, len(str(max(world_size - 1, 0))))
    widths["host"] = min(max(host_width, 4), HOST_MOST)
    widths["place"] = min(max(place_width, widths["place"]), PLACE_MOST)
    chosen = set(ALWAYS)
    hidden = {*hidden} if place_width else {*hidden, "place"}
    room = width - sum(widths[key] for key in ALWAYS) - len(ALWAYS) + 1
    # The activity of a rank is more useful than another number, so NOW grows before the next
    # columns are added.
    for now, keys in ((NOW_LEAST, _FIRST), (NOW_USEFUL, _THEN), (NOW_WANTED, _WIDE)):
        if keys is _WIDE:
            # Bars make an idle GPU visible, which another number does not.
            room = _grown(_GPU_BARS, widths, chosen, room)
        grown = max(min(room, now - widths["now"]), 0)
        widths["now"] += grown
        room -= grown
        for key in keys:
            if key not in hidden and room >= widths[key] + 1:
                chosen.add(key)
                room -= widths[key] + 1
    _grown(_GROWTH, widths, chosen, room)
    columns = tuple(column for column in COLUMNS if column.key in chosen)
    return Table(columns, tuple(widths[column.key] for column in columns), gap=1)


def _grown(
    growth: tuple[tuple[str, int], ...], widths: dict[str, int], chosen: Collection[str], room: int
) -> int:
    """Widen these columns in turn, up to the given widths. Returns the room that remains."""
    for key, most in growth:
        if key in chosen and room > 0:
            more = min(room, max(most - widths[key], 0))
            widths[key] += more
            room -= more
    return room


def absent(snapshot: Snapshot | None) -> frozenset[str]:
    """The columns that are empty for this job: those of GPUs if no host has any, PLACE if no group
    has a meaning, PROGRESS if nothing counts it."""
    if snapshot is None:
        return OF_GPUS | {"place", "progress"}
    missing = frozenset() if snapshot.devices else OF_GPUS
    missing |= frozenset() if snapshot.axes else {"place"}
    return missing | (frozenset() if snapshot.progress is not None else {"progress"})


def host_width(snapshot: Snapshot) -> int:
    """Columns of the longest host name."""
    return max(
        (cell_width(clean(host)) for host in {rank.host for rank in snapshot.ranks} if host),
        default=0,
    )


def place_width(snapshot: Snapshot) -> int:
    """Columns of the longest place in the grid."""
    sizes = [cell_width(clean(axis.name)) + len(str(axis.size - 1)) for axis in snapshot.axes]
    return sum(sizes) + max(len(sizes) - 1, 0)


@dataclass(frozen=True, slots=True)
class CellContext:
    """The input of a cell besides its rank: the time of the snapshot, the glyphs, and the
    dimensions of the grid of ranks."""

    time_unix_ns: int
    glyphs: Glyphs = UNICODE
    axes: tuple[Axis, ...] = ()


def state_text(state: State, glyphs: Glyphs = UNICODE) -> str:
    """Glyph and word: `✖ culprit`."""
    return f"{glyphs.states[state]} {state.value}"


def cell_text(key: str, rank: RankFacts, context: CellContext, width: int) -> str:
    """The text of one cell; it may be longer than the layout expected."""
    if key in _PLAIN:
        return _PLAIN[key](rank) or units.NOT_MEASURED
    if key in _WITH_CONTEXT:
        return _WITH_CONTEXT[key](rank, context) or units.NOT_MEASURED
    if key == "iteration":
        return units.narrow_count(rank.progress.iteration, width)
    if key == "phases":
        return phases(rank.reported.activity_ratios, width) or units.NOT_MEASURED
    return _DRAWN[key](rank, context, width) if key in _DRAWN else units.NOT_MEASURED


def _place(rank: RankFacts, context: CellContext) -> str:
    """`pp1 dp0 tp3`."""
    known = {name: place for name, place, _ in rank.comm.coordinates}
    return " ".join(
        f"{clean(axis.name)}{known[axis.name]}" for axis in context.axes if axis.name in known
    )


def _progress(rank: RankFacts) -> str:
    """`12% checkpoint`; only the phase if the number of steps is not known."""
    training = rank.progress.training
    if training is None:
        return ""
    step, total = training.step, training.total_steps
    done = f"{min(step / total, 1.0):.0%}" if step is not None and total else ""
    return " ".join(text for text in (done, clean(training.phase or "")) if text)


_WITH_CONTEXT: dict[str, Callable[[RankFacts, CellContext], str]] = {
    "state": lambda rank, context: state_text(rank.state, context.glyphs),
    "for": lambda rank, context: units.age(now_age_s(rank, context.time_unix_ns)),
    "place": _place,
}
_PLAIN: dict[str, Callable[[RankFacts], str]] = {
    "rank": lambda rank: str(rank.rank),
    "host": lambda rank: clean(rank.host or ""),
    "step": lambda rank: units.milliseconds(rank.progress.step_now_ms),
    "now": now_text,
    "comm": lambda rank: units.percent(rank.comm.wait_ratio),
    "progress": _progress,
    "cpu": lambda rank: units.cores(rank.process.cpu_ratio),
    "rss": lambda rank: units.size(rank.process.rss_bytes),
    "nccl": lambda rank: rank.nccl or "",
    "pid": lambda rank: "" if rank.pid is None else str(rank.pid),
    "heard": lambda rank: units.age(rank.agent.report_age_s),
}


def _gpu(rank: RankFacts, context: CellContext, width: int) -> str:
    gpu = rank.gpu.own.gpu if rank.gpu.own is not None else None
    if gpu is not None and gpu.lost:
        return "lost"
    if gpu is None or gpu.util_ratio is None or rank.gone:
        return units.NOT_MEASURED
    if rank.gpu.waits:
        return waiting_text(gpu.util_ratio, width, context.glyphs)
    return _barred(units.percent(gpu.util_ratio), gpu.util_ratio, context, width)


def waiting_text(ratio: float, width: int, glyphs: Glyphs) -> str:
    """A busy GPU that only waits: the word instead of the share, and a hollow bar, so that neither
    looks like work.
    """
    room = width - NUMBER - 1
    return f"{hollow(ratio, room, glyphs)} {WAITS:>{NUMBER}}" if room >= 4 else WAITS


def _vram(rank: RankFacts, context: CellContext, width: int) -> str:
    gpu = rank.gpu.own.gpu if rank.gpu.own is not None else None
    if gpu is None or gpu.used_bytes is None or not gpu.total_bytes or rank.gone:
        return units.NOT_MEASURED
    return _barred(units.size(gpu.used_bytes), gpu.used_bytes / gpu.total_bytes, context, width)


def _power(rank: RankFacts, context: CellContext, width: int) -> str:
    gpu = rank.gpu.own.gpu if rank.gpu.own is not None else None
    if gpu is None or gpu.power_watts is None or rank.gone:
        return units.NOT_MEASURED
    text = f"{gpu.power_watts:.0f}W"
    if not gpu.power_cap_watts:
        return text
    return _barred(text, gpu.power_watts / gpu.power_cap_watts, context, width)


def _barred(text: str, ratio: float, context: CellContext, width: int) -> str:
    """The number at the right, and before it a bar if at least four columns are left."""
    room = width - NUMBER - 1
    return f"{bar(ratio, room, context.glyphs)} {text:>{NUMBER}}" if room >= 4 else text


def _loader(rank: RankFacts, context: CellContext, width: int) -> str:
    loader = rank.loader.report
    if loader is None or loader.depth is None:
        return units.NOT_MEASURED
    if not loader.capacity:
        return str(loader.depth)
    text = f"{loader.depth}/{loader.capacity}"
    # An empty bar looks like an empty cell.
    if loader.depth == 0:
        return text
    room = width - len(text) - 1
    ratio = loader.depth / loader.capacity
    return (
        f"{bar(ratio, room, context.glyphs)} {text}"
        if room >= 5
        else bar(ratio, width, context.glyphs)
    )


_DRAWN: dict[str, Callable[[RankFacts, CellContext, int], str]] = {
    "loader": _loader,
    "gpu": _gpu,
    "vram": _vram,
    "power": _power,
}
