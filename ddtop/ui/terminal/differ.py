"""Sends the terminal only the cells that changed.

Textual sends a whole line of a widget for one changed cell: 17 KB a refresh at 200x50 where only
ages move. The differ keeps what the terminal shows and puts itself between Textual's compositor and
its driver. It uses parts of Textual that are not public, so `unfit` checks all of them first. If
anything is not as expected, and for good after the first error, Textual draws by itself.
"""

from __future__ import annotations

import inspect
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.app import App
from textual.geometry import Region, Size
from textual.strip import Strip

# -- The settings of a terminal's pen (colours and attributes), and the shortest escape sequence
#    from one to another


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


# -- Finds the cells that changed, and sends only those


Piece = tuple[int, int, int, Iterable[Segment]]
"""Line, first column, end column (exclusive), and the segments drawn there."""

GAP_BYTES = 4
"""Unchanged cells of up to so many bytes are written again if the pen allows it: jumping over them
costs as much."""

FEW_CELLS = 1000
"""At most this many changed cells are written in the shorter of two orders. More than these are
usually whole lines, which are written line by line."""

RIGHT_HALF = ""
"""The content of the second cell of a wide character."""


class _Widths(dict[str, int]):
    def __missing__(self, character: str) -> int:
        # A control character would move the cursor, whatever width the tables give.
        width = -1 if unicodedata.category(character) == "Cc" else cell_len(character)
        self[character] = width
        return width


class _Line:
    """One line of the terminal: a character and a pen per cell; None where unknown."""

    __slots__ = ("characters", "pens")

    def __init__(self, characters: list[str | None], pens: list[Pen | None]) -> None:
        self.characters = characters
        self.pens = pens


class Differ:
    """What the terminal shows, and the bytes that turn it into what it should show.

    `failure` is the error that switched it off, None while it is on.
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        self._lines: list[_Line] = []
        self._size = Size(0, 0)
        self._pens: Pens | None = None
        self._widths = _Widths()

    def forget(self) -> None:
        """Forget everything: the terminal may show anything."""
        self._size = Size(0, 0)

    def over(self, renderable: Any) -> Any:
        """Wrap an update so that the differ encodes it; anything else is returned unchanged."""
        if self.failure is None and isinstance(renderable, (ChopsUpdate, LayoutUpdate)):
            return ChangedCells(renderable, self)
        return renderable

    def encode(self, update: CompositorUpdate, console: Console) -> str:
        """The bytes that make the terminal show the update; plain Textual's after an error."""
        if self.failure is None:
            try:
                return self._encode(_pieces(update), _size(update), console)
            except Exception as error:  # noqa: BLE001 - foreign insides: whatever is wrong, the picture must come
                self.failure = f"{type(error).__name__}: {error}"
        return update.render_segments(console)

    def _encode(self, pieces: Iterable[Piece], size: Size, console: Console) -> str:
        if size != self._size:
            width = size.width
            self._lines = [_Line([None] * width, [None] * width) for _ in range(size.height)]
            self._size = size
        if self._pens is None:
            self._pens = Pens(console)
        fresh: dict[int, _Line] = {}
        for y, x, end, segments in pieces:
            if not 0 <= y < size.height:
                continue
            if y not in fresh:
                known = self._lines[y]
                fresh[y] = _Line(known.characters[:], known.pens[:])
            self._put(fresh[y], x, min(end, size.width), segments, self._pens)
        changes: list[_Change] = []
        single = True
        for y, line in sorted(fresh.items()):
            known = self._lines[y]
            if RIGHT_HALF in known.characters:
                self._replace_broken_halves(line)
            if line.characters != known.characters or line.pens != known.pens:
                changes.append((y, line, _changed(known, line)))
                self._lines[y] = line
                single = single and RIGHT_HALF not in known.characters
                single = single and RIGHT_HALF not in line.characters
        by_line = self._written(changes, self._pens)
        if not single or not 1 < sum(len(columns) for _, _, columns in changes) <= FEW_CELLS:
            return by_line
        # If an age grows in each row of a table, the changed cells have the same pen.
        return min(by_line, self._written(_by_pen(changes), self._pens), key=len)

    def _written(self, changes: Iterable[_Change], pens: Pens) -> str:
        writer = _Writer(pens)
        for y, line, columns in changes:
            writer.write(y, line, columns)
        return writer.done()

    def _put(self, line: _Line, x: int, end: int, segments: Iterable[Segment], pens: Pens) -> None:
        for text, style, _ in segments:
            if x >= end:
                return
            pen = pens.of(style)
            if text.isascii() and text.isprintable():
                text = text[: end - x]
                line.characters[x : x + len(text)] = text
                line.pens[x : x + len(text)] = [pen] * len(text)
                x += len(text)
            else:
                x = self._put_wide(line, x, end, text, pen)

    def _put_wide(self, line: _Line, x: int, end: int, text: str, pen: Pen) -> int:
        """Put text of any characters; returns the column after it."""
        for character in text:
            width = self._widths[character]
            if width < 0:
                continue
            if width == 0:
                # A combining mark belongs to the cell of its letter.
                at = x - 2 if x > 1 and line.characters[x - 1] == RIGHT_HALF else x - 1
                if at >= 0:
                    line.characters[at] = (line.characters[at] or " ") + character
                continue
            cells = [character, RIGHT_HALF][:width] if x + width <= end else [" "] * (end - x)
            line.characters[x : x + len(cells)] = cells
            line.pens[x : x + len(cells)] = [pen] * len(cells)
            x += len(cells)
        return x

    def _replace_broken_halves(self, line: _Line) -> None:
        """Replace half a wide character by a space if its other half was overwritten."""
        characters = line.characters
        for x, character in enumerate(characters):
            if character == RIGHT_HALF:
                if x == 0 or self._cells(characters[x - 1]) != 2:
                    characters[x] = " "
            elif self._cells(character) == 2 and characters[x + 1 : x + 2] != [RIGHT_HALF]:
                characters[x] = " "

    def _cells(self, character: str | None) -> int:
        return self._widths[character[0]] if character else 0


_Change = tuple[int, _Line, Sequence[int]]
"""A line's number, the line, and the columns of it to write."""


def _by_pen(changes: Iterable[_Change]) -> list[_Change]:
    """The same cells in another order: all of one pen together, and of these all of one column."""
    order: dict[Pen | None, int] = {}
    runs: list[tuple[int, int, int, _Line, list[int]]] = []
    for y, line, columns in changes:
        before, run = -2, [0]
        for x in columns:
            if x != before + 1 or line.pens[x] is not line.pens[before]:
                run = []
                runs.append((order.setdefault(line.pens[x], len(order)), x, y, line, run))
            run.append(x)
            before = x
    runs.sort(key=lambda one: one[:3])
    return [(y, line, run) for _, _, y, line, run in runs]


def _changed(known: _Line, line: _Line) -> list[int]:
    """The columns to write. The two halves of a wide character are written together, also those of
    an old one that is broken."""
    cells = zip(known.characters, line.characters, known.pens, line.pens, strict=True)
    changed = [
        x for x, (old, new, pen, new_pen) in enumerate(cells) if old != new or pen is not new_pen
    ]
    if RIGHT_HALF not in known.characters and RIGHT_HALF not in line.characters:
        return changed
    columns, to_look = set(changed), changed
    while to_look:
        x = to_look.pop()
        for side in (known.characters, line.characters):
            for left, right in ((x - 1, x), (x, x + 1)):
                if left >= 0 and right < len(side) and side[right] == RIGHT_HALF:
                    beside = {left, right} - columns
                    columns |= beside
                    to_look.extend(beside)
    return sorted(columns)


class _Writer:
    """The cursor and the pen while one update is written."""

    def __init__(self, pens: Pens) -> None:
        self.output: list[str] = []
        self._pens = pens
        self._pen = PLAIN
        self._y = 0
        # None where unknown: after a character whose width differs between terminals, and at the
        # right edge.
        self._x: int | None = None

    def write(self, y: int, line: _Line, columns: Sequence[int]) -> None:
        """Write these columns of a line."""
        characters, wanted = line.characters, line.pens
        for x in columns:
            character, pen = characters[x], wanted[x]
            if character is None or pen is None or character == RIGHT_HALF:
                continue
            if x != self._x or y != self._y:
                self.output.append(self._cursor_move(line, y, x))
            if pen is not self._pen:
                self.output.append(self._pens.change(self._pen, pen))
                self._pen = pen
            self.output.append(character)
            known = (
                x + 1 < len(characters) and characters[x + 1] != RIGHT_HALF and len(character) == 1
            )
            self._y, self._x = y, x + 1 if known else None

    def done(self) -> str:
        """All bytes of the update; the pen is reset."""
        self.output.append(self._pens.change(self._pen, PLAIN))
        return "".join(self.output)

    def _cursor_move(self, line: _Line, y: int, x: int) -> str:
        """The bytes that move the cursor there."""
        straight = f"\x1b[{y + 1};{x + 1}H" if x else f"\x1b[{y + 1}H"
        if self._x is None:
            return straight
        columns, lines = x - self._x, y - self._y
        if lines == 0 and columns > 0:
            return self._rewritten_cells(line, self._x, x) or _steps(columns, "C")
        across = (
            _steps(columns, "C")
            if columns > 0
            else min("\b" * -columns, _steps(-columns, "D"), key=len)
        )
        down = _steps(lines, "B") if lines >= 0 else _steps(-lines, "A")
        return min(straight, down + across, key=len)

    def _rewritten_cells(self, line: _Line, at: int, x: int) -> str | None:
        """The unchanged cells in between, if writing them again costs no more than a jump."""
        between = line.characters[at:x]
        if (
            x - at > GAP_BYTES
            or None in between
            or any(pen is not self._pen for pen in line.pens[at:x])
        ):
            return None
        text = "".join(character or "" for character in between)
        # Only narrow characters: after others the cursor may be anywhere.
        single = RIGHT_HALF not in between and len(text) == x - at
        return text if single and len(text.encode(errors="replace")) <= GAP_BYTES else None


def _steps(count: int, direction: str) -> str:
    return "" if count == 0 else f"\x1b[{'' if count == 1 else count}{direction}"


def _pieces(update: CompositorUpdate) -> Iterator[Piece]:
    if isinstance(update, LayoutUpdate):
        left, top, width, _ = update.region
        for y, strips in enumerate(update.strips, top):
            # Older releases hold one strip a line, which yields segments; newer ones several
            # strips.
            yield y, left, left + width, _segments(strips)
    elif isinstance(update, ChopsUpdate):
        for y, first, last in update.spans:
            for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
                if strip is not None and x < last and end > first:
                    yield y, x, end, strip


def _size(update: CompositorUpdate) -> Size:
    """The terminal's size as the update knows it: during a resize the screen may still have
    another."""
    if isinstance(update, LayoutUpdate):
        return Size(update.region.right, update.region.bottom)
    if isinstance(update, ChopsUpdate):
        return Size(
            max((ends[-1] for ends in update.chop_ends if ends), default=0), len(update.chops)
        )
    raise TypeError(f"{type(update).__name__} is unknown")


def _segments(strips: Iterable[Any]) -> Iterator[Segment]:
    for part in strips:
        if isinstance(part, Segment):
            yield part
        else:
            yield from part


class ChangedCells(CompositorUpdate):
    """An update of the compositor, encoded by the differ."""

    def __init__(self, update: CompositorUpdate, differ: Differ) -> None:
        self._update = update
        self._differ = differ

    def render_segments(self, console: Console) -> str:
        """Called by the app at the moment of writing: an update that is never written is never
        assumed to be shown."""
        return self._differ.encode(self._update, console)


def unfit() -> str | None:
    """Why this release of Textual does not work with the differ; None if it does.

    Checks the signatures of all used parts, then draws one line both with and without the differ.
    """
    wanted = (
        (App, "_display", ["self", "screen", "renderable"]),
        (CompositorUpdate, "render_segments", ["self", "console"]),
        (ChopsUpdate, "__init__", ["self", "chops", "spans", "chop_ends"]),
        (LayoutUpdate, "__init__", ["self", "strips", "region"]),
        (Strip, "render", ["self", "console"]),
    )
    for owner, name, parameters in wanted:
        method = getattr(owner, name, None)
        if method is None or list(inspect.signature(method).parameters) != parameters:
            return f"{owner.__name__}.{name} is not as expected"
    console = Console(force_terminal=True, color_system="256", width=4)
    strip = Strip([Segment("ab", Style(bold=True)), Segment("■ ", Style(color="red"))])
    differ = Differ()
    whole = differ.encode(LayoutUpdate([[strip]], Region(0, 0, 4, 1)), console)
    part = Strip([Segment("c", Style(bold=True))])
    changed = differ.encode(
        ChopsUpdate([{0: None, 1: part, 2: None}], [(0, 1, 2)], [[1, 2, 4]]), console
    )
    if differ.failure is not None:
        return differ.failure
    good = (whole, changed) == ("\x1b[1H\x1b[1mab\x1b[0;31m■ \x1b[0m", "\x1b[1;2H\x1b[1mc\x1b[0m")
    return None if good else "a line is encoded differently than expected"
