"""The help: what the screen below shows, and the keys."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType

from ddtop.present.text import Line, clean, wrap
from ddtop.ui.actions import RANKS
from ddtop.ui.render.help import help_lines
from ddtop.ui.screens.facts import KEYS, FactsScreen
from ddtop.ui.screens.page import PageScreen


class HelpScreen(PageScreen):
    """The help; `?` closes it again."""

    BINDINGS: ClassVar[list[BindingType]] = [("question_mark", "back", "back")]

    def page_lines(self, width: int) -> list[Line]:
        """The help, starting with the screen below."""
        stack = self.app.screen_stack
        below = stack[stack.index(self) - 1] if self in stack else None
        if not isinstance(below, FactsScreen) or below is self:
            below = None
        topic = below.topic if below is not None else RANKS
        own = below.help_keys() if below is not None else ()
        lines = help_lines(KEYS, width, self.session.paint.glyphs, topic, own)
        failure = getattr(self.app, "differ_failure", None)
        if failure is None:
            return lines
        text = f"drawing: whole lines are sent instead of the cells that changed ({clean(failure)})"
        return [*lines, (), *(((part, "dim"),) for part in wrap(text, width))]
