"""Keys, states and columns."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType

from ddtop.ui.present.text import Line
from ddtop.ui.render.pages import help_lines

from .facts import KEYS
from .page import PageScreen


class HelpScreen(PageScreen):
    """The help; `?` closes it again."""

    BINDINGS: ClassVar[list[BindingType]] = [("question_mark", "back", "back")]

    def page_lines(self, width: int) -> list[Line]:
        """The same at all times."""
        return help_lines(KEYS, width, self.session.paint.glyphs)
