"""A list to pick one row from; its lines are made by the caller."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from ddtop.present.text import Line
from ddtop.ui.session import Paint
from ddtop.ui.widgets.cursor_list import CursorList, ListRow


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
