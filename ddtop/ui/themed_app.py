"""An app that draws in the user's theme: the dashboard and the list of jobs."""

from __future__ import annotations

from collections.abc import Sequence

from textual.filter import LineFilter

from ddtop.present.text import Glyphs
from ddtop.ui import style
from ddtop.ui.screens.page import FilteringScreen
from ddtop.ui.session import Kept, Paint
from ddtop.ui.terminal.terminal import TerminalApp, glyphs_here


class ThemedApp(TerminalApp):
    """`kept`: the user's settings, and the file they are kept in."""

    def __init__(self, kept: Kept | None, glyphs: Glyphs | None) -> None:
        super().__init__()
        self.kept = kept or Kept(None)
        theme = style.first_theme(self, self.kept.setup.theme)
        self.paint = Paint(style.PALETTES[theme], glyphs or glyphs_here())
        style.use(self, self.paint.palette)

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's filters, as our palettes need them."""
        return style.filters(super().get_line_filters(), self.paint.palette)

    def use_theme(self, name: str) -> None:
        """Draw every screen in this theme."""
        self.paint.palette = style.PALETTES[name]
        style.use(self, self.paint.palette)
        for screen in self.screen_stack:
            if isinstance(screen, FilteringScreen):
                screen.repaint()
