"""A screen that ignores outdated sizes."""

from __future__ import annotations

from textual.geometry import Size
from textual.screen import Screen, ScreenResultType


class SizedScreen(Screen[ScreenResultType]):
    """A screen whose size is always that of the terminal.

    When a screen is shown again during a change of size, Textual lays it out in both sizes. Each
    layout reports its size to the screen, and each report causes a layout, so the two alternate
    without end and use a whole core. And of two size events that wait, Textual keeps the later
    one. That may be the report of an earlier layout, and then the terminal's own size is lost.
    """

    def _screen_resized(self, size: Size) -> None:
        """Called by Textual with the size in an event, which may be outdated."""
        now = self.app.size
        if size == now or self.size != now:
            super()._screen_resized(now)
