"""A screen that no size of before disturbs."""

from __future__ import annotations

from textual.geometry import Size
from textual.screen import Screen, ScreenResultType


class SizedScreen(Screen[ScreenResultType]):
    """Knows one size: the terminal's.

    Where a screen comes back while a change of size is on its way, Textual lays it out in both,
    each layout reports its size to the screen, and each report is a layout: the two chase each
    other for ever, on a whole core. And of two such events that wait Textual keeps the later one,
    which may be the report of a layout before: the terminal's own would be lost.
    """

    def _screen_resized(self, size: Size) -> None:
        """Called by Textual with the size that an event brought, which may be one of before."""
        now = self.app.size
        if size == now or self.size != now:
            super()._screen_resized(now)
