"""The rule under the banner: the names of the views, or the shown moment."""

from __future__ import annotations

from textual import events
from textual.message import Message

from ddtop.ui.render.tabs import tab_at, tabs_line
from ddtop.ui.session import Paint
from ddtop.ui.widgets.lines import LinesView


class ViewBar(LinesView):
    """Shows the names of the views; a click on a name shows that view."""

    class Picked(Message):
        """Asks for that view."""

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
