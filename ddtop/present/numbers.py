"""The numbers of a rank: one table for the columns of the ranks table, the order of its rows, the
filter and the map."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

from ddtop.model.facts import Axis, RankFacts, Snapshot, State
from ddtop.present.lanes import Lanes, lane_line
from ddtop.present.now import doing, heard_age_s, now_age_s, now_text
from ddtop.present.text import (
    UNICODE,
    Field,
    Glyphs,
    Line,
    Table,
    bar,
    cell_width,
    clean,
    elide,
    hollow,
    phases,
)
from ddtop.thresholds import chosen
from ddtop.wire.records import Gpu, Group
from ddtop.words import units
from ddtop.words.sentences import names_of_groups

NOW_LEAST, NOW_USEFUL, NOW_WANTED, NOW_MOST = 12, 17, 21, 44
HOST_MOST, PLACE_MOST = 16, 20
HOST_ROOM = 3
"""Its `room` in a job on several hosts."""
NUMBER = 5
"""Columns of a number beside a bar."""
WAITS = "wait"
LANE, LANE_LEAST, LANE_WANTED, LANE_MOST = "lane", 20, 36, 60
REPLACED = ("comm", "phases")
"""What lanes show as well: these columns are hidden until somebody wants them."""
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class CellContext:
    """The input of a cell besides its rank: the time of the snapshot, the glyphs, the dimensions of
    the grid of ranks, the process groups, and what is remembered of the ranks."""

    time_unix_ns: int
    glyphs: Glyphs = UNICODE
    axes: tuple[Axis, ...] = ()
    groups: tuple[Group, ...] = ()
    lanes: Lanes | None = None


Value = Callable[[RankFacts, int], Any]
"""From a rank and the time of the snapshot (unix ns); None is not measured."""
Cell = Callable[[RankFacts, CellContext, int], str]
"""The text for so many columns; it may be longer, and is empty where nothing is measured."""
Drawn = Callable[[RankFacts, CellContext, int], Line]
"""The cell of a column that is a picture, in at most so many columns."""


Bad = Literal["high", "low", "far"]


@dataclass(frozen=True, slots=True)
class Scale:
    """How the map is coloured by a number.

    `label`: empty where it is not. `text`: the value in words. `of`: the whole that the number is a
    part of; then the map shows the share. `bad`: the value to look at, the highest, the lowest, or
    the one farthest from the others. `least`: smaller differences are noise.
    """

    label: str = ""
    text: Callable[[Any], str] = str
    of: Value | None = None
    bad: Bad = "high"
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Number(Field):
    """One number, or word, of a rank: everything that is shown of it.

    `width` 0: it has no column. `metric`: the entry of `ddtop.metrics` that explains it. `cell`:
    its text; None: `form` of the value. `drawn`: it is a picture instead. `order`: what rows
    are sorted by, if not by the value; `descending`: the largest comes first. `room`: the order
    in which columns get room; 0 is always there, see `rank_table`. `per`: a filter compares the
    value times this, in the unit of the table; None: it cannot. `needs`: the field of Snapshot
    without which the column is hidden.
    `bar`, `quiet`, `alarm`: the cell has a bar, is faint, and is alarming with this text.
    """

    value: Value = lambda rank, _: rank.rank
    metric: str = ""
    form: Callable[[Any], str] = str
    cell: Cell | None = None
    drawn: Drawn | None = None
    order: Value | None = None
    descending: bool = True
    room: int = 0
    per: float | None = None
    scale: Scale = Scale()
    needs: str = ""
    bar: bool = False
    quiet: bool = False
    alarm: str = ""


def state_text(state: State, glyphs: Glyphs = UNICODE) -> str:
    """Glyph and word: `✖ culprit`."""
    return f"{glyphs.states[state]} {state.value}"


def cell_text(number: Number, rank: RankFacts, context: CellContext, width: int) -> str:
    """The text of one cell; it may be longer than the layout expected."""
    if number.cell is not None:
        return number.cell(rank, context, width) or units.NOT_MEASURED
    value = number.value(rank, context.time_unix_ns)
    return units.NOT_MEASURED if value is None else number.form(value) or units.NOT_MEASURED


def _place(rank: RankFacts, context: CellContext, _: int) -> str:
    """`pp1 dp0 tp3`."""
    known = {name: place for name, place, _ in rank.comm.coordinates}
    return " ".join(
        f"{clean(axis.name)}{known[axis.name]}" for axis in context.axes if axis.name in known
    )


def _now(rank: RankFacts, context: CellContext, width: int) -> str:
    """`all_reduce dp_2 #196801`: numbers of collectives mean nothing without their group."""
    now = doing(rank)
    op, mark, number = now.text.rpartition(" #")
    name = now.group if mark and len(rank.comm.groups) > 1 else ""
    group = clean(names_of_groups(context.groups).short(name))
    return elide(
        f"{op} {group}{mark}{number}" if name else now.text, width, context.glyphs.ellipsis
    )


def _lane(rank: RankFacts, context: CellContext, width: int) -> Line:
    """What it did in the last seconds."""
    return lane_line(context.lanes.of(rank.rank, width), context.glyphs) if context.lanes else ()


def _progress(rank: RankFacts, _: CellContext, __: int) -> str:
    """`12% checkpoint`; only the phase if the number of steps is not known."""
    training = rank.progress.training
    if training is None:
        return ""
    step, total = training.step, training.total_steps
    done = f"{min(step / total, 1.0):.0%}" if step is not None and total else ""
    return " ".join(text for text in (done, clean(training.phase or "")) if text)


def _of_gpu(read: Callable[[Gpu], float | None]) -> Value:
    """A number of the rank's own GPU; None once the rank has gone, because the GPU is another
    process's by then."""
    return lambda rank, _: None if rank.gpu.own is None or rank.gone else read(rank.gpu.own.gpu)


_util_ratio = _of_gpu(lambda gpu: gpu.util_ratio)
_used_bytes = _of_gpu(lambda gpu: gpu.used_bytes if gpu.total_bytes else None)
_total_bytes = _of_gpu(lambda gpu: gpu.total_bytes)
_watts = _of_gpu(lambda gpu: gpu.power_watts)
_cap_watts = _of_gpu(lambda gpu: gpu.power_cap_watts)


def only_waits(rank: RankFacts) -> bool:
    """Whether its GPU is busy only with waiting.

    That of a blocked rank is, unless its power is that of work: a viewer that has come late has not
    seen how much power work takes.
    """
    own, blocked = rank.gpu.own, rank.state is State.BLOCKED and not rank.gpu.computes
    busy = own is not None and (own.gpu.util_ratio or 0.0) >= chosen().gpu_wait_busy_ratio
    return bool(rank.gpu.waits) or (blocked and busy)


def _work_ratio(rank: RankFacts, now: int) -> float | None:
    """A GPU that only waits is sorted below all that compute."""
    ratio: float | None = _util_ratio(rank, now)
    return ratio - 2.0 if ratio is not None and only_waits(rank) else ratio


def _gpu(rank: RankFacts, context: CellContext, width: int) -> str:
    if rank.gpu.own is not None and rank.gpu.own.gpu.lost:
        return "lost"
    ratio = _util_ratio(rank, context.time_unix_ns)
    if ratio is not None and only_waits(rank):
        return waiting_text(ratio, width, context.glyphs)
    return _barred(units.percent(ratio), ratio, context, width)


def waiting_text(ratio: float, width: int, glyphs: Glyphs) -> str:
    """A busy GPU that only waits: the word instead of the share, and a hollow bar, so that neither
    looks like work.
    """
    room = width - NUMBER - 1
    return f"{hollow(ratio, room, glyphs)} {WAITS:>{NUMBER}}" if room >= 4 else WAITS


def _part(value: Value, whole: Value, form: Callable[[Any], str]) -> Cell:
    """The number, and a bar of its share of the whole where that is known."""

    def cell(rank: RankFacts, context: CellContext, width: int) -> str:
        now = context.time_unix_ns
        part, most = value(rank, now), whole(rank, now)
        ratio = part / most if part is not None and most else None
        return _barred(form(part) if part is not None else "", ratio, context, width)

    return cell


def _barred(text: str, ratio: float | None, context: CellContext, width: int) -> str:
    """The number at the right, and before it a bar if at least four columns are left."""
    room = width - NUMBER - 1
    if ratio is None or room < 4:
        return text
    return f"{bar(ratio, room, context.glyphs)} {text:>{NUMBER}}"


def _loader(rank: RankFacts, context: CellContext, width: int) -> str:
    loader = rank.loader.report
    if loader is None or loader.depth is None:
        return ""
    if not loader.capacity:
        return str(loader.depth)
    text = f"{loader.depth}/{loader.capacity}"
    room = width - len(text) - 1
    # An empty bar looks like an empty cell.
    if loader.depth == 0 or room < 2:
        return f"{text:>{width}}"
    return f"{bar(loader.depth / loader.capacity, room, context.glyphs)} {text}"


_STATE_ORDER = {
    state: number
    for number, state in enumerate(
        (
            State.CULPRIT,
            State.KILLED,
            State.EXITED,
            State.MISSING,
            State.LOST,
            State.STOPPED,
            State.SILENT,
            State.STRAGGLER,
            State.WARNING,
            State.BLOCKED,
            State.STARTING,
            State.JOINING,
            State.WAITING,
            State.RUNNING,
        )
    )
}

NUMBERS = (
    Number("rank", "RANK", 4, True, metric="rank", descending=False),
    Number(
        "state",
        "STATE",
        11,
        value=lambda rank, _: _STATE_ORDER[rank.state],
        metric="state",
        cell=lambda rank, context, _: state_text(rank.state, context.glyphs),
        descending=False,
    ),
    Number(
        "host",
        "HOST",
        6,
        value=lambda rank, _: rank.host,
        metric="host",
        form=clean,
        descending=False,
        room=11,
        quiet=True,
    ),
    Number(
        "place",
        "PLACE",
        5,
        value=lambda rank, _: rank.comm.coordinates or None,
        metric="coordinates",
        cell=_place,
        descending=False,
        room=11,
        needs="axes",
        quiet=True,
    ),
    Number(
        "iteration",
        "ITER",
        6,
        True,
        value=lambda rank, _: rank.progress.iteration,
        metric="iteration",
        cell=lambda rank, _, width: units.narrow_count(rank.progress.iteration, width),
        descending=False,
        room=4,
        per=1,
    ),
    Number(
        "progress",
        "PROGRESS",
        14,
        value=lambda rank, _: rank.progress.training.step if rank.progress.training else None,
        metric="progress",
        cell=_progress,
        descending=False,
        room=14,
        needs="progress",
    ),
    Number(
        "step",
        "STEP ms",
        7,
        True,
        value=lambda rank, _: rank.progress.step_now_ms,
        metric="step_ms",
        form=units.milliseconds,
        room=5,
        per=1,
        scale=Scale("step time", lambda value: f"{units.milliseconds(value)} ms"),
    ),
    Number(
        LANE,
        "LAST SECONDS",
        LANE_LEAST,
        value=lambda rank, _: rank.comm.wait_ratio,
        metric="lane",
        drawn=_lane,
        room=3,
    ),
    Number(
        "now",
        "NOW",
        NOW_LEAST,
        value=lambda rank, _: now_text(rank),
        metric="now",
        cell=_now,
        descending=False,
    ),
    Number(
        "for", "FOR", 4, True, value=now_age_s, metric="now_age_s", form=units.age, room=1, per=1
    ),
    Number(
        "comm",
        "COMM",
        4,
        True,
        value=lambda rank, _: rank.comm.wait_ratio,
        metric="wait_ratio",
        form=units.percent,
        room=2,
        per=100,
        # A rank that is waited for is the one that waits least itself.
        scale=Scale("comm wait", units.percent, bad="low", least=0.25),
    ),
    Number(
        "phases",
        "PHASES",
        8,
        value=lambda rank, _: rank.loader.wait_ratio,
        metric="activity_ratios",
        cell=lambda rank, _, width: phases(rank.reported.activity_ratios, width),
        room=13,
        quiet=True,
    ),
    Number(
        "loader",
        "LOADER",
        6,
        value=lambda rank, _: rank.loader.report.depth if rank.loader.report else None,
        metric="loader",
        cell=_loader,
        descending=False,
        room=9,
        per=1,
        bar=True,
    ),
    Number(
        "cpu",
        "CPU",
        3,
        True,
        value=lambda rank, _: rank.process.cpu_ratio,
        metric="cpu_ratio",
        form=units.cores,
        room=10,
        per=100,
        scale=Scale("CPU", units.percent, bad="far", least=0.5),
    ),
    Number(
        "rss",
        "RSS",
        5,
        True,
        value=lambda rank, _: rank.process.rss_bytes,
        metric="rss_bytes",
        form=units.size,
        room=15,
        per=1 / _GIB,
        scale=Scale("memory", lambda value: units.size(int(value))),
    ),
    Number(
        "gpu",
        "GPU",
        4,
        True,
        value=_util_ratio,
        metric="gpu",
        cell=_gpu,
        order=_work_ratio,
        room=3,
        per=100,
        scale=Scale("GPU use", units.percent, bad="low", least=0.25),
        needs="devices",
        bar=True,
        alarm="lost",
    ),
    Number(
        "vram",
        "VRAM",
        5,
        True,
        value=_used_bytes,
        metric="gpu_memory",
        cell=_part(_used_bytes, _total_bytes, units.size),
        room=3,
        per=1 / _GIB,
        scale=Scale("GPU memory", units.percent, of=_total_bytes, least=0.25),
        needs="devices",
        bar=True,
    ),
    Number(
        "power",
        "POWER",
        5,
        True,
        value=_watts,
        metric="gpu_power",
        cell=_part(_watts, _cap_watts, lambda watts: f"{watts:.0f}W"),
        room=12,
        scale=Scale("GPU power", lambda watts: f"{watts:.0f} W", bad="far"),
        needs="devices",
        bar=True,
    ),
    Number(
        "heat",
        "",
        0,
        value=_of_gpu(lambda gpu: gpu.celsius),
        scale=Scale("GPU temperature", lambda value: f"{value:.0f} C"),
        needs="devices",
    ),
    Number(
        "nccl",
        "NCCL",
        4,
        value=lambda rank, _: rank.nccl,
        metric="nccl",
        descending=False,
        room=16,
        needs="devices",
        quiet=True,
        alarm="err",
    ),
    Number(
        "pid",
        "PID",
        7,
        True,
        value=lambda rank, _: rank.pid,
        metric="pid",
        descending=False,
        room=17,
        per=1,
        quiet=True,
    ),
    Number(
        "heard",
        "HEARD",
        5,
        True,
        value=lambda rank, _: heard_age_s(rank),
        metric="report_age_s",
        form=units.age,
        room=10,
        per=1,
        quiet=True,
    ),
)
"""In the order of the screen."""
COLUMNS = tuple(number for number in NUMBERS if number.width)
BY_KEY = {number.key: number for number in NUMBERS}
_GROWTH = (
    ("now", 28),
    (LANE, LANE_MOST),
    ("iteration", 7),
    ("power", 11),
    ("phases", 14),
    ("loader", 12),
    ("now", NOW_MOST),
)
_GPU_BARS = (("gpu", 10), ("vram", 11))
_ROOM = (
    ((("now", NOW_LEAST),), range(1, 4)),
    ((("now", NOW_USEFUL), (LANE, LANE_WANTED)), range(4, 10)),
    ((("now", NOW_WANTED), *_GPU_BARS), range(10, 100)),
)
"""Before the columns with these numbers of `room` are added, these have such widths. What a rank
does and did is more useful than another number; bars make an idle GPU visible."""


def rank_table(
    width: int,
    world_size: int = 0,
    host_width: int = 0,
    hidden: Collection[str] = (),
    place_width: int = 0,
    several_hosts: bool = False,
) -> Table[Number]:
    """The columns for a table of that width. `hidden`: keys of hidden columns; `place_width`: 0 if
    no rank has a position in a grid. `several_hosts`: which host a rank is on says something.

    Widths depend on the size of the job, not on values that change with each tick. Columns are
    added in tiers, because NOW grows between them; `table_for` cannot do that.
    """
    widths = {column.key: column.width for column in COLUMNS}
    places = {column.key: column.room for column in COLUMNS}
    places |= {"host": HOST_ROOM} if several_hosts else {}
    widths["rank"] = max(4, len(str(max(world_size - 1, 0))))
    widths["host"] = min(max(host_width, 4), HOST_MOST)
    widths["place"] = min(max(place_width, widths["place"]), PLACE_MOST)
    chosen = {column.key for column in COLUMNS if not column.room}
    hidden = {*hidden} if place_width else {*hidden, "place"}
    room = width - sum(widths[key] for key in chosen) - len(chosen) + 1
    for growth, rooms in _ROOM:
        room = _grown(growth, widths, chosen, room)
        for column in sorted(COLUMNS, key=lambda column: places[column.key]):
            key = column.key
            if places[key] in rooms and key not in hidden and room >= widths[key] + 1:
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
    """The numbers that this job cannot have: those of GPUs if no host has any, PLACE if no group
    has a meaning, PROGRESS if nothing counts it, or where all ranks are in one phase: then it is
    said once, below them."""
    lacks = {
        number.key
        for number in NUMBERS
        if number.needs and not (snapshot is not None and getattr(snapshot, number.needs))
    }
    training = (rank.progress.training for rank in snapshot.ranks) if snapshot is not None else ()
    shared = len({one.phase for one in training if one is not None}) < 2
    return frozenset(lacks | {"progress"} if shared else lacks)


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
