"""One row of the ranks table: its cells with their styles, and the row of titles."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.present.map import (
    AT_FAULT,
    BLOCKED,
    HEALTHY,
    LEVELS,
    Grid,
    Levels,
    Piece,
    class_of,
    codes_at,
    counts,
    glyph_of,
    ranks_in,
    scaled,
)
from ddtop.present.now import now_age_s, now_text
from ddtop.present.numbers import NUMBER, WAITS, CellContext, Number, cell_text, state_text
from ddtop.present.text import (
    UNICODE,
    Glyphs,
    Line,
    Span,
    Table,
    clean,
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
        return "old" if old else "dim" if text.endswith(WAITS) else "bar"
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


def title_line(shape: Table[Number], sort_key: str) -> Line:
    """The titles above their columns; the title of the sort column is underlined."""
    spans: list[Span] = []
    for number, (column, width) in enumerate(shape.columns()):
        if number:
            spans.append((" ", ""))
        text = fit(column.title, width, column.right)
        if column.key != sort_key:
            spans.append((text, "heading"))
            continue
        before = " " * (len(text) - len(text.lstrip()))
        after = " " * (len(text) - len(text.rstrip()))
        spans += [(before, ""), (column.title, "sorted"), (after, "")]
    return tuple(span for span in spans if span[0])


def alarming(rank: RankFacts, culprits: frozenset[int]) -> bool:
    """Whether the row is shown in alarm: a finding blames this rank, or the model calls it the
    culprit."""
    return rank.rank in culprits or rank.state is State.CULPRIT


# -- The map: cells of ranks as runs of one look, the legend above them, and the line about the
#    rank under the cursor


UPPER_HALF = "▀"
NAMED_MOST = 4
"""At most so many ranks of a class are named in the legend."""
_HALF = "half:"
_CALM_HALF, _BLOCKED_HALF = "bar", "slab"


class StateLooks:
    """The look of a cell when the map shows states."""

    def cell(self, code: int, glyphs: Glyphs) -> Span:
        """The sign of the state and its style."""
        return _look(code, glyphs)

    def half(self, code: int) -> str:
        """The style of half a cell."""
        # A hang makes thousands of blocked ranks. In the colour that text has, they would outshine
        # the culprit.
        return (
            _CALM_HALF
            if code <= HEALTHY
            else _BLOCKED_HALF
            if code == BLOCKED
            else class_of(code).style
        )

    def borne(self, codes: bytes) -> int:
        """Ranks with a larger code need attention. If some are worse than blocked, only those
        do."""
        return BLOCKED if max(codes, default=0) > BLOCKED else HEALTHY


class LevelLooks(StateLooks):
    """The look of a cell when the map shows the levels of a number."""

    def __init__(self, levels: Levels) -> None:
        self._levels = levels

    def cell(self, code: int, glyphs: Glyphs) -> Span:
        """The sign of the level and its style."""
        if code >= AT_FAULT:
            return _look(code, glyphs)
        level = self._levels.level(code)
        return level_look(level, glyphs)

    def half(self, code: int) -> str:
        """The style of the level."""
        level = self._levels.level(code)
        return "rule" if level is None else f"level{level}"

    def borne(self, codes: bytes) -> int:
        """Ranks of the worst level need attention. If some are at fault, only those do."""
        worst = max(codes, default=0)
        return LEVELS if worst >= AT_FAULT else max(worst - 1, 0)


STATE_LOOKS = StateLooks()


def level_look(level: int | None, glyphs: Glyphs) -> Span:
    """The sign of a level, from the lowest to the highest, and its style; None: not measured."""
    if level is None:
        return glyphs.states[State.RUNNING], "dim"
    signs = glyphs.levels[0], glyphs.levels[2], glyphs.levels[3], glyphs.levels[5], glyphs.full
    return signs[level], f"level{level}"


def map_line(
    grid: Grid,
    codes: bytes,
    y: int,
    picked: int | None = None,
    glyphs: Glyphs = UNICODE,
    looks: StateLooks = STATE_LOOKS,
) -> Line:
    """One line of the map. A style `half:A/B` is for half blocks: the upper rank has style A, the
    lower rank style B.

    The cell of a rank at fault shows that rank's glyph even among half blocks, so it can be found
    without colours.
    """
    spans: list[Span] = []
    column = 0
    for piece in grid.pieces(y):
        if piece.x > column:
            spans.append((" " * (piece.x - column), ""))
        label = fit(piece.label, piece.label_width, piece.label[:1].isdigit(), glyphs.ellipsis)
        spans.append((label + " ", "dim"))
        cells = _cells(piece, codes, glyphs, looks)
        at = _cell_of(piece, picked)
        if at is not None and at < len(cells):
            text, style = cells[at]
            cells[at] = (text, "picked")
        for style, run in groupby(cells, key=lambda cell: cell[1]):
            spans.append(("".join(text for text, _ in run), style))
        column = piece.x + piece.label_width + 1 + len(cells)
    return tuple(spans)


def _cell_of(piece: Piece, rank: int | None) -> int | None:
    for ranks in (piece.ranks, piece.below):
        if rank is not None and rank in ranks:
            return ranks.index(rank) // piece.per_cell
    return None


def _cells(piece: Piece, codes: bytes, glyphs: Glyphs, looks: StateLooks) -> list[Span]:
    upper = codes_at(codes, piece.ranks)
    if piece.per_cell > 1:
        upper = bytes(
            max(upper[at : at + piece.per_cell]) for at in range(0, len(upper), piece.per_cell)
        )
    if not piece.halves:
        drawn = {code: looks.cell(code, glyphs) for code in set(upper)}
        return [drawn[code] for code in upper]
    lower = codes_at(codes, piece.below)
    lower += bytes([255]) * (len(upper) - len(lower))
    pairs = list(zip(upper, lower, strict=True))
    halves = {pair: _half(*pair, glyphs, looks) for pair in set(pairs)}
    return [halves[pair] for pair in pairs]


def _look(code: int, glyphs: Glyphs) -> Span:
    state_class = class_of(code)
    return glyph_of(code, glyphs), "alarm" if code >= AT_FAULT else state_class.style


def _half(upper: int, lower: int, glyphs: Glyphs, looks: StateLooks) -> Span:
    for code in (upper, lower):
        if AT_FAULT <= code < 255:
            return _look(code, glyphs)
    below = "" if lower == 255 else looks.half(lower)
    return UPPER_HALF, f"{_HALF}{looks.half(upper)}/{below}"


def map_strip(line: Line, width: int, palette: Palette) -> Strip:
    """The line in exactly `width` columns; every segment has a style."""
    segments = []
    for text, style in line:
        if style.startswith(_HALF):
            upper, _, lower = style[len(_HALF) :].partition("/")
            look = palette.half(upper, lower) if lower else palette[upper]
            segments.append(Segment(text, look))
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
    spans: list[Span] = []
    for number, part in enumerate(parts):
        gap: list[Span] = [("  ", "")] if number else []
        if number and line_width([*spans, *gap, *part]) > width:
            break
        spans += [*gap, *part]
    return clip_line(tuple(spans), width, glyphs.ellipsis)


def levels_line(snapshot: Snapshot, levels: Levels, width: int, glyphs: Glyphs = UNICODE) -> Line:
    """The meaning of the levels from the lowest to the highest, and the rank to look at: `step time
    _ from 189.0 ms  ...  highest: rank 3, 241.0 ms`."""
    scale = levels.metric.scale
    spans: list[Span] = [(f"{scale.label}  ", "title")]
    for level in range(LEVELS):
        sign, style = level_look(level, glyphs)
        spans += [(sign * 2, style), (f" {scale.text(levels.begin(level))}  ", "dim")]
    spans.append((f"to {scale.text(levels.high)}", "dim"))
    if levels.worst is not None:
        rank = snapshot.rank(levels.worst)
        value = scaled(levels.metric, rank, snapshot.time_unix_ns)
        which = "lowest" if scale.low_is_bad else "highest"
        host = f" on {clean(rank.host)}" if rank.host else ""
        text = f"   {which}: rank {rank.rank:,}{host}, {scale.text(value or 0.0)}"
        if line_width(spans) + len(text) <= width:
            spans.append((text, ""))
    else:
        spans = [(f"{scale.label}  ", "title"), ("not measured", "dim")]
    return clip_line(tuple(spans), width, glyphs.ellipsis)


def _named(snapshot: Snapshot, ranks: list[int]) -> str:
    if len(ranks) > 1:
        return f"ranks {rank_list(ranks)}"
    host = snapshot.rank(ranks[0]).host
    return f"rank {ranks[0]:,}" + (f" on {clean(host)}" if host else "")


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
        (f"rank {picked:,}", "title"),
        ("  ", ""),
        (state_text(rank.state, glyphs), state_style(rank)),
    ]
    if rank.host:
        spans.append((f"  {clean(rank.host)}", ""))
    age = now_age_s(rank, snapshot.time_unix_ns)
    doing = now_text(rank) + (f", {units.duration(age)}" if age is not None and age >= 1 else "")
    spans.append((f"  {doing}", "dim"))
    return clip_line(tuple(spans), width, glyphs.ellipsis)
