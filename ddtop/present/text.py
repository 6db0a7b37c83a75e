"""Pieces of text that know how wide they are on a terminal.

A `Span` is a text and the name of a style, a `Line` is a sequence of spans. The palette of the
screen gives each style a colour; plain output ignores styles.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ddtop.model.facts import RankFacts, State

Span = tuple[str, str]
Line = tuple[Span, ...]

ELLIPSIS = "…"
NUMBER_KEPT, FILE_KEPT = 3, 8
"""Characters that stay at the end of a collective's number, and of a file with its line."""

_WORD = re.compile(
    r"\S*\d (?:ms|us|µs|s|min|h|d|[KMGTP]?i?B|k?W|MW|it/s|it/min|MB/s)(?![\w/])\S*|\S+"
)
"""A number with its unit and what follows without a space (`27 s;`), or any other word."""
_NAME = re.compile(r"\w+")


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


def middle(text: str, width: int, ellipsis: str = ELLIPSIS) -> str:
    """At most `width` columns of a name: its beginning and its end, which tell it from others."""
    if cell_width(text) <= width:
        return text
    head = clip(text, width - width // 2 + len(ellipsis) // 2, ellipsis)
    tail, room = "", width - cell_width(head)
    for character in reversed(text):
        if cell_width(character + tail) > room:
            break
        tail = character + tail
    return head + tail


def short_names(text: str, width: int, ellipsis: str = ELLIPSIS) -> str:
    """The text with the names in it cut in their middle, to at most `width` columns each. What
    stands between them stays: a path keeps its folders, and a command its options."""
    return _NAME.sub(lambda name: middle(name[0], width, ellipsis), text)


def elide(text: str, width: int, ellipsis: str = ELLIPSIS) -> str:
    """Like `clip`, but a number at the end stays, cut at its left: `all_reduce dp_2 #…421`."""
    head, _, last = text.rpartition(" ")
    over = cell_width(text) - width
    sign = "#" if last.startswith("#") else ""
    kept = len(last) - len(sign) - len(ellipsis) - over
    # Of a file, `…:57` alone would say nothing.
    if over <= 0 or not head or not last[-1:].isdigit() or not (sign or kept >= FILE_KEPT):
        return clip(text, width, ellipsis)
    kept = max(kept, NUMBER_KEPT)
    if kept + len(ellipsis) < len(last) - len(sign):
        last = f"{sign}{ellipsis}{last[-kept:]}"
    first, gap, word = head.rpartition(" ")
    before, end = (first, f"{gap}{word} {last}") if gap else (head, f" {last}")
    return clip(clip(before, width - cell_width(end), ellipsis) + end, width, ellipsis)


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
    for word in _WORD.findall(" ".join(text.split())):
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
    before the others. It is indented as the text is."""
    under = " " * len(lead) if under is None else under
    indent = text[: len(text) - len(text.lstrip(" "))]
    lead, under = lead + indent, under + indent
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


def beside(parts: Iterable[Iterable[Span]], width: int | None = None, least: int = 0) -> Line:
    """As many of the parts as fit, from the left, with two spaces between them; `least` of them
    whatever their width."""
    spans: list[Span] = []
    for number, part in enumerate(parts):
        more = [*([("  ", "")] if spans else []), *part]
        if width is not None and number >= least and line_width([*spans, *more]) > width:
            break
        spans += more
    return tuple(spans)


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


# -- How a state is shown: one glyph, a word, and the name of a style
#
# The glyph and the word carry the state; the colour only repeats it.


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of characters; every glyph is one column wide.

    `thin`: a cell of a bar. `half`: the last one; empty if only whole cells can be drawn. `levels`:
    the cells of a sparkline from the smallest value to the largest; none fills its cell, so that
    two sparklines above each other do not touch. `hollow`: for a bar of time spent waiting.
    `lane`: the signs of a second by what a rank waits for: work, a collective, data, its GPU,
    sleep, and its end. `dots`: the first sign of Braille; empty where the font may have none.
    `tick`: what joins a scale to its chart. `left`: from those who wait. `times`: before a number
    of equal ranks.
    """

    states: dict[State, str]
    full: str
    thin: str
    half: str
    levels: str
    ellipsis: str
    rule: str
    arrow: str
    upright: str
    critical: str
    warning: str
    info: str
    bullet: str
    fork: str = "├"
    corner: str = "└"
    then: str = "›"
    finished: str = "✓"
    behind: str = "□"
    hollow: str = "╌"
    lane: str = "▇▒░▓─✝"
    dots: str = "\u2800"
    tick: str = "┤"
    left: str = "◀━"
    times: str = "×"
    up: str = "↑"
    down: str = "↓"


UNICODE = Glyphs(
    states={
        State.STARTING: "…",
        State.JOINING: "…",
        State.RUNNING: "·",
        State.WAITING: "◦",
        State.BLOCKED: "■",
        State.CULPRIT: "✖",
        State.STRAGGLER: "▲",
        State.WARNING: "!",
        State.SILENT: "?",
        State.STOPPED: "‖",
        State.EXITED: "✝",
        State.KILLED: "✝",
        State.MISSING: "∅",
        State.LOST: "⊘",
    },
    full="█",
    thin="━",
    half="╸",
    levels="▁▂▃▄▅▆▇",
    ellipsis="…",
    rule="─",
    arrow="→",
    upright="│",
    critical="✖",
    warning="▲",
    info="·",
    bullet="·",
)

ASCII = Glyphs(
    states={
        State.STARTING: "~",
        State.JOINING: "~",
        State.RUNNING: ".",
        State.WAITING: "o",
        State.BLOCKED: "#",
        State.CULPRIT: "X",
        State.STRAGGLER: "^",
        State.WARNING: "!",
        State.SILENT: "?",
        State.STOPPED: "|",
        State.EXITED: "+",
        State.KILLED: "+",
        State.MISSING: "-",
        State.LOST: "%",
    },
    full="#",
    thin="#",
    half="",
    levels="_.-=+*#",
    ellipsis="..",
    rule="-",
    arrow="->",
    upright="|",
    critical="X",
    warning="^",
    info=".",
    bullet="-",
    fork="|",
    corner="`",
    then=">",
    finished="=",
    behind=":",
    hollow=":",
    lane="#cdgzx",
    dots="",
    tick="|",
    left="<-",
    times="x",
    up="^",
    down="v",
)

STATE_STYLES: dict[State, str] = {
    State.STARTING: "starting",
    State.JOINING: "starting",
    State.RUNNING: "dim",
    State.WAITING: "dim",
    State.BLOCKED: "blocked",
    State.CULPRIT: "culprit",
    State.STRAGGLER: "straggler",
    State.WARNING: "warning",
    State.SILENT: "silent",
    State.STOPPED: "silent",
    State.EXITED: "gone",
    State.KILLED: "gone",
    State.MISSING: "gone",
    State.LOST: "silent",
}

STATE_MEANINGS: dict[State, str] = {
    State.STARTING: "its agent is up, but it has no process group yet",
    State.JOINING: "in init_process_group or MPI_Init",
    State.RUNNING: "makes progress",
    State.WAITING: "in a collective, but not for long",
    State.BLOCKED: "waits longer than the limit: a victim, not the cause",
    State.CULPRIT: "others wait for it",
    State.STRAGGLER: "last in most steps, and the others wait for it",
    State.WARNING: "a warning singles it out",
    State.SILENT: "the process is alive, but its agent does not report",
    State.STOPPED: "stopped by a signal or a debugger (state T)",
    State.EXITED: "its process ended",
    State.KILLED: "a signal ended it",
    State.MISSING: "never seen",
    State.LOST: "its whole host has stopped reporting",
}


def state_style(rank: RankFacts) -> str:
    """The style of a rank's state; a rank that finished normally has no alarm style."""
    if rank.state is State.EXITED and rank.process.exit is not None and rank.process.exit.code == 0:
        return "dim"
    return STATE_STYLES[rank.state]


def glyphs_for(encoding: str | None, terminal: str = "") -> Glyphs:
    """The set that a terminal or pipe of that encoding can show. `terminal`: its TERM.

    The Linux console and hardware terminals read UTF-8, but their fonts have only few of our
    glyphs; all others look the same.
    """
    if terminal == "linux" or terminal.startswith("vt"):
        return ASCII
    return UNICODE if encoding and "utf" in encoding.lower().replace("-", "") else ASCII


# -- Shares and histories drawn in characters of one column


ACTIVITY_LETTERS = "LFBOCG."
"""One letter for each activity, in the order of `wire.records.ACTIVITIES`. G is a wait for the
GPU."""


def bar(ratio: float, width: int, glyphs: Glyphs = UNICODE) -> str:
    """A bar of exactly `width` columns, in halves of a column if the glyphs have them."""
    ratio = min(max(ratio, 0.0), 1.0)
    steps = len(glyphs.half) + 1
    most = width * steps
    # Empty means zero, and full means all of it.
    drawn = min(max(round(ratio * most), 1), max(most - 1, 1)) if 0 < ratio < 1 else ratio * most
    filled, part = divmod(int(drawn), steps)
    text = glyphs.thin * filled + glyphs.half * part
    return text + " " * (width - len(text))


def hollow(ratio: float, width: int, glyphs: Glyphs = UNICODE) -> str:
    """Like `bar`, in whole columns, for time that is spent waiting."""
    cells = max(round(min(max(ratio, 0.0), 1.0) * width), 1 if ratio > 0 else 0)
    return glyphs.hollow * cells + " " * (width - cells)


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


# -- Tables of text: chooses the columns that fit into a width, and makes rows with styles


BETWEEN = 3
"""Columns between two blocks that are side by side."""


@dataclass(frozen=True, slots=True)
class Field:
    """One column.

    `width`: the smallest width, in columns of the terminal; `most`: the largest. `grows`: the
    column takes a share of the remaining room, by this weight. `rank`: without room, columns with
    the highest rank are dropped first; 0 is never dropped.
    """

    key: str
    title: str
    width: int
    right: bool = False
    grows: int = 0
    rank: int = 0
    most: int = 999


FieldT = TypeVar("FieldT", bound=Field)


@dataclass(frozen=True, slots=True)
class Table(Generic[FieldT]):
    """The columns that a width has room for, and how wide each is there. `gap`: spaces between
    two."""

    fields: tuple[FieldT, ...]
    widths: tuple[int, ...]
    gap: int = 2

    @property
    def total(self) -> int:
        """Columns of the terminal that a row takes."""
        return sum(self.widths) + self.gap * (len(self.widths) - 1)

    def columns(self) -> Iterator[tuple[FieldT, int]]:
        """Each column with its width, from left to right."""
        return zip(self.fields, self.widths, strict=True)

    def width(self, key: str) -> int:
        """The width of the column of that name; 0 where it has no room."""
        return next((width for field, width in self.columns() if field.key == key), 0)

    def at(self, x: int) -> FieldT | None:
        """The column at that offset; the gap after a column belongs to it."""
        start = 0
        for field, width in self.columns():
            if start <= x < start + width + self.gap:
                return field
            start += width + self.gap
        return None

    def titles(self) -> Line:
        """The row of titles."""
        return self.line({field.key: (field.title, "heading") for field in self.fields})

    def line(self, cells: Mapping[str, Span], ellipsis: str = "…") -> Line:
        """A row of these texts with their styles."""
        spans: list[Span] = []
        for number, (field, width) in enumerate(self.columns()):
            if number:
                spans.append((" " * self.gap, ""))
            text, style = cells[field.key]
            spans.append((fit(text, width, field.right, ellipsis), style))
        return tuple(spans)


def abreast(parts: Sequence[Sequence[Line]], wide: int, glyphs: Glyphs = UNICODE) -> list[Line]:
    """Blocks of lines side by side, each so many columns wide, with a thin line between them."""
    between = (f" {glyphs.upright} ".ljust(BETWEEN), "rule")
    lines: list[Line] = []
    for row in range(max(map(len, parts), default=0)):
        spans: list[Span] = []
        for number, part in enumerate(parts):
            line = clip_line(part[row], wide, glyphs.ellipsis) if row < len(part) else ()
            spans += [between] if number else []
            spans += [*line, (" " * (wide - line_width(line)), "")]
        lines.append(tuple(spans))
    return lines


def table_for(fields: Sequence[Field], width: int) -> Table[Field]:
    """As many columns as fit, with two spaces between them; columns that grow get the remaining
    room."""
    chosen = list(fields)

    def used() -> int:
        return sum(field.width for field in chosen) + 2 * (len(chosen) - 1)

    while used() > width and any(field.rank for field in chosen):
        chosen.remove(max(chosen, key=lambda field: field.rank))
    widths = {field.key: field.width for field in chosen}
    room = width - used()
    while room > 0:
        growing = [field for field in chosen if field.grows and widths[field.key] < field.most]
        total = sum(field.grows for field in growing)
        if not growing:
            break
        before = room
        for field in growing:
            more = min(max(before * field.grows // total, 1), field.most - widths[field.key], room)
            widths[field.key] += more
            room -= more
    return Table(tuple(chosen), tuple(widths[field.key] for field in chosen))


# -- A page of labelled lines: headings, items with a hanging indent, and tables of a few columns


LABEL = 14


class Page:
    """Lines of at most `width` columns, collected from top to bottom."""

    def __init__(self, width: int, glyphs: Glyphs = UNICODE) -> None:
        self.width = max(width, 20)
        self.glyphs = glyphs
        self.lines: list[Line] = []

    def add(self, *spans: tuple[str, str]) -> None:
        """Add one line as it is, cut at the width."""
        self.lines.append(clip_line(spans, self.width, self.glyphs.ellipsis))

    def blank(self) -> None:
        """Add an empty line, but never two."""
        if self.lines and self.lines[-1]:
            self.lines.append(())

    def heading(self, text: str, *rows: tuple[str, ...]) -> None:
        """Start a section, with these items."""
        self.blank()
        self.add((text, "title"))
        self.items(*rows)

    def items(self, *rows: tuple[str, ...]) -> None:
        """Add items: of each the label, the text, and a style if it has one."""
        for row in rows:
            self.item(*row)

    def item(self, label: str, text: str, style: str = "", label_style: str = "dim") -> None:
        """Add a label and its text; nothing for an empty text: missing facts get no line."""
        if not text:
            return
        indent = 2 + LABEL
        for number, part in enumerate(wrap(text, self.width - indent)):
            lead = f"  {fit(label, LABEL)}" if number == 0 else " " * indent
            self.add((lead, label_style), (part, style))

    def text(self, text: str, style: str = "", lead: str = "") -> None:
        """Add a paragraph; `lead` is before its first line, the others are indented below it."""
        for number, part in enumerate(wrap(text, self.width - cell_width(lead))):
            self.add((lead if number == 0 else " " * cell_width(lead), style), (part, style))

    def table(
        self, titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]
    ) -> None:
        """Add a table. Columns are as wide as their widest cell; the last one is cut at the
        width."""
        if not rows:
            return
        widths = [
            max(cell_width(title), *(cell_width(row[index]) for row in rows))
            for index, title in enumerate(titles)
        ]
        for style, cells in (("heading", titles), *(("", row) for row in rows)):
            fitted = [fit(*part) for part in zip(cells, widths, right, strict=True)]
            self.add(("  " + "  ".join(fitted), style))
