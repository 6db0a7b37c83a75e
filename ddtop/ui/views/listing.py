"""A view that is a list under a row of titles."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widget import Widget

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

    @property
    def target(self) -> Widget:
        """The rows."""
        return self.list

    def on_cursor_list_resized(self, message: PickList.Resized) -> None:
        """Another size has other columns."""
        message.stop()
        look = self.session.shown
        if look.snapshot is not None and self.display:
            self.show(look, look.snapshot)
        self.post_message(self.Changed())

    def on_cursor_list_moved(self, message: PickList.Moved) -> None:
        """The foot says which rows are visible."""
        message.stop()
        self.post_message(self.Changed())
