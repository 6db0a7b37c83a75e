"""A screen that no size of before disturbs."""

from __future__ import annotations

from textual.geometry import Size
from textual.screen import Screen, ScreenResultType


class SizedScreen(Screen[ScreenResultType]):
    """Knows one size: the terminal's.

    Where a screen comes back while a change of size is on its way, Textual lays it out in both, each layout reports its
    size to the screen, and each report is a layout: the two chase each other for ever, on a whole core.
    """

    def _screen_resized(self, size: Size) -> None:
        """Called by Textual with the size that an event brought."""
        if size == self.app.size:
            super()._screen_resized(size)
