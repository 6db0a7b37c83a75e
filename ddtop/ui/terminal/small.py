"""Where the terminal is too small for anything: says so, and what is needed."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.geometry import Size
from textual.widgets import Static

from ddtop.ui.terminal.sized import SizedScreen

SMALLEST = Size(40, 10)
"""Below that the verdict and a row of the table no longer fit."""


class SmallScreen(SizedScreen[None]):
    """Stands over the others until the terminal is large enough."""

    DEFAULT_CSS = """
    SmallScreen Static { width: 100%; height: auto; }
    """

    @staticmethod
    def wanted(size: Size) -> bool:
        """The terminal is too small."""
        return size.width < SMALLEST.width or size.height < SMALLEST.height

    def compose(self) -> ComposeResult:
        """One sentence, the most important word first: more than that word may not fit."""
        yield Static(markup=False)

    def on_mount(self) -> None:
        """First picture."""
        self._say()

    def on_resize(self) -> None:
        """Say how large it is now."""
        self._say()

    def _say(self) -> None:
        size = self.app.size
        wanted = f"{SMALLEST.width}x{SMALLEST.height}"
        self.query_one(Static).update(
            f"too small: {size.width}x{size.height}, ddtop wants {wanted}; q quits"
        )
