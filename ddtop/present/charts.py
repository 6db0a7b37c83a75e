"""Charts: values as lines of signs, for the job strip and the page of a rank.

textual-plotext needs half of six rows for its frame and axes, and Textual's `Sparkline` has one row
and no gaps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from ddtop.present.text import UNICODE, Glyphs, Line, Span, fit

LEAST_SPREAD = 0.2
"""The smallest range of a scale, as a share of the largest value: noise looks flat."""


def scale(
    values: Sequence[float | None], filled: bool = True, least: float = LEAST_SPREAD
) -> tuple[float, float]:
    """The lower and the upper end of a scale, both round, so that they do not move with every
    value. What is filled begins at zero: its height must not lie. A line may show a narrow range.

    `least`: the smallest range of a line, as a share of the largest value.
    """
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    if filled or 0 <= low < high / 2:
        low = min(low, 0.0)
    room = max(high - low, least * abs(high)) or 1.0
    size = 10.0 ** math.floor(math.log10(room / 4))
    step = next(size * factor for factor in (1, 2, 5, 10) if room / 4 <= size * factor)
    if high - low < room:
        low = max(low + (high - low - room) / 2, min(low, 0.0))
        high = low + room
    # The small part keeps an end that is a whole number of steps in its place.
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def size_scale(values: Sequence[float | None]) -> tuple[float, float]:
    """The ends of a scale of bytes, round in the unit that they are written in."""
    most = max((value for value in values if value is not None), default=0.0)
    unit = 1024.0 ** max(int(math.log(max(most, 1.0) / 999, 1024) + 1), 0)
    low, high = scale([value and value / unit for value in values])
    return low * unit, high * unit


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
        lines.append(((text, _colour(row, rows, quiet)),))
    return lines


_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""The bits of a sign of Braille: of its left and its right column, from the bottom up."""


def dotted(
    values: Sequence[float | None],
    ends: tuple[float, float],
    rows: int,
    glyphs: Glyphs = UNICODE,
    quiet: bool = False,
) -> list[Line]:
    """Like `chart`, as a line in dots of Braille; without such signs, one mark a column."""
    each = 4 if glyphs.dots else 1
    cells = [[0] * len(values) for _ in range(rows)]
    before: int | None = None
    for column, value in enumerate(values):
        at = None if value is None else _height(value, *ends, rows * each - 1)
        if at is not None:
            last = at if before is None or each == 1 else before
            # From the value before upwards or downwards, so that the line has no holes.
            path = range(min(last, at), max(last, at) + 1)
            for side, dots in ((0, path), (1, range(at, at + 1))):
                for dot in dots:
                    cells[dot // each][column] |= _DOTS[side][dot % each]
        before = at
    mark = glyphs.thin
    return [
        (
            (
                "".join(
                    " " if not bits else chr(ord(glyphs.dots) + bits) if glyphs.dots else mark
                    for bits in cells[row]
                ),
                _colour(row, rows, quiet),
            ),
        )
        for row in reversed(range(rows))
    ]


def _colour(row: int, rows: int, quiet: bool) -> str:
    return "bar" if quiet else f"chart{round((row + 0.5) / rows * 3)}"


def with_scale(
    drawn: Sequence[Line], ends: tuple[str, str], columns: int, glyphs: Glyphs = UNICODE
) -> list[Line]:
    """A chart with the ends of its scale at its left, in so many columns each, touching it."""
    texts = {0: ends[1], len(drawn) - 1: ends[0]}
    return [
        ((fit(texts.get(row, ""), columns, True) + glyphs.tick, "dim"), *line)
        for row, line in enumerate(drawn)
    ]


def joined(cells: Sequence[Span]) -> Line:
    """Neighbours of one style as one span."""
    runs = groupby(cells, lambda cell: cell[1])
    return tuple(("".join([text for text, _ in run]), style) for style, run in runs)


def _height(value: float, low: float, high: float, most: int) -> int:
    return round(min(max((value - low) / ((high - low) or 1.0), 0.0), 1.0) * most)
