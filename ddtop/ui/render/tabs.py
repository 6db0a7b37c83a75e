"""The line with the names of the views."""

from __future__ import annotations

from ddtop.present.glyphs import UNICODE, Glyphs
from ddtop.present.text import Line, Span, line_width
from ddtop.ui.actions import VIEWS


def tabs_line(current: str, width: int, glyphs: Glyphs = UNICODE) -> Line:
    """`1 ranks  2 map ...`, the one in front bold and underlined; where there is no room, only that
    one is shown."""
    for short in (False, True):
        spans: list[Span] = []
        for tab in _tabs(current, short):
            spans += [*([("  ", "")] if spans else []), tab]
        if line_width(spans) + 1 <= width or short:
            break
    rest = width - line_width(spans) - 1
    return (*spans, (" ", ""), (glyphs.rule * rest, "rule")) if rest > 0 else tuple(spans)


def tab_at(current: str, width: int, x: int) -> str | None:
    """The view whose name is at that column."""
    short = (
        line_width(span for tab in _tabs(current, False) for span in (tab, ("  ", ""))) - 1 > width
    )
    start = 0
    for view, (text, _) in zip(VIEWS, _tabs(current, short), strict=True):
        if start <= x < start + len(text):
            return view.name
        start += len(text) + 2
    return None


def _tabs(current: str, short: bool) -> list[Span]:
    return [
        (
            view.key if short and view.name != current else f"{view.key} {view.name}",
            "tab" if view.name == current else "dim",
        )
        for view in VIEWS
    ]
