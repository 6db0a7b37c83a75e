"""Rows to pick one from: only the visible ones are made, and only those that differ are drawn again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ddtop.ui.present.text import Line
from ddtop.ui.render.strips import strip_of
from ddtop.ui.session import Paint


class PickList(ScrollView, can_focus=True):
    """The cursor is on a key, not on a line: it goes where its key goes.

    Until it has been moved it stays on the first row; with `at_end` on the last, which is the newest.
    """

    DEFAULT_CSS = """
    PickList { height: 1fr; scrollbar-size: 0 0; overflow-x: hidden; }
    """
    ALLOW_SELECT = False
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
        """What the row stands for is wanted."""

        def __init__(self, source: PickList, key: Hashable) -> None:
            super().__init__()
            self.source, self.key = source, key

    class Moved(Message):
        """The cursor, the visible part or the size is another."""

    def __init__(self, paint: Paint, name: str | None = None, *, at_end: bool = False) -> None:
        super().__init__(id=name)
        self.cursor_key: Hashable | None = None
        self._paint = paint
        self._at_end = at_end
        self._keys: Sequence[Hashable] = ()
        self._row: Callable[[int], Line] = _no_row
        self._touched = False
        self._cursor = 0
        self._drawn: dict[int, tuple[Line, bool]] = {}

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

    def show(self, keys: Sequence[Hashable], row: Callable[[int], Line]) -> None:
        """Draw one row a key; `row` makes the line of an index, and is called for visible ones only."""
        before, self._keys, self._row = self._keys, keys, row
        moved = keys != before
        if moved:
            self._find_cursor()
        size = Size(self.size.width, len(keys))
        if size != self.virtual_size:
            self.virtual_size = size
        if moved and (self._touched or self._at_end):
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
            # One that is gone leaves the cursor on the line where it was.
            found = next((at for at, key in enumerate(self._keys) if key == self.cursor_key), self._cursor)
            self._cursor = min(found, last)
        self.cursor_key = self._keys[self._cursor]

    def _keep_visible(self) -> None:
        top, height = self.scroll_offset.y, self.size.height
        if height <= 0:
            return
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._cursor >= top + height:
            self.scroll_to(y=self._cursor - height + 1, animate=False)

    def _made(self, index: int) -> tuple[Line, bool]:
        if not 0 <= index < len(self._keys):
            return (), False
        return self._row(index), self._keys[index] == self.cursor_key

    def _redraw(self) -> None:
        top, width = self.scroll_offset.y, self.size.width
        fresh = {y: self._made(top + y) for y in range(self.size.height)}
        for y, row in fresh.items():
            if row != self._drawn.get(y):
                self.refresh(Region(0, y, width, 1))
        self._drawn = fresh

    def render_line(self, y: int) -> Strip:
        """One line of the visible part."""
        line, picked = self._drawn.get(y) or self._made(self.scroll_offset.y + y)
        palette = self._paint.palette
        return strip_of(line, self.size.width, palette, palette.cursor if picked else None)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Other rows are visible now."""
        self._redraw()
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Moved())

    def on_resize(self) -> None:
        """Rows may be cut elsewhere now."""
        self._drawn.clear()
        if self._touched or self._at_end:
            self._keep_visible()
        self._redraw()
        self.post_message(self.Moved())

    def _move_to(self, index: int) -> None:
        if not self._keys:
            return
        last = len(self._keys) - 1
        self._cursor = min(max(index, 0), last)
        # Who goes back to the newest row wants to see the next one too.
        self._touched = not (self._at_end and self._cursor == last)
        self.cursor_key = self._keys[self._cursor]
        self._keep_visible()
        self._redraw()
        self.post_message(self.Moved())

    def action_move(self, lines: int) -> None:
        """Move the cursor by lines."""
        self._move_to(self._cursor + lines)

    def action_move_page(self, pages: int) -> None:
        """Move the cursor by a screen."""
        self._move_to(self._cursor + pages * max(self.size.height - 1, 1))

    def action_move_to_end(self, last: int) -> None:
        """Move the cursor to the first or the last row."""
        self._move_to(len(self._keys) - 1 if last else 0)

    def action_open(self) -> None:
        """Ask for what the row under the cursor stands for."""
        if self.cursor_key is not None:
            self.post_message(self.Opened(self, self.cursor_key))

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor there, a double click opens."""
        index = self.scroll_offset.y + event.y
        if index < len(self._keys):
            self._move_to(index)
            if event.chain == 2:
                self.action_open()


def _no_row(index: int) -> Line:
    del index
    return ()
