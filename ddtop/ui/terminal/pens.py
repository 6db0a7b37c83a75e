"""The settings of a terminal's pen (colours and attributes), and the shortest escape sequence from
one to another."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

_RENDERED = re.compile(r"(?:\x1b\[([\d;]*)m)?x(?:\x1b\[0m)?")
_MOST_STYLES = 4096
"""A palette has some dozens, each on a few backgrounds; only styles with marks for the mouse are
unbounded in number."""

_OFF = {
    "1": "22",
    "2": "22",
    "3": "23",
    "4": "24",
    "5": "25",
    "6": "25",
    "7": "27",
    "8": "28",
    "9": "29",
}
"""The code that switches an attribute off; an attribute without one needs a reset."""


@dataclass(frozen=True, slots=True, eq=False)
class Pen:
    """Attributes and colours as SGR codes; empty colours are the terminal's own. Equal pens are the
    same object."""

    attributes: frozenset[str]
    foreground: str
    background: str


PLAIN = Pen(frozenset(), "", "")


class Pens:
    """The pens of one console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._of_style: dict[Style | None, Pen] = {}
        self._of_codes: dict[tuple[frozenset[str], str, str], Pen] = {(frozenset(), "", ""): PLAIN}
        self._changes: dict[tuple[Pen, Pen], str] = {}

    def of(self, style: Style | None) -> Pen:
        """The pen that the library itself would use for the style, so that colours are the same
        with and without the differ.

        Raises:
            ValueError: the style is more than a pen (it has a link).
        """
        pen = self._of_style.get(style)
        if pen is None:
            rendered = _RENDERED.fullmatch(Strip([Segment("x", style)]).render(self._console))
            if rendered is None:
                raise ValueError(f"no pen draws {style!r}")
            if len(self._of_style) >= _MOST_STYLES:
                self._of_style.clear()
            pen = self._of_style[style] = self._known(rendered[1] or "")
        return pen

    def _known(self, codes: str) -> Pen:
        key = _parsed(codes)
        if key not in self._of_codes:
            self._of_codes[key] = Pen(*key)
        return self._of_codes[key]

    def change(self, before: Pen, after: Pen) -> str:
        """The escape sequence between them; empty for the same pen."""
        sequence = self._changes.get((before, after))
        if sequence is None:
            sequence = self._changes[before, after] = _change(before, after)
        return sequence


def _parsed(codes: str) -> tuple[frozenset[str], str, str]:
    attributes: set[str] = set()
    colours = {"3": "", "4": ""}
    parts = iter(codes.split(";"))
    for part in parts:
        ground, digit = part[:-1], part[-1:]
        if part in ("38", "48"):
            kind = next(parts)
            colours[ground] = ";".join((part, kind, *islice(parts, 3 if kind == "2" else 1)))
        elif ground in ("3", "4") and digit < "8":
            colours[ground] = part
        elif ground in ("9", "10") and digit < "8":
            colours["3" if ground == "9" else "4"] = part
        elif part.strip("0") and part not in ("39", "49"):
            attributes.add(part)
    return frozenset(attributes), colours["3"], colours["4"]


def _change(before: Pen, after: Pen) -> str:
    if before is after:
        return ""
    if after is PLAIN:
        return "\x1b[0m"
    colours = [code for code in (after.foreground, after.background) if code]
    ways = [["0", *sorted(after.attributes), *colours]]
    if all(code in _OFF for code in before.attributes | after.attributes):
        off = {_OFF[code] for code in before.attributes - after.attributes}
        # Switching one attribute off may also switch off its sibling: bold and dim share one code.
        on = {
            code for code in after.attributes if code not in before.attributes or _OFF[code] in off
        }
        codes = [*sorted(off), *sorted(on)]
        if before.foreground != after.foreground:
            codes.append(after.foreground or "39")
        if before.background != after.background:
            codes.append(after.background or "49")
        ways.append(codes)
    return f"\x1b[{min((';'.join(way) for way in ways), key=len)}m"
