"""One row of the ranks table: its cells with their styles, and the row of titles."""

from __future__ import annotations

from rich.style import Style
from textual.strip import Strip

from ddtop.model.state.facts import RankFacts, State
from ddtop.present.glyphs import state_style
from ddtop.present.table.columns import NUMBER, WAITS, CellContext, Column, cell_text
from ddtop.present.table.layout import Table
from ddtop.present.text import Line, Span, fit
from ddtop.ui.render.palette import Palette
from ddtop.ui.render.strips import strip_of
from ddtop.viewer.thresholds import chosen
from ddtop.wire.progress import TRAIN
from ddtop.words.units import NOT_MEASURED

_TOLD_BY_STATE = frozenset({"state", "now", "for"})
_QUIET = frozenset({"host", "place", "phases", "pid", "heard", "nccl"})
_BARS = frozenset({"loader", "gpu", "vram", "power"})
_ALARMS = {"gpu": ("lost",), "nccl": ("err",)}
_NUMBERED = frozenset({"gpu", "vram", "power"})
_NEVER_OLD = frozenset({"rank", "state"})


def row_line(
    rank: RankFacts, shape: Table[Column], context: CellContext, tagged: bool, old: bool
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
        text = cell_text(column.key, rank, context, width)
        style = _style(column.key, text, state, old or late or rank.gone, late)
        fitted = fit(text, width, column.right, context.glyphs.ellipsis)
        if style == "bar" and column.key in _NUMBERED:
            # The bar is faint, because the number beside it is what people read.
            spans += [(fitted[:-NUMBER], style), (fitted[-NUMBER:], "")]
        elif style == "bar" and "/" in fitted:
            # A queue's number is behind its bar, and is text as well.
            bar, gap, number_text = fitted.rpartition(" ")
            spans += [(bar + gap, style), (number_text, "dim")]
        else:
            spans.append((fitted, style))
    return tuple(spans)


def _style(key: str, text: str, state: str, old: bool, late: bool) -> str:
    if text == NOT_MEASURED:
        return "dim"
    if text in _ALARMS.get(key, ()):
        return "critical"
    if key in _BARS:
        return "old" if old else "dim" if text.endswith(WAITS) else "bar"
    if key in _TOLD_BY_STATE and (key == "state" or state != "dim"):
        return state
    if old and key not in _NEVER_OLD:
        return "warning" if key == "heard" and late else "old"
    # A rank that does something other than training must stand out.
    quiet = key in _QUIET or (key == "progress" and text.endswith(TRAIN))
    return "dim" if quiet else ""


def row_strip(line: Line, width: int, palette: Palette, *, at_fault: bool, selected: bool) -> Strip:
    """The row in exactly `width` columns; a rank at fault stands out as a whole row."""
    over: Style | None = None
    if at_fault:
        over = palette.alarm_cursor if selected else palette.alarm
    elif selected:
        over = palette.cursor
    return strip_of(line, width, palette, over)


def title_line(shape: Table[Column], sort_key: str) -> Line:
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
