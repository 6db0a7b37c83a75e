"""Pieces of text that know how wide they are on a terminal.

A `Span` is a text and the name of a style, a `Line` is a sequence of spans. The palette of the
screen gives each style a colour; plain output ignores styles.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

Span = tuple[str, str]
Line = tuple[Span, ...]

ELLIPSIS = "…"

_WORD = re.compile(
    r"\S*\d (?:ms|us|µs|s|min|h|d|[KMGTP]?i?B|k?W|MW|it/s|it/min|MB/s)(?![\w/])\S*|\S+"
)
"""A number with its unit and what follows without a space (`27 s;`), or any other word."""


def clean(text: str) -> str:
    """The text without characters that could move the cursor.

    Host names, paths and exception texts come from other machines: a control character would write
    over the screen, and a character without width would shift every column to its right.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_printable(character) for character in unicodedata.normalize("NFC", text))


_WIDTHLESS = re.compile("[\u1160-\u11ff\u3164\ud7b0-\ud7fb\uffa0\U0001f3fb-\U0001f3ff]")
"""Second parts of Hangul syllables, a filler and skin tones: letters and signs by their category,
without a cell of their own."""

_DISPUTED = re.compile("[\u2630-\u2637\u268a-\u268f\u4dc0-\u4dff\U0001d300-\U0001d376]")
"""One cell wide before Unicode 16 and two since: the width on a terminal cannot be known."""

_FLAG_A = 0x1F1E6
"""Flags are pairs of letters of their own, one or two cells wide as the terminal likes."""


def _printable(character: str) -> str:
    if character.isspace():
        return " "
    if unicodedata.category(character) in ("Mn", "Me", "Mc", "Cf") or _WIDTHLESS.match(character):
        return ""
    if 0 <= ord(character) - _FLAG_A < 26:
        return chr(ord("A") + ord(character) - _FLAG_A)
    return character if character.isprintable() and not _DISPUTED.match(character) else "?"


def cell_width(text: str) -> int:
    """Columns that a cleaned text takes: two for a wide character."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def clip(text: str, width: int, ellipsis: str = ELLIPSIS) -> str:
    """At most `width` columns of the text; a cut is marked."""
    if cell_width(text) <= width:
        return text
    if width <= len(ellipsis):
        return ellipsis[: max(width, 0)]
    taken, used = [], 0
    for character in text:
        used += cell_width(character)
        if used > width - len(ellipsis):
            break
        taken.append(character)
    return "".join(taken).rstrip() + ellipsis


def fit(text: str, width: int, right: bool = False, ellipsis: str = ELLIPSIS) -> str:
    """Exactly `width` columns: clipped, or padded on one side."""
    text = clip(text, width, ellipsis)
    pad = " " * (width - cell_width(text))
    return pad + text if right else text + pad


def wrap(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` columns, broken between words, but not between a
    number and its unit; a longer word is split."""
    width = max(width, 1)
    lines: list[str] = []
    line = ""
    for word in _words(text):
        joined = f"{line} {word}" if line else word
        if cell_width(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        *whole, line = _chop(word, width)
        lines.extend(whole)
    if line or not lines:
        lines.append(line)
    return lines


def _words(text: str) -> list[str]:
    """The words of a text; a number and its unit are one word."""
    return [match[0] for match in _WORD.finditer(" ".join(text.split()))]


def _chop(word: str, width: int) -> list[str]:
    pieces, piece = [], ""
    for character in word:
        if piece and cell_width(piece) + cell_width(character) > width:
            pieces.append(piece)
            piece = ""
        piece += character
    return [*pieces, piece]


def hang(text: str, width: int, lead: str, under: str | None = None) -> list[str]:
    """The wrapped text, with `lead` before its first line and the same amount of space (or `under`)
    before the others."""
    under = " " * len(lead) if under is None else under
    texts = wrap(text, width - max(len(lead), len(under)))
    return [(lead if number == 0 else under) + line for number, line in enumerate(texts)]


def wrap_clauses(text: str, width: int) -> list[str]:
    """Like `wrap`, but a clause after a semicolon starts a new line if this adds at most one
    line."""
    flat = wrap(text, width)
    if len(flat) == 1:
        return flat
    clauses = text.split("; ")
    parted = [
        line
        for number, clause in enumerate(clauses)
        for line in wrap(clause if number == len(clauses) - 1 else clause + ";", width)
    ]
    return parted if len(parted) <= len(flat) + 1 else flat


def plain(line: Iterable[Span]) -> str:
    """The text of a line, without the spaces at its end."""
    return "".join(text for text, _ in line).rstrip()


def line_width(line: Iterable[Span]) -> int:
    """Columns that a line takes."""
    return sum(cell_width(text) for text, _ in line)


def clip_line(line: Line, width: int, ellipsis: str = ELLIPSIS) -> Line:
    """At most `width` columns of the line; a cut is marked."""
    if line_width(line) <= width:
        return line
    spans: list[Span] = []
    room = width
    for text, style in line:
        # One column is reserved for the mark unless the line ends here.
        if cell_width(text) > room - len(ellipsis):
            spans.append((clip(text + ellipsis * 2, room, ellipsis), style))
            break
        spans.append((text, style))
        room -= cell_width(text)
    return tuple(spans)
