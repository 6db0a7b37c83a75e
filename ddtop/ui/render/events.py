"""The events as rows, and the story of one event as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddtop.model.state.facts import Snapshot
from ddtop.present.findings.banner import severity_mark
from ddtop.present.findings.timeline import (
    CONTACT,
    ENDED,
    FINDING,
    JOB,
    JOINED,
    LOSS,
    ORDER,
    RAISED,
    RESTARTED,
    STACKS,
    Entry,
    over_text,
)
from ddtop.present.glyphs import UNICODE, Glyphs
from ddtop.present.table.layout import Field, Table, table_for
from ddtop.present.text import Line, Span, clean
from ddtop.ui.render.findings import add_finding, add_meaning
from ddtop.ui.render.page import Page
from ddtop.words import units
from ddtop.words.ranks import ranks_text

FIELDS = (
    Field("time", "TIME", 8),
    Field("what", "WHAT", 18, grows=1, most=24),
    Field("stood", "STOOD", 5, right=True),
    Field("text", "", 16, grows=20),
)
_NAMES = {
    JOINED: "joined",
    ENDED: "ended",
    RAISED: "exception",
    RESTARTED: "restart",
    STACKS: "stacks",
    CONTACT: "contact",
    JOB: "job",
    LOSS: "dropped",
    ORDER: "order",
}
_STYLES = {
    ENDED: "gone",
    RAISED: "critical",
    RESTARTED: "warning",
    CONTACT: "warning",
    JOB: "bold",
    LOSS: "warning",
}


@dataclass(frozen=True, slots=True)
class EventRow:
    """One row of the events: the beginning or the end of an entry."""

    entry: Entry
    over: bool = False

    @property
    def unix_ns(self) -> int:
        """The time of the beginning or the end."""
        return (self.entry.over_unix_ns or 0) if self.over else self.entry.unix_ns


def rows_of(entries: Sequence[Entry]) -> list[EventRow]:
    """All beginnings and ends, in the order of time."""
    rows = [EventRow(entry) for entry in entries]
    rows += [
        EventRow(entry, True)
        for entry in entries
        if entry.over_unix_ns is not None and not entry.closed
    ]
    rows.sort(key=lambda row: row.unix_ns)
    return rows


def events_table(width: int) -> Table[Field]:
    """The columns of the events for that width."""
    return table_for(FIELDS, width)


def event_row(
    row: EventRow, now_unix_ns: int, table: Table[Field], glyphs: Glyphs = UNICODE
) -> Line:
    """One row; events after the shown moment are dim."""
    cells = {
        "time": (units.clock(row.unix_ns), "dim"),
        "what": _what(row, glyphs),
        "stood": _duration(row, now_unix_ns),
        "text": _text(row),
    }
    if row.unix_ns > now_unix_ns:
        cells = {key: (text, "dim") for key, (text, _) in cells.items()}
    return table.line(cells, glyphs.ellipsis)


def event_words(row: EventRow, glyphs: Glyphs = UNICODE) -> tuple[str, str]:
    """A row without columns, for narrow places: its mark and its words."""
    finding = row.entry.finding
    if finding is None:
        return " ", row.entry.text
    if row.over:
        return " ", over_text(finding)
    return severity_mark(finding.severity, glyphs)[0], row.entry.text


def _what(row: EventRow, glyphs: Glyphs) -> Span:
    entry = row.entry
    if entry.finding is None:
        return f"  {_NAMES.get(entry.what, entry.what)}", _STYLES.get(entry.what, "")
    if row.over:
        return f"  {clean(entry.finding.kind)}", "dim"
    mark, style = severity_mark(entry.finding.severity, glyphs)
    return f"{mark} {clean(entry.finding.kind)}", "dim" if entry.over_unix_ns is not None else style


def _duration(row: EventRow, now_unix_ns: int) -> Span:
    entry = row.entry
    if entry.what != FINDING:
        return "", "dim"
    until = (
        entry.over_unix_ns if entry.over_unix_ns is not None else max(now_unix_ns, entry.unix_ns)
    )
    return units.age(
        (until - entry.unix_ns) / units.SECOND_NS
    ), "" if entry.over_unix_ns is None else "dim"


def _text(row: EventRow) -> Span:
    entry = row.entry
    if row.over:
        of = f" of {ranks_text(entry.ranks, 6)}" if entry.ranks else ""
        return f"over{of}", ""
    return entry.text, "dim" if entry.over_unix_ns is not None else ""


def story_lines(
    snapshot: Snapshot, entry: Entry, width: int, glyphs: Glyphs = UNICODE
) -> list[Line]:
    """How one entry went: for a finding its beginning, the changes of its sentence, its end, and
    all its evidence."""
    page = Page(width, glyphs)
    if entry.finding is not None:
        add_finding(page, snapshot, entry.finding, entry)
        add_meaning(page, entry.finding.kind)
        return page.lines
    page.text(entry.text, "title")
    page.blank()
    ago = units.duration((snapshot.time_unix_ns - entry.unix_ns) / units.SECOND_NS)
    page.item("at", f"{units.clock(entry.unix_ns)}, {ago} ago")
    page.item("ranks", ranks_text(entry.ranks, 16))
    return page.lines
