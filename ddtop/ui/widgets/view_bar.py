"""The rule under the banner: which views there are, or where in time the screen stands."""

from __future__ import annotations

from textual import events
from textual.message import Message

from ddtop.ui.render.tabs import tab_at, tabs_line
from ddtop.ui.session import Paint
from ddtop.ui.widgets.lines import LinesView


class ViewBar(LinesView):
    """A click on a view's name shows it."""

    class Picked(Message):
        """That view is wanted."""

        def __init__(self, view: str) -> None:
            super().__init__()
            self.view = view

    def __init__(self, paint: Paint, name: str | None = None) -> None:
        super().__init__(paint, name)
        self._current: str | None = None

    def show_tabs(self, current: str) -> None:
        """Draw the names."""
        self._current = current
        self.show([tabs_line(current, self.size.width, self._paint.glyphs)])

    def on_click(self, event: events.Click) -> None:
        """Ask for the view under the pointer."""
        view = (
            tab_at(self._current, self.size.width, event.x) if self._current is not None else None
        )
        if view is not None:
            event.stop()
            self.post_message(self.Picked(view))
