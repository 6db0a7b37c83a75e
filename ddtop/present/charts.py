"""Charts: values as lines of signs, for the job strip and the page of a rank.

textual-plotext needs half of six rows for its frame and axes, and Textual's `Sparkline` has one row
and no gaps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise

from ddtop.present.text import UNICODE, Glyphs, Line, Span

LEAST_SPREAD = 0.2
"""The smallest range of a scale, as a share of the largest value: noise looks flat."""


def scale(values: Sequence[float | None], least: float = LEAST_SPREAD) -> tuple[float, float]:
    """The lower and the upper end of a scale, both round, so that they do not move with every
    value. The lower end is zero, unless all values are far from it.

    `least`: the smallest range, as a share of the largest value.
    """
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    if 0 <= low < high / 2:
        low = 0.0
    room = max(high - low, least * abs(high)) or 1.0
    size = 10.0 ** math.floor(math.log10(room / 4))
    step = next(size * factor for factor in (1, 2, 5, 10) if room / 4 <= size * factor)
    if high - low < room:
        low = max(low + (high - low - room) / 2, min(low, 0.0))
        high = low + room
    # The small part keeps an end that is a whole number of steps in its place.
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def chart(
    values: Sequence[float | None],
    ends: tuple[float, float],
    rows: int = 1,
    glyphs: Glyphs = UNICODE,
    quiet: bool = False,
) -> list[Line]:
    """The values in `rows` lines, from top to bottom, coloured by height; a value that was not
    measured is a gap.

    `ends`: of the scale. `quiet`: nothing may draw the eye.
    """
    # A line alone has no full cells, so that two of them above each other do not touch.
    signs = f" {glyphs.levels}{glyphs.full if rows > 1 else ''}"
    steps = len(signs) - 1
    heights = [
        0 if value is None else max(_height(value, *ends, rows * steps), 1) for value in values
    ]
    lines: list[Line] = []
    for row in reversed(range(rows)):
        text = "".join(signs[min(max(height - row * steps, 0), steps)] for height in heights)
        colour = round((row + 0.5) / rows * 3)
        lines.append(((text, "bar" if quiet else f"chart{colour}"),))
    return lines


def stack(
    bands: Sequence[tuple[Span, Sequence[float | None]]], rows: int, glyphs: Glyphs = UNICODE
) -> list[Line]:
    """Shares of a whole on top of each other in `rows` lines, one value a column.

    Each of the `bands` has a sign and a style; what they leave of the whole stays empty. The style
    of a cell with two of them has both names: `band0:band1`.
    """
    looks, steps = [look for look, _ in bands], len(glyphs.levels) + 1
    columns = [
        tuple(
            _height(edge, 0.0, 1.0, rows * steps)
            for edge in accumulate(value or 0.0 for value in column)
        )
        for column in zip(*(values for _, values in bands), strict=True)
    ]
    # Most columns are alike.
    drawn = {edges: _pile(edges, looks, rows, glyphs) for edges in set(columns)}
    return [joined(row) for row in zip(*(drawn[edges] for edges in columns), strict=True)]


def _pile(edges: Sequence[int], looks: Sequence[Span], rows: int, glyphs: Glyphs) -> list[Span]:
    """One column of a stack, from top to bottom."""
    steps = len(glyphs.levels) + 1
    cells: list[Span] = []
    for row in reversed(range(rows)):
        cut = [min(max(edge - row * steps, 0), steps) for edge in (0, *edges)]
        parts = [
            (above - below, sign, style)
            for (below, above), (sign, style) in zip(
                pairwise((*cut, steps)), (*looks, (" ", "")), strict=True
            )
            if above > below
        ]
        # The two largest parts, in their order: a cell has two colours.
        least = sorted(part for part, _, _ in parts)[-2:][0]
        shown = [part for part in parts if part[0] >= least][:2]
        (part, sign, style), (above, _, behind) = shown[0], shown[-1]
        if style != behind:
            part = min(max(steps * part // (part + above), 1), steps - 1)
            sign, style = glyphs.levels[part - 1], f"{style}:{behind}".rstrip(":")
        cells.append((sign, style))
    return cells


def joined(cells: Sequence[Span]) -> Line:
    """Neighbours of one style as one span."""
    runs = groupby(cells, lambda cell: cell[1])
    return tuple(("".join([text for text, _ in run]), style) for style, run in runs)


def _height(value: float, low: float, high: float, most: int) -> int:
    return round(min(max((value - low) / ((high - low) or 1.0), 0.0), 1.0) * most)
