"""Panels about the ranks at fault: where they are, who waits for them, and what they lack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from statistics import median

from ddtop.follow.history import PERIOD_NS, Memory
from ddtop.model.chain import waiting_end
from ddtop.model.facts import RankFacts, State
from ddtop.model.stacks import StackClass
from ddtop.present.charts import size_scale
from ddtop.present.groups import group_waits
from ddtop.present.job_charts import drawn
from ddtop.present.lanes import CLASSES_MOST, alike, lane_line
from ddtop.present.log import last_lines
from ddtop.present.now import spot_text
from ddtop.present.numbers import COLUMNS, NOW_MOST, CellContext, cell_text, state_text
from ddtop.present.scene import Scene
from ddtop.present.stacks import excerpt_lines, path_lines, path_steps
from ddtop.present.strip import SPAN_LEAST_S, milliseconds_text
from ddtop.present.text import (
    BETWEEN,
    Line,
    Span,
    abreast,
    cell_width,
    clean,
    clip,
    fit,
    hang,
    plain,
    state_style,
)
from ddtop.say.chain import chain_lines
from ddtop.thresholds import chosen
from ddtop.wire.records import Gpu, Place, Spot, by_function
from ddtop.words import units
from ddtop.words.sentences import collective_text, names_of_groups, ranks_text

NAMED_MOST = 8
"""So many numbers of ranks stand in a line."""
SPAN_MOST_S = 240
LANE_LEAST = 20
LOG_ROWS = 6


def _of_culprit(
    make: Callable[[Scene, RankFacts, int, int], list[Line]],
) -> Callable[[Scene, int, int], list[Line]]:
    """A panel about the first rank at fault; empty while nobody is."""

    @wraps(make)
    def panel(scene: Scene, width: int, rows: int) -> list[Line]:
        return [] if scene.culprit is None else make(scene, scene.culprit, width, rows)

    return panel


def _head(scene: Scene, text: str, width: int) -> Line:
    glyphs = scene.glyphs
    text = clip(f"{glyphs.rule * 2} {text} ", width, glyphs.ellipsis)
    return ((text, "heading"), (glyphs.rule * (width - cell_width(text)), "rule"))


# -- Where the culprit is, and where the others are


@_of_culprit
def where_panel(scene: Scene, rank: RankFacts, width: int, rows: int) -> list[Line]:
    """The stack of the first rank at fault with the source around its line, and below it the stack
    of the others; without stacks, its place or the place where its samples found it."""
    own = _class_with(scene, rank)
    if own is None:
        unseen = rank.gone or rank.state is State.LOST
        where = f"where rank {rank.rank} {'was' if unseen else 'is'}"
        parts = [_place_lines(scene, rank, width)]
    else:
        where = f"where {ranks_text(own.ranks, 4)} {'is' if len(own.ranks) == 1 else 'are'}"
        parts = [_class_lines(scene, own, width)]
        if (others := _others(scene, own)) is not None:
            path, source = _class_lines(scene, others, width)
            parts.append(([((f"{ranks_text(others.ranks, 4)}:", "dim"),), *path], source))
    if not parts[0][0]:
        return []
    return [_head(scene, where, width), *_fitting(parts, rows - 1, scene.glyphs.arrow)]


Part = tuple[list[Line], list[Line]]
"""Where ranks are, and the source there."""


def _fitting(parts: Sequence[Part], rows: int, arrow: str) -> list[Line]:
    """As many of the parts as fit, then with only the line of each source that has the arrow; the
    others are left out first."""
    brief = [
        (path, [line for line in source if line[0][0].startswith(arrow)]) for path, source in parts
    ]
    for shown in (parts, brief, parts[:1], brief[:1]):
        lines = [line for path, source in shown for line in [*path, *source]]
        if len(lines) <= rows:
            return lines
    return lines[:rows]


def _class_with(scene: Scene, rank: RankFacts) -> StackClass | None:
    classes = scene.merged.classes if scene.merged is not None and not _is_moving(rank) else ()
    return next((one for one in classes if one.main and rank.rank in one.ranks), None)


def _is_moving(rank: RankFacts) -> bool:
    """Its stack was taken before it went on."""
    taken = rank.dump.stacks.taken_unix_ns if rank.dump.stacks is not None else 0
    return not rank.gone and (rank.progress.last_unix_ns or 0) > taken


def _others(scene: Scene, own: StackClass) -> StackClass | None:
    classes = scene.merged.classes if scene.merged is not None else ()
    found = [one for one in classes if one.main and one is not own]
    return max(found, key=lambda one: len(one.ranks), default=None)


def _class_lines(scene: Scene, one: StackClass, width: int) -> Part:
    path = [((" ", ""), *line) for line in path_lines(path_steps(one), width - 1, scene.glyphs)]
    frame = one.user_frame
    return path, _source(scene, one.ranks[0], frame, width) if frame is not None else []


def _place_lines(scene: Scene, rank: RankFacts, width: int) -> Part:
    spots = by_function(rank.reported.spots)
    place: Place | Spot | None = rank.reported.own_place or rank.reported.place
    text = "it was last in" if rank.gone else "in"
    # Of a rank that stands still, the samples of the last half minute tell where it was before.
    if spots and rank.reported.spots_samples and not (rank.gone or rank.progress.stale):
        place = spots[0]
        share = units.percent(place.samples / rank.reported.spots_samples)
        text = f"{share} of its samples in"
    if place is None:
        return [], []
    path: list[Line] = [((line, ""),) for line in hang(f"{text} {spot_text(place)}", width, " ")]
    return path, _source(scene, rank.rank, place, width)


def _source(scene: Scene, rank: int, at: object, width: int) -> list[Line]:
    """The source around a line, if it is known and could be read."""
    file, line = getattr(at, "file", ""), getattr(at, "line", 0)
    hello = scene.snapshot.rank(rank).hello
    started = hello.started_unix_ns if hello is not None else 0
    excerpt = scene.read(file, line, started) if scene.read is not None and file else None
    return excerpt_lines(excerpt, file, line, width, scene.glyphs)


# -- Two ranks side by side: one at fault, and a healthy one of its group


def healthy_beside(scene: Scene, rank: int) -> int:
    """The rank to compare this one with: of its group, not at fault, and alive if one is."""
    name = scene.finding.group if scene.finding is not None else None
    groups = sorted(scene.snapshot.groups, key=lambda group: (group.name != name, len(group.ranks)))
    members = next((group.ranks for group in groups if rank in group.ranks), ())
    members = members or tuple(range(len(scene.snapshot.ranks)))
    order = sorted(members, key=lambda one: (one in scene.at_fault, scene.snapshot.rank(one).gone))
    return next((one for one in order if one != rank), rank)


def pair_lines(scene: Scene, pair: tuple[int, int], width: int) -> list[Line]:
    """The numbers of two ranks, those that differ in bold, what they did in the last seconds, and
    where they are."""
    ranks = [scene.snapshot.rank(number) for number in pair]
    snapshot, glyphs, label = scene.snapshot, scene.glyphs, 10
    wide, room = (width - BETWEEN) // 2, (width - label) // 2
    if scene.memories is not None:
        scene.memories.read(pair)
    context = CellContext(
        snapshot.time_unix_ns, glyphs, snapshot.axes, snapshot.groups, scene.lanes
    )
    lines: list[Line] = []
    for number in COLUMNS:
        cells: list[Line] = [
            number.drawn(rank, context, room - 2)
            if number.drawn is not None
            else ((cell_text(number, rank, context, min(room - 1, NOW_MOST)), ""),)
            for rank in ranks
        ]
        texts = [plain(cell) for cell in cells]
        if set(texts) == {units.NOT_MEASURED}:
            continue
        spans: list[Span] = [(fit("LATELY" if number.drawn else number.title, label), "dim")]
        for rank, cell, text in zip(ranks, cells, texts, strict=True):
            differs = "bold" if texts[0] != texts[1] else ""
            style = state_style(rank) if number.key == "state" else differs
            spans += [(part, own or style) for part, own in cell]
            spans.append((" " * (room - cell_width(text)), ""))
        lines.append(tuple(spans))
    parts = []
    for rank in ranks:
        own = _class_with(scene, rank)
        path, source = (
            _place_lines(scene, rank, wide) if own is None else _class_lines(scene, own, wide)
        )
        parts.append([_head(scene, f"where rank {rank.rank} is", wide), *path, *source])
    return [*lines, (), *abreast(parts, wide, glyphs)]


# -- Who waits for whom


@_of_culprit
def waits_panel(scene: Scene, rank: RankFacts, width: int, rows: int) -> list[Line]:
    """The ranks at fault, in waves those that wait for them, and what they themselves wait for, to
    the end of that chain."""
    roots = frozenset(scene.at_fault)
    if not roots:
        return []
    texts = _waves(scene, roots)
    lines: list[Line] = []
    if texts:
        lines = [((f"{scene.glyphs.critical} {ranks_text(roots, NAMED_MOST)}", "culprit"),)]
    for lead, text in texts:
        lines += [((line, "blocked"),) for line in hang(text, width, lead)]
    for text in _chain(scene, rank):
        lines += [((line, ""),) for line in hang(clean(text), width, " ")]
    return [_head(scene, "who waits for whom", width), *lines][:rows] if lines else []


def _waves(scene: Scene, roots: frozenset[int]) -> list[tuple[str, str]]:
    """Those that wait for the roots, a line for each group, and a line for all behind them."""
    snapshot, glyphs = scene.snapshot, scene.glyphs
    named = names_of_groups(snapshot.groups)
    left = group_waits(snapshot, chosen())
    direct = sorted(
        (name for name, wait in left.items() if wait.behind & roots),
        key=lambda name: len(left[name].waiting),
    )
    texts: list[str] = []
    held: frozenset[int] = frozenset()
    for name in direct[:NAMED_MOST]:
        wait, first = left[name], snapshot.rank(min(left[name].waiting)).wait
        op = clean(collective_text(first.op, first.seq)) if first is not None else "a collective"
        # Since when is in the rows: panels are not drawn at every look.
        texts.append(f"{_ranks(wait.waiting)} in {op} of {clean(named.of(name))}")
        held |= wait.waiting
    for peer in snapshot.peer_waits:
        if roots.intersection(peer.behind) and len(texts) < NAMED_MOST:
            texts.append(f"rank {peer.rank} in {clean(peer.call)}")
    lines = [(f" {glyphs.left} ", text) for text in texts]
    others = [wait.waiting for name, wait in left.items() if name not in direct]
    behind = frozenset().union(*others) - held - roots
    if lines and behind:
        lines.append((f"   {glyphs.left} ", f"{_ranks(behind)} behind those"))
    return lines


def _ranks(ranks: frozenset[int]) -> str:
    return ranks_text(ranks) if len(ranks) <= NAMED_MOST else f"{len(ranks):,} ranks"


def _chain(scene: Scene, rank: RankFacts) -> list[str]:
    waiters = scene.finding.victims if scene.finding is not None else ()
    found = chain_lines(rank, waiting_end(scene.snapshot, rank, waiters))
    loader = rank.loader.report
    if not found and loader is not None and loader.owing_pid is not None:
        state = f", state {loader.owing_state}" if loader.owing_state else ""
        found = [f"rank {rank.rank} waits for its loader worker pid {loader.owing_pid}{state}"]
    return found


# -- One step of a straggler


@_of_culprit
def step_panel(scene: Scene, rank: RankFacts, width: int, rows: int) -> list[Line]:
    """One step: the rank that is last works to its end, the others wait for it."""
    late = rank.late
    if late is None or late.step_ms <= 0:
        return []
    steps = f"the last {late.steps} steps"
    title = f"one step of {milliseconds_text(late.step_ms)}, median of {steps}"
    names = ranks_text(late.ranks, 3), ranks_text(late.waiters, 3)
    label = max(map(cell_width, names)) + 3
    notes = "last", f"wait {milliseconds_text(late.cost_ms)}"
    columns = width - label - max(map(len, notes)) - 1
    if columns < 8:
        return []
    waits = round(columns * late.share_ratio)
    works = columns - waits
    glyphs = scene.glyphs
    behind = _behind(scene, {*late.ranks, *late.waiters})
    more: list[Line] = [((f"  {behind:,} ranks wait behind those", "dim"),)] if behind else []
    return [
        _head(scene, title, width),
        (
            (fit(f"{glyphs.critical} {names[0]}", label), "culprit"),
            (glyphs.full * columns, "band0"),
            (f" {notes[0]}", "culprit"),
        ),
        (
            (fit(f"  {names[1]}", label), ""),
            (glyphs.full * works, "band0"),
            (glyphs.lane[1] * waits, "band1"),
            (f" {notes[1]}", ""),
        ),
        *more,
    ][:rows]


def _behind(scene: Scene, known: set[int]) -> int:
    """How many other ranks share groups with these, directly or through others: they cannot be
    faster."""
    left = [frozenset(group.ranks) for group in scene.snapshot.groups]
    reached = set(known)
    while joined := [ranks for ranks in left if not reached.isdisjoint(ranks)]:
        reached.update(*joined)
        left = [ranks for ranks in left if reached.isdisjoint(ranks)]
    return len(reached) - len(known)


# -- What one rank lacks: memory, data


def _series_chart(
    scene: Scene,
    rank: RankFacts,
    title: Sequence[Span],
    series: Callable[[Memory], Sequence[float | None]],
    top: float | None,
    text: Callable[[float], str],
    width: int,
    rows: int,
) -> list[Line]:
    if scene.memories is None:
        return []
    memory = scene.memories.memory_of(rank.rank)
    values, last = list(series(memory)), scene.until_unix_ns // PERIOD_NS
    seconds = list(memory.seconds)[-len(values) :] if values else []
    taken = {
        second: value
        for second, value in zip(seconds, values, strict=True)
        if value is not None and last - second < SPAN_MOST_S
    }
    if not taken:
        return []
    span = max(last - min(taken) + 1, SPAN_LEAST_S)

    def columns_of(columns: int) -> list[float | None]:
        found: list[float | None] = [None] * columns
        for second, value in taken.items():
            at = max((second - last + span - 1) * columns // span, 0)
            found[at:] = [value] * (columns - at)
        return found

    _, high = size_scale(list(taken.values()))
    ends = (0.0, max(top, high) if top else high)
    body = drawn(scene, columns_of, (ends, text, False), width, rows - 1, span * PERIOD_NS)
    return [tuple(title), *body] if body else []


@_of_culprit
def memory_panel(scene: Scene, rank: RankFacts, width: int, rows: int) -> list[Line]:
    """The memory of the first rank at fault; the upper end is the limit of its cgroup."""
    load = rank.process.report.load if rank.process.report is not None else None
    limit = load.memory_limit_bytes if load is not None else None
    used = rank.process.rss_bytes
    now = units.long_size(used)
    of = f" of {units.long_size(limit)}, its limit" if limit else ""
    title: tuple[Span, ...] = (
        (f"memory of rank {rank.rank} ", "dim"),
        (now if used is not None else "at its end", scene.style("bold")),
        (of, "dim"),
    )
    # Far from its limit, a scale up to it would show nothing.
    near = limit if limit and used and used > limit / 4 else None
    return _series_chart(
        scene,
        rank,
        title,
        lambda memory: memory.rss_bytes,
        float(near) if near else None,
        lambda value: units.long_size(int(value)),
        width,
        rows,
    )


@_of_culprit
def queue_panel(scene: Scene, rank: RankFacts, width: int, rows: int) -> list[Line]:
    """How many batches lie ready for the first rank at fault."""
    loader = rank.loader.report
    if loader is None or loader.depth is None:
        return []
    whole = f" of {loader.capacity}" if loader.capacity else ""
    title: tuple[Span, ...] = (
        (f"batches ready for rank {rank.rank} ", "dim"),
        (f"{loader.depth}{whole}", scene.style("bold")),
    )
    return _series_chart(
        scene,
        rank,
        title,
        lambda memory: memory.loader_depth,
        float(loader.capacity) if loader.capacity else None,
        lambda value: f"{value:.0f}",
        width,
        rows,
    )


@_of_culprit
def log_panel(scene: Scene, rank: RankFacts, width: int, rows: int) -> list[Line]:
    """The last lines that the first rank at fault has written, if they went into a file."""
    rows = min(rows - 1, LOG_ROWS)
    lines = last_lines(rank, scene.log, width, rows, scene.glyphs) if scene.log is not None else []
    return [_head(scene, f"rank {rank.rank} wrote last", width), *lines] if lines else []


# -- GPUs: the culprit's beside the others'


_OF_GPU: tuple[tuple[str, Callable[[Gpu], float | None], str], ...] = (
    ("in use", lambda gpu: None if gpu.util_ratio is None else gpu.util_ratio * 100, "%"),
    ("power", lambda gpu: gpu.power_watts, " W"),
    ("SM clock", lambda gpu: gpu.sm_mhz, " MHz"),
    ("temperature", lambda gpu: gpu.celsius, " C"),
    (
        "memory",
        lambda gpu: (
            gpu.used_bytes / gpu.total_bytes * 100
            if gpu.used_bytes is not None and gpu.total_bytes
            else None
        ),
        "%",
    ),
)


@_of_culprit
def gpu_panel(scene: Scene, rank: RankFacts, width: int, rows: int) -> list[Line]:
    """The GPU of the first rank at fault beside the median of the others."""
    own = rank.gpu.own
    if own is None:
        return []
    others = [
        other.gpu.own.gpu
        for other in scene.snapshot.ranks
        if other.gpu.own is not None and other.rank not in scene.at_fault
    ]
    lines: list[Line] = [_head(scene, f"GPU of rank {rank.rank}, and the median of others", width)]
    for label, read, unit in _OF_GPU:
        value = None if own.gpu.lost else read(own.gpu)
        known = [found for gpu in others if (found := read(gpu)) is not None]
        if value is None and not known:
            continue
        mine = "no answer" if value is None else f"{value:.0f}{unit}"
        theirs = f"{median(known):.0f}{unit}" if known else "-"
        lines.append(
            ((fit(f"  {label}", 15), "dim"), (fit(mine, 12, True), "bold"), (f"{theirs:>12}", ""))
        )
    if own.gpu.throttle:
        lines.append(((f"  slowed down by {', '.join(map(clean, own.gpu.throttle))}", "warning"),))
    return lines[:rows] if len(lines) > 1 else []


# -- Equal ranks as one lane, where not all ranks have a row


def lanes_panel(scene: Scene, width: int, rows: int) -> list[Line]:
    """A lane for each class of ranks, if the table has no row for every one of them."""
    if scene.memories is None or scene.rows >= len(scene.snapshot.ranks) or not scene.at_fault:
        return []
    victims = scene.finding.victims if scene.finding is not None else ()
    classes = alike(scene.snapshot, scene.at_fault, victims, chosen().wait_shown_s)
    classes = classes[: min(rows - 2, CLASSES_MOST)]
    scene.memories.read([one.ranks[0] for one in classes])
    labels = [
        f"{scene.glyphs.times}{one.label}" if not one.at_fault else one.label for one in classes
    ]
    label = max(map(cell_width, labels), default=0)
    second = scene.lanes.second
    known_s = second - min(scene.memories.memory_of(scene.at_fault[0]).seconds, default=second)
    known = -(-known_s // LANE_LEAST) * LANE_LEAST
    cells = min(width - label - 14, known)
    if not classes or cells < LANE_LEAST:
        return []
    lines: list[Line] = [_head(scene, "equal ranks are one lane", width)]
    for one, text in zip(classes, labels, strict=True):
        rank = scene.snapshot.rank(one.ranks[0])
        # Of very many ranks only some are remembered.
        drawn_by = scene.memories.one_of(frozenset(one.ranks))
        lane = scene.lanes.of(drawn_by, cells) if drawn_by is not None else []
        word = state_text(rank.state, scene.glyphs)
        lines.append(
            (
                (fit(text, label, True) + " ", "bold" if one.at_fault else ""),
                (fit(word, 12), state_style(rank)),
                *lane_line(lane, scene.glyphs),
            )
        )
    axis = scene.axis(cells, cells * scene.lanes.each(cells) * PERIOD_NS)
    return [*lines, ((" " * (label + 13), ""), *axis)]
