"""The screen for a terminal that is too small: says so, and which size is needed."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.geometry import Size
from textual.widgets import Static

from ddtop.ui.terminal.sized import SizedScreen

SMALLEST = Size(40, 10)
"""Below this size the verdict and a row of the table do not fit."""


class SmallScreen(SizedScreen[None]):
    """Covers the other screens until the terminal is large enough."""

    DEFAULT_CSS = """
    SmallScreen Static { width: 100%; height: auto; }
    """

    @staticmethod
    def wanted(size: Size) -> bool:
        """Whether the terminal is too small."""
        return size.width < SMALLEST.width or size.height < SMALLEST.height

    def compose(self) -> ComposeResult:
        """One sentence with the most important word first: perhaps only that word fits."""
        yield Static(markup=False)

    def on_mount(self) -> None:
        """Draw the first picture."""
        self._say()

    def on_resize(self) -> None:
        """Show the new size."""
        self._say()

    def _say(self) -> None:
        size = self.app.size
        wanted = f"{SMALLEST.width}x{SMALLEST.height}"
        self.query_one(Static).update(
            f"too small: {size.width}x{size.height}, ddtop wants {wanted}; q quits"
        )
