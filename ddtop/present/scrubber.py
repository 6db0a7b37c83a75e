"""The line that shows which moment is on the screen, how far it is from the end, and the events in
between."""

from __future__ import annotations

from collections.abc import Iterable

from ddtop.diagnosis.finding import CRITICAL, WARNING
from ddtop.model.state.facts import State
from ddtop.present.glyphs import UNICODE, Glyphs
from ddtop.present.text import Line, Span, line_width
from ddtop.words import units

BAR_COLUMNS_MIN = 12
BACK_KEY = "\\"
_ORDER = (WARNING, "gone", CRITICAL)
"""If two marks are in one column, the later one in this order is drawn."""


def scrubber_line(
    at_unix_ns: int,
    span: tuple[int, int],
    width: int,
    *,
    recording: bool,
    marks: Iterable[tuple[int, str]] = (),
    glyphs: Glyphs = UNICODE,
) -> Line:
    """The line in `width` columns. If there is no room, parts are left out from the right; the
    moment is always shown.

    `span`: first and last moment; `recording`: the last moment is the end, not now.
    """
    first, last = span
    behind_s = max(last - at_unix_ns, 0) / units.SECOND_NS
    where = f"-{units.duration(behind_s)}" if round(behind_s) else "the end" if recording else "now"
    word = "recorded" if recording else "past"
    left: list[Span] = [
        (f"{word} {units.clock(at_unix_ns)}", "bold"),
        (f"  {where}", ""),
        (" ", ""),
    ]
    ends = "end" if recording else "now"
    right: list[Span] = [(f" {units.duration((last - first) / units.SECOND_NS)}", "dim")]
    keys: list[Span] = [
        ("  [ ]", "key"),
        (" 5 s ", "dim"),
        (" " + BACK_KEY, "key"),
        (f" {ends}", "dim"),
    ]
    for end in ([*right, *keys], right, []):
        room = width - line_width([*left, *end])
        if room >= BAR_COLUMNS_MIN or not end:
            break
    if room < BAR_COLUMNS_MIN:
        return tuple(left[:2])
    return (*left, *_bar(at_unix_ns, span, room, marks, glyphs), *end)


def _bar(
    at_unix_ns: int,
    span: tuple[int, int],
    columns: int,
    marks: Iterable[tuple[int, str]],
    glyphs: Glyphs,
) -> list[Span]:
    first, last = span

    def column(unix_ns: int) -> int:
        part = (unix_ns - first) / max(last - first, 1)
        return round(min(max(part, 0.0), 1.0) * (columns - 1))

    signs = {
        CRITICAL: glyphs.critical,
        WARNING: glyphs.warning,
        "gone": glyphs.states[State.EXITED],
    }
    cells: list[Span] = [(glyphs.rule, "rule")] * columns
    inside = [(at, what) for at, what in marks if at >= first and what in signs]
    for at, what in sorted(inside, key=lambda mark: _ORDER.index(mark[1])):
        cells[column(at)] = (signs[what], what)
    cells[column(at_unix_ns)] = (glyphs.full, "bold")
    return _joined(cells)


def _joined(cells: list[Span]) -> list[Span]:
    joined: list[Span] = []
    for text, style in cells:
        if joined and joined[-1][1] == style:
            joined[-1] = (joined[-1][0] + text, style)
        else:
            joined.append((text, style))
    return joined
