"""One row of the ranks table: its cells with their styles, and the row of titles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import groupby, zip_longest
from operator import itemgetter

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.present.map import (
    AT_FAULT,
    BLOCKED,
    HEALTHY,
    LEVELS,
    UNKNOWN,
    Grid,
    HostRanks,
    Levels,
    class_of,
    codes_at,
    counts,
    glyph_of,
    ranks_in,
    state_of,
)
from ddtop.present.now import now_age_s, now_text
from ddtop.present.numbers import NUMBER, WAITS, CellContext, Number, cell_text, state_text
from ddtop.present.text import (
    UNICODE,
    Glyphs,
    Line,
    Span,
    Table,
    beside,
    cell_width,
    clean,
    clip,
    clip_line,
    fit,
    line_width,
    state_style,
)
from ddtop.thresholds import chosen
from ddtop.ui.style import Palette, strip_of
from ddtop.wire.records import TRAIN
from ddtop.words import units
from ddtop.words.sentences import rank_list
from ddtop.words.units import NOT_MEASURED

_TOLD_BY_STATE = frozenset({"state", "now", "for"})
EMPTY_QUEUE = "0/"
_NEVER_OLD = frozenset({"rank", "state"})


def row_line(
    rank: RankFacts, shape: Table[Number], context: CellContext, tagged: bool, old: bool
) -> Line:
    """The cells of one rank; `old`: the whole picture is from the past, not only this rank's
    report."""
    state = state_style(rank)
    late = (
        rank.agent.report_age_s is not None
        and rank.agent.report_age_s > chosen().report_silent_s
        and not rank.gone
    )
    spans: list[Span] = []
    for number, (column, width) in enumerate(shape.columns()):
        if number:
            # The tag is in the space after the rank's number: it needs no column.
            spans.append(("*" if tagged and number == 1 else " ", "bold"))
        if column.drawn is not None:
            drawn = column.drawn(rank, context, width)
            spans += [*drawn, (" " * (width - line_width(drawn)), "")]
            continue
        text = cell_text(column, rank, context, width)
        style = _style(column, text, state, old or late or rank.gone, late)
        fitted = fit(text, width, column.right, context.glyphs.ellipsis)
        if style == "bar" and column.right:
            # The bar is faint, because the number beside it is what people read.
            spans += [(fitted[:-NUMBER], style), (fitted[-NUMBER:], "")]
        elif style == "bar" and "/" in fitted:
            # A queue's number is behind its bar, and is text as well.
            bar, gap, number_text = fitted.rpartition(" ")
            spans += [(bar + gap, style), (number_text, "dim")]
        else:
            spans.append((fitted, style))
    return tuple(spans)


def _style(column: Number, text: str, state: str, old: bool, late: bool) -> str:
    if text == NOT_MEASURED:
        return "dim"
    key = column.key
    if text == column.alarm:
        return "critical"
    if column.bar:
        bar_style = "dim" if text.endswith(WAITS) else "bar"
        return "old" if old else "warning" if text.lstrip().startswith(EMPTY_QUEUE) else bar_style
    if key in _TOLD_BY_STATE and (key == "state" or state != "dim"):
        return state
    if old and key not in _NEVER_OLD:
        return "warning" if key == "heard" and late else "old"
    # A rank that does something other than training must stand out.
    quiet = column.quiet or (key == "progress" and text.endswith(TRAIN))
    return "dim" if quiet else ""


def row_strip(line: Line, width: int, palette: Palette, *, at_fault: bool, selected: bool) -> Strip:
    """The row in exactly `width` columns; a rank at fault stands out as a whole row."""
    over: Style | None = None
    if at_fault:
        over = palette.alarm_cursor if selected else palette.alarm
    elif selected:
        over = palette.cursor
    return strip_of(line, width, palette, over)


def title_line(shape: Table[Number], sort_key: str, arrow: str = " ") -> Line:
    """The titles above their columns; that of the sort column is underlined, with the arrow inside
    its own column: between two titles it would belong to both."""
    spans: list[Span] = []
    for number, (column, width) in enumerate(shape.columns()):
        spans += [(" ", "")] if number else []
        title, style = column.title, "heading"
        if column.key == sort_key:
            style = "sorted"
            title = (arrow + column.title)[:width] if column.right else title[: width - 1] + arrow
        rest = (" " * max(width - len(title), 0), "heading")
        spans += [rest, (title, style)] if column.right else [(title, style), rest]
    return tuple(span for span in spans if span[0])


def alarming(rank: RankFacts, culprits: frozenset[int]) -> bool:
    """Whether the row is shown in alarm: a finding blames this rank, or the model calls it the
    culprit."""
    return rank.rank in culprits or rank.state is State.CULPRIT


# -- The map: cells of ranks as runs of one look, the legend above them, and the line about the
#    rank under the cursor


UPPER_HALF, UPRIGHT_PART, FULL = "▀", "▊", "█"
NAMED_MOST = 4
"""At most so many ranks of a class are named in the legend."""
_HALF = "half:"
_EDGE, _ODD, _SLAB = "edge:", "odd:", "slab:"
_WORD_LEAST = 11
"""Columns of a cell in which the word of every state fits."""
_STYLE = itemgetter(1)


class StateLook:
    """What cells show when the map shows states. `codes`: one a rank; `states`: the same here;
    `shown`: all that they show; `text_least`: columns of text that a cell must have room for."""

    def __init__(self, glyphs: Glyphs = UNICODE) -> None:
        self.glyphs = glyphs
        self.area, self.colour = cache(self._area), cache(self._colour)
        self.take(b"")

    def take(self, states: bytes) -> None:
        """Show these states from now on."""
        self.shown: object = states
        self.states = self.codes = states
        self.text_least = len(str(len(states) - 1)) + 1

    def sign(self, code: int) -> Span:
        """The sign of a cell without room for text, and its style."""
        style = "alarm" if code >= AT_FAULT else class_of(code).style
        return glyph_of(code, self.glyphs), style

    def marked(self, code: int) -> bool:
        """Whether the sign must be seen in a cell that is otherwise only a colour."""
        return code > BLOCKED

    def _colour(self, code: int) -> str:
        """The style whose colour fills a cell."""
        # A hang makes thousands of blocked ranks. In the colour that text has, they would outshine
        # the culprit.
        if code <= HEALTHY:
            return "calm"
        return class_of(code).style if code <= BLOCKED else self.sign(code)[1]

    def text(self, rank: int, code: int, width: int, beside: str) -> str:
        """What stands below the rank's number, or `beside` it if there is one line only."""
        del rank
        if width >= _WORD_LEAST and not beside:
            return f"{glyph_of(code, self.glyphs)} {class_of(code).word}"
        sign = glyph_of(code, self.glyphs) if code != HEALTHY else ""
        return f"{beside} {sign}".strip() if len(beside) + 2 <= width else beside + sign

    def _area(self, codes: tuple[int | None, ...], width: int, slabs: bool, signed: bool) -> Span:
        """A cell without text: its sign, or an area of its colours with a thin space at the right;
        two codes are above each other. `signed`: the sign is on this line of it."""
        worst = max(code for code in codes if code is not None)
        sign, style = self.sign(worst)
        if not slabs or self.marked(worst):
            return (sign * signed).ljust(width), _SLAB + style if slabs else style
        colours = [_EDGE + ("" if code is None else self.colour(code)) for code in codes]
        if len(colours) > 1:
            return UPPER_HALF * width, _HALF + "/".join(colours)
        return FULL * (width - 1) + (UPRIGHT_PART if width < 3 else FULL), colours[0]


class LevelLook(StateLook):
    """What a cell shows when the map shows a number."""

    def take_levels(self, levels: Levels, states: bytes) -> None:
        """Show these levels from now on."""
        self.take(states)
        self.shown, self.levels = (levels, states), levels
        self.codes, self.text_least = levels.codes, 2

    def sign(self, code: int) -> Span:
        state = state_of(code)
        return level_look(code, self.glyphs) if state is None else super().sign(state)

    def marked(self, code: int) -> bool:
        return code > LEVELS

    def _colour(self, code: int) -> str:
        return "calm" if code == UNKNOWN else self.sign(code)[1]

    def text(self, rank: int, code: int, width: int, beside: str) -> str:
        del beside
        value, number = self.levels.values[rank], self.levels.metric
        sign = f"{self.sign(code)[0]} " if code > LEVELS else ""
        text = sign + (NOT_MEASURED if value is None else number.scale.text(value))
        if value is not None and len(text) > width:
            times = 100 if number.scale.of else number.per or 1
            text = f"{sign}{value * times:.0f}"
        return text if len(text) <= width else sign


def level_look(code: int, glyphs: Glyphs) -> Span:
    """The sign of a level, the fuller the worse, and its style."""
    if code == UNKNOWN:
        return glyphs.states[State.RUNNING], "dim"
    signs = glyphs.levels[0], glyphs.levels[2], glyphs.levels[3], glyphs.levels[5], glyphs.full
    return signs[code - 1], f"level{code - 1}"


def map_line(grid: Grid, look: StateLook, y: int, picked: int | None = None) -> Line:
    """One line of the map. A style `half:A/B` is for half blocks: the upper rank has style A, the
    lower rank style B; `slab:A` is text on the colour of A, and `edge:A` is drawn in that colour.

    The cell of a rank at fault shows that rank's glyph even among half blocks, so it can be found
    without colours.
    """
    tiles, line = grid.on_line(y)
    shape, ellipsis = grid.shape, look.glyphs.ellipsis
    spans: list[Span] = []
    if tiles and shape.label_width:
        name = tiles[0].name if line == 0 else ""
        spans.append((fit(name, shape.label_width - 1, False, ellipsis) + " ", "dim"))
    for tile in tiles:
        spans += (_title if line < 0 else _cells)(grid, tile, line, look, picked)
    if tiles:
        spans.pop()
    # Without a space between hosts above each other, shades tell them apart.
    shade = _ODD if grid.odd(y) else _EDGE
    return tuple(
        [
            ("".join([text for text, _ in run]), style.replace(_EDGE, shade))
            for style, run in groupby(spans, _STYLE)
        ]
    )


def _title(
    grid: Grid, tile: HostRanks, line: int, look: StateLook, picked: int | None
) -> list[Span]:
    """The name of a host in the colour of its worst rank, and a rule as wide as its cells."""
    del line, picked
    worst = max(codes_at(look.states, tile.ranks))
    style = "culprit" if worst >= AT_FAULT else class_of(worst).style if worst > BLOCKED else "dim"
    # The space behind the last cell of a row is not part of the picture.
    width = grid.tile_width - (grid.shape.width > 2)
    name = clip(tile.name, width, look.glyphs.ellipsis)
    rule = width - cell_width(name) - 1
    after = " " * (grid.stride - width)
    return [(name, style), (" " * (rule >= 0), ""), (look.glyphs.rule * rule, "rule"), (after, "")]


def _cells(
    grid: Grid, tile: HostRanks, line: int, look: StateLook, picked: int | None
) -> list[Span]:
    shape = grid.shape
    rows = [grid.row(tile, row) for row in grid.rows_on(line)]
    codes = [codes_at(look.codes, ranks) for ranks in rows]
    if shape.per_cell > 1:
        starts = range(0, len(codes[0]), shape.per_cell)
        codes = [
            bytes(max(each[at : at + shape.per_cell]) for at in starts if at < len(each))
            for each in codes
        ]
    # Cells with text have a space between them, and half a line below them.
    body = shape.width - (shape.width > 2)
    lines = shape.height - (grid.slabs and shape.height > 1)
    part = line % shape.height
    edge = part == lines
    if edge:
        cells = [(UPPER_HALF * body, _EDGE + look.colour(code)) for code in codes[0]]
    elif shape.halves or shape.per_cell > 1 or shape.width <= look.text_least:
        pairs, signed = zip_longest(*codes), part == (lines - 1) // 2
        cells = [look.area(pair, body, grid.slabs, signed) for pair in pairs]
    else:
        cells = [
            (text.rjust((body + len(text)) // 2).ljust(body), _SLAB + look.colour(code))
            for code, text in zip(
                codes[0], _texts(grid, look, rows[0], codes[0], body, lines, part), strict=True
            )
        ]
    for ranks in rows:
        if picked is not None and picked in ranks:
            at = ranks.index(picked) // shape.per_cell
            cells[at] = (cells[at][0], _EDGE + "picked" if edge else "picked")
    if body < shape.width:
        cells = [span for cell in cells for span in (cell, (" ", ""))]
    cells.append((" " * (grid.stride - len(codes[0]) * shape.width), ""))
    return cells


def _texts(
    grid: Grid,
    look: StateLook,
    ranks: Sequence[int],
    codes: bytes,
    width: int,
    lines: int,
    part: int,
) -> Sequence[str]:
    """One line of the text of cells: the number of each rank, what the map shows of it, or both."""
    number_width = len(str(grid.count - 1))
    both = lines == 1 or width < number_width
    part -= (lines - 1) // 2 if both else (lines - 2) // 2
    if part == 0 and not both:
        before = "rank " if width >= number_width + 7 else ""
        return [f"{before}{rank}" for rank in ranks]
    if part != (not both):
        return [""] * len(ranks)
    return [
        look.text(rank, code, width, str(rank) if both else "")
        for rank, code in zip(ranks, codes, strict=True)
    ]


def map_strip(line: Line, width: int, palette: Palette) -> Strip:
    """The line in exactly `width` columns; every segment has a style."""
    segments = []
    for text, style in line:
        if style.startswith(_HALF):
            upper, _, lower = style[len(_HALF) :].partition("/")
            segments.append(Segment(text, palette.half(upper, lower)))
        else:
            segments.append(Segment(text, palette[style]))
    return Strip(segments).adjust_cell_length(width, palette[""])


def legend_line(snapshot: Snapshot, codes: bytes, width: int, glyphs: Glyphs = UNICODE) -> Line:
    """Every class with its count, the worst first; a few ranks are named, a single one with its
    host. Where room is short, the healthiest classes are left out first, but not the last one: `✝ 1
    killed: rank 2,731 on node341  ■ 4,095 blocked`."""
    parts: list[list[Span]] = []
    for code, number in counts(codes):
        state_class = class_of(code)
        text = f" {number:,} {state_class.word}"
        if code > BLOCKED and number <= NAMED_MOST:
            text += f": {_named(snapshot, ranks_in(codes, code, NAMED_MOST))}"
        parts.append(
            [
                (glyph_of(code, glyphs), state_class.style),
                (text, state_class.style if code > HEALTHY else ""),
            ]
        )
    return clip_line(beside(parts, width, 1), width, glyphs.ellipsis)


def levels_line(snapshot: Snapshot, look: LevelLook, width: int, glyphs: Glyphs = UNICODE) -> Line:
    """The rank that stands out, if there is one, and the colours from the best value to the worst:
    `comm wait  ^ rank 26 on node003: 2%, the median is 45%   48% ._-=# 2%`. Where room is short,
    the last parts are left out."""
    levels, glyphs = look.levels, look.glyphs
    scale = levels.metric.scale
    title = (f"{scale.label}  ", "title")
    if all(value is None for value in levels.values):
        return clip_line((title, ("not measured", "dim")), width, glyphs.ellipsis)
    parts: list[list[Span]] = [[title, ("no rank stands out", "dim")]]
    if levels.worst is not None:
        named = f" {_named(snapshot, [levels.worst])}: {scale.text(levels.values[levels.worst])}"
        parts = [
            [title, look.sign(levels.codes[levels.worst]), (named, "bold")],
            [(f", the median is {scale.text(levels.usual)}", "dim")],
        ]
    good, bad = levels.ends()
    signs = [level_look(code, glyphs) for code in range(1, LEVELS + 1)]
    colours = [(sign * 2, style) for sign, style in signs]
    parts.append([(f"   {good} ", "dim"), *colours, (f" {bad}", "dim")])
    spans: list[Span] = []
    for part in parts:
        if not spans or line_width([*spans, *part]) <= width:
            spans += part
    return clip_line(tuple(spans), width, glyphs.ellipsis)


def _named(snapshot: Snapshot, ranks: list[int]) -> str:
    if len(ranks) > 1:
        return f"ranks {rank_list(ranks)}"
    host = snapshot.rank(ranks[0]).host
    return f"rank {ranks[0]}" + (f" on {clean(host)}" if host else "")


def cursor_line(
    snapshot: Snapshot,
    codes: bytes,
    picked: int,
    cell: Sequence[int],
    width: int,
    glyphs: Glyphs = UNICODE,
) -> Line:
    """The rank under the cursor in one line; for a cell of several ranks, which ones they are."""
    rank = snapshot.rank(picked)
    spans: list[Span] = []
    if len(cell) > 2:
        inside = ", ".join(
            f"{number:,} {class_of(code).word}" for code, number in counts(codes_at(codes, cell))
        )
        spans += [(f"ranks {cell[0]:,}-{cell[-1]:,}: {inside}", ""), ("  ", "")]
    spans += [
        (f"rank {picked}", "title"),
        ("  ", ""),
        (state_text(rank.state, glyphs), state_style(rank)),
    ]
    if rank.host:
        spans.append((f"  {clean(rank.host)}", ""))
    age = now_age_s(rank, snapshot.time_unix_ns)
    doing = now_text(rank) + (f", {units.duration(age)}" if age is not None and age >= 1 else "")
    spans.append((f"  {doing}", "dim"))
    return clip_line(tuple(spans), width, glyphs.ellipsis)
