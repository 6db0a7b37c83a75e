"""A view that is a list under a row of titles."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from textual.app import ComposeResult
from textual.widget import Widget

from ddtop.present.text import Line, clean, plain
from ddtop.ui.session import Session
from ddtop.ui.views.view import View
from ddtop.ui.widgets.lines import LinesView
from ddtop.ui.widgets.pick_list import PickList


class ListingView(View):
    """Titles and rows."""

    DEFAULT_CSS = """
    ListingView .titles { height: 1; }
    """

    def __init__(self, session: Session, *, at_end: bool = False) -> None:
        super().__init__(session)
        self.titles = LinesView(session.paint, f"{self.topic}-titles")
        self.titles.add_class("titles")
        self.list = PickList(session.paint, f"{self.topic}-list", at_end=at_end)

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield self.titles
        yield self.list

    def put(self, keys: Sequence[Hashable], row: Callable[[int], Line]) -> None:
        """Draw one row per key; with a filter, only the rows that contain all of its words."""
        words = self.searched.lower().split()
        if not words:
            self.list.show(keys, row)
            return
        kept = [
            index
            for index in range(len(keys))
            if (text := plain(row(index)).lower()) and all(word in text for word in words)
        ]
        self.found = f"filter {clean(self.searched)}, {len(kept):,} of {len(keys):,} rows"
        self.list.show([keys[index] for index in kept], lambda index: row(kept[index]))

    @property
    def target(self) -> Widget:
        """The list of rows."""
        return self.list

    def on_cursor_list_resized(self, message: PickList.Resized) -> None:
        """Another size shows other columns."""
        message.stop()
        look = self.session.shown
        if look.snapshot is not None and self.display:
            self.show(look, look.snapshot)
        self.post_message(self.Changed())

    def on_cursor_list_moved(self, message: PickList.Moved) -> None:
        """Update the foot, which shows which rows are visible."""
        message.stop()
        self.post_message(self.Changed())
