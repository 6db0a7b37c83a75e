"""Lines of named styles on the screen; they scroll if not all fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ddtop.present.text import Line
from ddtop.ui.render.strips import strip_of
from ddtop.ui.session import Paint

WIDEST = 120


class LinesView(ScrollView):
    """Shows lines and redraws only the changed ones.

    `margin`: a thin vertical line at the left that separates a side pane from the table.
    """

    DEFAULT_CSS = """
    LinesView { scrollbar-size: 0 0; overflow-x: hidden; }
    """
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("up,k", "scroll_up", "up"),
        ("down,j", "scroll_down", "down"),
        ("pageup", "page_up", "page up"),
        ("pagedown,space", "page_down", "page down"),
        ("home,g", "scroll_home", "top"),
        ("end,G", "scroll_end", "bottom"),
    ]

    def __init__(
        self,
        paint: Paint,
        name: str | None = None,
        *,
        margin: bool = False,
        focusable: bool = False,
    ) -> None:
        super().__init__(id=name)
        self.can_focus = focusable
        self._paint = paint
        self._margin = margin
        self._lines: Sequence[Line] = ()

    @property
    def room(self) -> int:
        """The number of columns that a line may use."""
        return self.size.width - (2 if self._margin else 0)

    @property
    def reading_room(self) -> int:
        """The same for text, at most `WIDEST`: wider text is hard to read."""
        return min(self.room, WIDEST)

    def show(self, lines: Sequence[Line]) -> None:
        """Draw these lines."""
        before, self._lines = self._lines, lines
        size = Size(self.size.width, len(lines))
        if size != self.virtual_size:
            self.virtual_size = size
        top = self.scroll_offset.y
        for y in range(self.size.height):
            if _at(before, top + y) != _at(lines, top + y):
                self.refresh(Region(0, y, self.size.width, 1))

    def repaint(self) -> None:
        """Draw everything again, after a change of the palette."""
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line of the visible part."""
        line = _at(self._lines, y + self.scroll_offset.y) or ()
        if self._margin:
            line = ((self._paint.glyphs.upright + " ", "rule"), *line)
        return strip_of(line, self.size.width, self._paint.palette)

    def action_page_up(self) -> None:
        """Scroll up by a screen."""
        self.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        """Scroll down by a screen."""
        self.scroll_page_down(animate=False)


def _at(lines: Sequence[Line], index: int) -> Line | None:
    return lines[index] if 0 <= index < len(lines) else None
