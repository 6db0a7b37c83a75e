"""The ranks table: rows are made for the visible lines only, and drawn again only where they differ.

Textual's own DataTable was measured at 8 to 100 times the cost of this; it also repaints itself whole for one changed
cell, and its cursor keeps the row's number where people follow a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from ddtop.model.facts import Snapshot
from ddtop.ui.present.columns import CellContext, Column, Layout, absent, host_width, layout
from ddtop.ui.present.text import Line
from ddtop.ui.render.rows import alarming, row_line, row_strip, title_line
from ddtop.ui.render.strips import strip_of
from ddtop.ui.session import Paint


@dataclass(frozen=True, slots=True)
class Row:
    """All that decides what one line of the table looks like."""

    line: Line
    at_fault: bool = False
    selected: bool = False


class RankTable(ScrollView, can_focus=True):
    """One row a rank. The cursor is on a rank, not on a line: it goes where its rank goes.

    Until the cursor has been moved it stays on the first row, which is the culprit's when there is one.
    """

    DEFAULT_CSS = """
    RankTable { height: 1fr; scrollbar-size: 0 0; overflow-x: hidden; }
    """
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("up,k", "move(-1)", "up"),
        ("down,j", "move(1)", "down"),
        ("pageup", "move_page(-1)", "page up"),
        ("pagedown", "move_page(1)", "page down"),
        ("home", "move_to_end(0)", "first"),
        ("end", "move_to_end(1)", "last"),
        ("space", "tag", "tag"),
        ("enter", "open", "rank"),
    ]

    class Opened(Message):
        """One rank's page is wanted."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    class Resized(Message):
        """The table has another size."""

    class Moved(Message):
        """The cursor or the visible part moved."""

    def __init__(self, paint: Paint, name: str | None = None) -> None:
        super().__init__(id=name)
        self.cursor_rank: int | None = None
        self.tagged: set[int] = set()
        self.hidden: frozenset[str] = frozenset()
        self._paint = paint
        self._snapshot: Snapshot | None = None
        self._order: Sequence[int] = ()
        self._culprits: frozenset[int] = frozenset()
        self._old = False
        self._touched = False
        self._cursor_index = 0
        self._drawn: dict[int, Row] = {}
        self._hosts: tuple[tuple[str, int, int], int] = (("", 0, 0), 0)

    @property
    def shape(self) -> Layout:
        """The columns that there is room for."""
        world = self._snapshot.world_size if self._snapshot else 0
        return layout(self.size.width, world, self._hosts[1], self.hidden | absent(self._snapshot))

    @property
    def visible_range(self) -> tuple[int, int, int]:
        """First and last visible row, counted from 1, and how many rows there are."""
        top = self.scroll_offset.y
        return min(top + 1, len(self._order)), min(top + self.size.height, len(self._order)), len(self._order)

    def show(self, snapshot: Snapshot, order: Sequence[int], culprits: frozenset[int], old: bool) -> None:
        """Draw these ranks in this order."""
        moved = order is not self._order and list(order) != list(self._order)
        self._snapshot, self._order, self._culprits, self._old = snapshot, order, culprits, old
        self._measure_hosts(snapshot)
        self._place_cursor(moved)
        size = Size(self.size.width, len(order))
        if size != self.virtual_size:
            self.virtual_size = size
        if moved and self._touched:
            self._keep_visible()
        self._redraw()

    def repaint(self) -> None:
        """Draw everything again, after a change of the palette."""
        self._drawn.clear()
        self.refresh()

    def _measure_hosts(self, snapshot: Snapshot) -> None:
        """The width of HOST only grows, and only when somebody new may have come."""
        key = (snapshot.run, snapshot.reporting, len(snapshot.hosts))
        known, width = self._hosts
        if key != known:
            same_run = known[0] == snapshot.run
            self._hosts = (key, max(host_width(snapshot), width if same_run else 0))

    def _place_cursor(self, moved: bool) -> None:
        if not self._order:
            self.cursor_rank = None
            return
        if not self._touched or self.cursor_rank is None:
            self._cursor_index = 0
        elif moved:
            self._cursor_index = self._index_of(self.cursor_rank)
        self._cursor_index = min(self._cursor_index, len(self._order) - 1)
        self.cursor_rank = self._order[self._cursor_index]

    def _index_of(self, rank: int) -> int:
        """Its line; where it was filtered away, the line where the cursor was."""
        try:
            return list(self._order).index(rank)
        except ValueError:
            return self._cursor_index

    def _keep_visible(self) -> None:
        top, height = self.scroll_offset.y, self.size.height
        if height <= 0:
            return
        if self._cursor_index < top:
            self.scroll_to(y=self._cursor_index, animate=False)
        elif self._cursor_index >= top + height:
            self.scroll_to(y=self._cursor_index - height + 1, animate=False)

    def _row(self, index: int) -> Row:
        if self._snapshot is None or not 0 <= index < len(self._order):
            return Row(())
        rank = self._snapshot.rank(self._order[index])
        context = CellContext(self._snapshot.time_unix_ns, self._paint.glyphs)
        line = row_line(rank, self.shape, context, rank.rank in self.tagged, self._old)
        return Row(line, alarming(rank, self._culprits), rank.rank == self.cursor_rank)

    def _redraw(self) -> None:
        """Find the visible lines that differ from what was drawn, and ask for those."""
        top, width = self.scroll_offset.y, self.size.width
        fresh = {y: self._row(top + y) for y in range(self.size.height)}
        for y, row in fresh.items():
            if row != self._drawn.get(y):
                self.refresh(Region(0, y, width, 1))
        self._drawn = fresh

    def render_line(self, y: int) -> Strip:
        """One line of the visible part."""
        row = self._drawn.get(y) or self._row(self.scroll_offset.y + y)
        return row_strip(row.line, self.size.width, self._paint.palette, at_fault=row.at_fault, selected=row.selected)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Other rows are visible now."""
        self._redraw()
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Moved())

    def on_resize(self) -> None:
        """The columns may be others now, and so may their titles."""
        self._drawn.clear()
        self._redraw()
        self.post_message(self.Resized())

    def _move_to(self, index: int) -> None:
        if not self._order:
            return
        self._touched = True
        self._cursor_index = min(max(index, 0), len(self._order) - 1)
        self.cursor_rank = self._order[self._cursor_index]
        self._keep_visible()
        self._redraw()
        self.post_message(self.Moved())

    def go_to(self, rank: int) -> bool:
        """Put the cursor on that rank; False where it is not among the rows."""
        if rank not in self._order:
            return False
        self._move_to(self._order.index(rank))
        return True

    def action_move(self, lines: int) -> None:
        """Move the cursor by lines."""
        self._move_to(self._cursor_index + lines)

    def action_move_page(self, pages: int) -> None:
        """Move the cursor by a screen."""
        self._move_to(self._cursor_index + pages * max(self.size.height - 1, 1))

    def action_move_to_end(self, last: int) -> None:
        """Move the cursor to the first or the last row."""
        self._move_to(len(self._order) - 1 if last else 0)

    def action_tag(self) -> None:
        """Mark the rank under the cursor, or take its mark away, and go on to the next."""
        if self.cursor_rank is None:
            return
        self.tagged ^= {self.cursor_rank}
        self._move_to(self._cursor_index + 1)

    def action_open(self) -> None:
        """Ask for the page of the rank under the cursor."""
        if self.cursor_rank is not None:
            self.post_message(self.Opened(self.cursor_rank))

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor there, a double click opens."""
        index = self.scroll_offset.y + event.y
        if index < len(self._order):
            self._move_to(index)
            if event.chain == 2:
                self.action_open()


class TitleRow(Widget):
    """The titles above the table; a click on one sorts by it."""

    DEFAULT_CSS = """
    TitleRow { height: 1; }
    """
    ALLOW_SELECT = False

    class Picked(Message):
        """Rows are to be sorted by this column."""

        def __init__(self, column: Column) -> None:
            super().__init__()
            self.column = column

    def __init__(self, paint: Paint, table: RankTable, name: str | None = None) -> None:
        super().__init__(id=name)
        self._paint = paint
        self._table = table
        self._sort_key = ""
        self._line: Line = ()

    def show(self, sort_key: str) -> None:
        """Draw the titles of the table's columns."""
        self._sort_key = sort_key
        line = title_line(self._table.shape, sort_key)
        if line != self._line:
            self._line = line
            self.refresh()

    def repaint(self) -> None:
        """Draw everything again, after a change of the palette."""
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """The one line."""
        return strip_of(self._line if y == 0 else (), self.size.width, self._paint.palette)

    def on_click(self, event: events.Click) -> None:
        """Sort by the title under the pointer."""
        column = self._table.shape.at(event.x)
        if column is not None:
            self.post_message(self.Picked(column))
