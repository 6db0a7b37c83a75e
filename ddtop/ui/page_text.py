"""The text of a page: the search on it, and its tabs."""

from __future__ import annotations

from collections.abc import Sequence

from ddtop.present.help_text import VIEWS
from ddtop.present.text import UNICODE, Glyphs, Line, Span, beside, line_width

# -- The search on a page: where the text is found, and how the matches are marked


FOUND, HERE = "found", "picked"
"""The style of a match, and of a match on the current line of the search."""


def found_lines(lines: Sequence[Line], text: str) -> list[int]:
    """The numbers of the lines that contain the text, ignoring case."""
    wanted = text.casefold()
    if not wanted:
        return []
    return [at for at, line in enumerate(lines) if wanted in _text(line).casefold()]


def marked(line: Line, text: str, style: str = FOUND) -> Line:
    """The line with every occurrence of the text in this style; the rest keeps its styles."""
    whole, wanted = _text(line).casefold(), text.casefold()
    # Letters whose lower case has a different length would shift the marks.
    if not wanted or len(whole) != len(_text(line)):
        return line
    inside = bytearray(len(whole))
    at = whole.find(wanted)
    while at >= 0:
        inside[at : at + len(wanted)] = b"\1" * len(wanted)
        at = whole.find(wanted, at + len(wanted))
    spans: list[Span] = []
    begin = 0
    for piece, own in line:
        last = 0
        for place in range(1, len(piece) + 1):
            ends = place == len(piece)
            if ends or inside[begin + place] != inside[begin + last]:
                spans.append((piece[last:place], style if inside[begin + last] else own))
                last = place
        begin += len(piece)
    return tuple(spans)


def _text(line: Line) -> str:
    return "".join(text for text, _ in line)


# -- The line with the names of the views


def tabs_line(current: str, width: int, glyphs: Glyphs = UNICODE) -> Line:
    """`1 ranks  2 map ...`, the one in front bold and underlined; where there is no room, only that
    one is shown."""
    for short in (False, True):
        spans = beside([tab] for tab in _tabs(current, short))
        if line_width(spans) + 1 <= width or short:
            break
    rest = width - line_width(spans) - 1
    return (*spans, (" ", ""), (glyphs.rule * rest, "rule")) if rest > 0 else spans


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
