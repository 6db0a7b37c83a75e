"""Lines of named styles as strips of exactly one width."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from ddtop.present.text import Line
from ddtop.ui.render.palette import Palette


def strip_of(line: Line, width: int, palette: Palette, over: Style | None = None) -> Strip:
    """The line in exactly `width` columns, with `over` laid over every cell.

    The last cut uses the terminal library's own idea of width: if it differs from ours, a column is
    lost, but the line still does not wrap. Every segment has a style: one without crashes under
    NO_COLOR.
    """
    base = palette[""] + over if over else palette[""]
    segments = [
        Segment(text, palette[style] + over if over else palette[style]) for text, style in line
    ]
    return Strip(segments).adjust_cell_length(width, base)


def rule_line(width: int, rule: str, *notes: str) -> Line:
    """A thin line across the screen with notes at its right end; where room is short, notes are
    left out from the left."""
    texts = [note for note in notes if note]
    while texts and len(rule) * 4 + sum(len(text) + 2 for text in texts) > width:
        texts.pop(0)
    line: list[tuple[str, str]] = []
    used = 0
    for text in reversed(texts):
        line[:0] = [(" ", ""), (text, "dim"), (f" {rule}", "rule")]
        used += len(text) + 3
    return ((rule * max(width - used, 0), "rule"), *line)
