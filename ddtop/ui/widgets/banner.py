"""The banner below the header: what is wrong. Its height changes only with the finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message

from ddtop.present.text import Line
from ddtop.ui.session import Paint
from ddtop.ui.widgets.lines import LinesView


class Banner(LinesView):
    """The verdict. Enter or a click opens the findings."""

    DEFAULT_CSS = """
    Banner { height: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("enter", "open", "why")]

    class Opened(Message):
        """Asks for the findings page."""

    def __init__(self, paint: Paint, name: str | None = None) -> None:
        super().__init__(paint, name, focusable=True)
        self._pinned: tuple[object, int] = (None, 0)

    def show_for(self, subject: object, lines: Sequence[Line]) -> None:
        """Draw these lines.

        While `subject` is the same, the banner does not shrink: its sentence may wrap to one more
        line when a duration gets another digit, and the table must not move up and down with it.
        """
        held, most = self._pinned
        height = max(len(lines), most if held == subject else 0)
        self._pinned = (subject, height)
        if self.styles.height is None or self.styles.height.value != height:
            self.styles.height = height
        self.show(lines)

    def action_open(self) -> None:
        """Ask for the findings."""
        self.post_message(self.Opened())

    def on_click(self, event: events.Click) -> None:
        """A click does what Enter does."""
        event.stop()
        self.action_open()
