"""Shares and histories drawn in characters of one column."""

from __future__ import annotations

from collections.abc import Sequence

from ddtop.present.glyphs import UNICODE, Glyphs

ACTIVITY_LETTERS = "LFBOCG."
"""One letter for each activity, in the order of `wire.records.ACTIVITIES`. G is a wait for the
GPU."""


def bar(ratio: float, width: int, glyphs: Glyphs = UNICODE) -> str:
    """A bar of exactly `width` columns, in eighths of a column if the glyphs have them."""
    ratio = min(max(ratio, 0.0), 1.0)
    steps = len(glyphs.eighths) + 1
    filled, part = divmod(round(ratio * width * steps), steps)
    text = glyphs.full * filled + (glyphs.eighths[part - 1] if part else "")
    # A share above zero always has a mark, because empty means zero.
    if ratio > 0 and not text:
        text = glyphs.eighths[0] if glyphs.eighths else glyphs.full
    return text + " " * (width - len(text))


def hollow(ratio: float, width: int, glyphs: Glyphs = UNICODE) -> str:
    """Like `bar`, in whole columns, for time that is spent waiting."""
    cells = max(round(min(max(ratio, 0.0), 1.0) * width), 1 if ratio > 0 else 0)
    return glyphs.hollow * cells + " " * (width - cells)


def sparkline(values: Sequence[float | None], width: int, glyphs: Glyphs = UNICODE) -> str:
    """The newest `width` values, the newest at the right; a value that was not measured is a gap.

    Scaled from zero to the largest value, so that a steady series is a flat line and not magnified
    noise.
    """
    shown = list(values)[-width:] if width > 0 else []
    top = max((value for value in shown if value is not None), default=0.0)
    last = len(glyphs.levels) - 1
    cells = [
        " "
        if value is None
        else glyphs.levels[round(max(value, 0.0) / top * last) if top > 0 else 0]
        for value in shown
    ]
    return " " * (width - len(cells)) + "".join(cells)


def shares(ratios: Sequence[float], width: int) -> list[int]:
    """Whole columns for each share, `width` in all, by the largest remainder; zero shares get
    none."""
    total = sum(max(ratio, 0.0) for ratio in ratios)
    if total <= 0 or width <= 0:
        return [0] * len(ratios)
    exact = [max(ratio, 0.0) / total * width for ratio in ratios]
    cells = [int(part) for part in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: (cells[index] - exact[index], index))
    for index in by_remainder[: width - sum(cells)]:
        cells[index] += 1
    return cells


def phases(ratios: Sequence[float], width: int) -> str:
    """The shares of the activities as letters: `LLFFFFBBBBOC`; empty where nothing was sampled."""
    return "".join(
        letter * cells
        for letter, cells in zip(ACTIVITY_LETTERS, shares(ratios, width), strict=False)
    )
