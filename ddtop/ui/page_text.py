"""The text of a page: the search on it."""

from __future__ import annotations

from collections.abc import Sequence

from ddtop.present.text import Line, Span

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
