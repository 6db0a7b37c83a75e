"""Rows with a cursor on one of them. Only visible rows are made, and only changed rows are drawn
again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from ddtop.present.text import Line, clip_line, plain
from ddtop.ui.rows import row_strip
from ddtop.ui.session import Paint
from ddtop.ui.terminal.selection import Selectable


@dataclass(frozen=True, slots=True)
class ListRow:
    """Everything that determines how one line of the list looks."""

    line: Line
    at_fault: bool = False
    selected: bool = False


class CursorList(Selectable, can_focus=True):
    """The cursor is on a key, not on a line: it moves with its key.

    Until the user moves it, it stays on the first row, or with `at_end` on the last row, which is
    the newest.
    """

    DEFAULT_CSS = """
    CursorList { height: 1fr; scrollbar-size: 0 0; overflow-x: hidden; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("up,k", "move(-1)", "up"),
        ("down,j", "move(1)", "down"),
        ("pageup", "move_page(-1)", "page up"),
        ("pagedown", "move_page(1)", "page down"),
        ("home,g", "move_to_end(0)", "first"),
        ("end,G", "move_to_end(1)", "last"),
        ("enter", "open", "open"),
    ]

    class Opened(Message):
        """Asks for the page of this row."""

        def __init__(self, key: Hashable) -> None:
            super().__init__()
            self.key = key

    class Moved(Message):
        """The cursor or the visible part has changed."""

    class Resized(Message):
        """The list has a new size: columns and titles may have changed."""

    def __init__(self, paint: Paint, name: str | None = None, *, at_end: bool = False) -> None:
        super().__init__(id=name)
        self.cursor_key: Hashable | None = None
        self._paint = paint
        self._at_end = at_end
        self._keys: Sequence[Hashable] = ()
        self._touched = False
        self._cursor = 0
        self._drawn: dict[int, ListRow] = {}

    def made(self, index: int) -> ListRow:
        """Make the row with that index, which exists; called for visible rows only."""
        raise NotImplementedError

    @property
    def visible_range(self) -> tuple[int, int, int]:
        """First and last visible row, counted from 1, and how many rows there are."""
        top, rows = self.scroll_offset.y, len(self._keys)
        return min(top + 1, rows), min(top + self.size.height, rows), rows

    @property
    def range_note(self) -> str:
        """`rows 1-17 of 512`, empty where all are seen."""
        first, last, rows = self.visible_range
        return f"rows {first:,}-{last:,} of {rows:,}" if rows > self.size.height > 0 else ""

    def show_keys(self, keys: Sequence[Hashable]) -> None:
        """Draw one row per key."""
        before, self._keys = self._keys, keys
        moved = keys is not before and list(keys) != list(before)
        if moved:
            self._find_cursor()
        size = Size(self.size.width, len(keys))
        if size != self.virtual_size:
            self.virtual_size = size
        if moved:
            self._keep_visible()
        self._redraw()

    def repaint(self) -> None:
        """Draw everything again, after a change of the palette."""
        self._drawn.clear()
        self.refresh()

    def _find_cursor(self) -> None:
        if not self._keys:
            self.cursor_key = None
            return
        last = len(self._keys) - 1
        if not self._touched or self.cursor_key is None:
            self._cursor = last if self._at_end else 0
        elif not (self._cursor <= last and self._keys[self._cursor] == self.cursor_key):
            # If the cursor's key is gone, the cursor stays on the same line.
            found = next(
                (at for at, key in enumerate(self._keys) if key == self.cursor_key), self._cursor
            )
            self._cursor = min(found, last)
        self.cursor_key = self._keys[self._cursor]

    def _keep_visible(self) -> None:
        """Scroll to the cursor. Not before the user has moved it: the mouse wheel may have scrolled
        the list."""
        top, height = self.scroll_offset.y, self.size.height
        if height <= 0 or not (self._touched or self._at_end):
            return
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._cursor >= top + height:
            self.scroll_to(y=self._cursor - height + 1, animate=False)

    def _row_at(self, index: int) -> ListRow:
        return self.made(index) if 0 <= index < len(self._keys) else ListRow(())

    def _redraw(self) -> None:
        """Find the visible lines that differ from the drawn ones, and redraw those."""
        top, width = self.scroll_offset.y, self.size.width
        fresh = {y: self._row_at(top + y) for y in range(self.size.height)}
        for y, row in fresh.items():
            if row != self._drawn.get(y):
                self.refresh(Region(0, y, width, 1))
        self._drawn = fresh

    def render_line(self, y: int) -> Strip:
        """One line of the visible part."""
        row = self._drawn.get(y) or self._row_at(self.scroll_offset.y + y)
        strip = row_strip(
            clip_line(row.line, self.size.width, self._paint.glyphs.ellipsis),
            self.size.width,
            self._paint.palette,
            at_fault=row.at_fault,
            selected=row.selected,
        )
        return self.with_selection(strip, self.scroll_offset.y + y)

    def texts(self) -> list[str]:
        """All rows, as wide as they are drawn."""
        return [plain(self.made(index).line) for index in range(len(self._keys))]

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Draw the rows that are visible now."""
        self._redraw()
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Moved())

    def on_resize(self) -> None:
        """Draw again: rows may be cut at another column, and the cursor's row may be out of
        view."""
        self._drawn.clear()
        self._keep_visible()
        self._redraw()
        self.post_message(self.Resized())

    def move_to(self, index: int) -> None:
        """Put the cursor on that row, or on the nearest one that exists."""
        if not self._keys:
            return
        last = len(self._keys) - 1
        self._cursor = min(max(index, 0), last)
        # With the cursor on the newest row the list follows new rows.
        self._touched = not (self._at_end and self._cursor == last)
        self.cursor_key = self._keys[self._cursor]
        self._keep_visible()
        self._redraw()
        self.post_message(self.Moved())

    def action_move(self, lines: int) -> None:
        """Move the cursor by lines."""
        self.move_to(self._cursor + lines)

    def action_move_page(self, pages: int) -> None:
        """Move the cursor by a screen."""
        self.move_to(self._cursor + pages * max(self.size.height - 1, 1))

    def action_move_to_end(self, last: int) -> None:
        """Move the cursor to the first or the last row."""
        self.move_to(len(self._keys) - 1 if last else 0)

    def action_open(self) -> None:
        """Ask for the page of the row under the cursor."""
        if self.cursor_key is not None:
            self.post_message(self.Opened(self.cursor_key))

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor there, a double click opens."""
        index = self.scroll_offset.y + event.y
        if index < len(self._keys):
            self.move_to(index)
            if event.chain == 2:
                self.action_open()


# -- A list to pick one row from; its lines are made by the caller


class PickList(CursorList):
    """One row per key."""

    def __init__(self, paint: Paint, name: str | None = None, *, at_end: bool = False) -> None:
        super().__init__(paint, name, at_end=at_end)
        self._line: Callable[[int], Line] | None = None

    def show(self, keys: Sequence[Hashable], line: Callable[[int], Line]) -> None:
        """Draw one row per key; `line` makes the line of an index, and is called for visible rows
        only."""
        self._line = line
        self.show_keys(keys)

    def made(self, index: int) -> ListRow:
        """Make the line, and note whether the cursor is on it."""
        line = self._line(index) if self._line is not None else ()
        return ListRow(line, selected=self._keys[index] == self.cursor_key)
