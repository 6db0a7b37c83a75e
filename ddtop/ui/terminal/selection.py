"""Text that is selected with the mouse.

Textual finds the letter under the pointer by a mark in the style of each cell, which every line
would pay for at every refresh. Our widgets know their lines: the place of a letter is enough.
"""

from __future__ import annotations

from typing import Any

from rich.style import Style
from textual.errors import NoWidget
from textual.geometry import Offset
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

_SELECTED = Style(reverse=True)


class Selectable(ScrollView):
    """A widget of lines whose text can be selected."""

    def texts(self) -> list[str]:
        """All of its lines."""
        raise NotImplementedError

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text, without the blanks at the ends of lines."""
        lines = selection.extract("\n".join(self.texts())).split("\n")
        return "\n".join(line.rstrip() for line in lines), "\n"

    def text_select_all(self) -> None:
        """Nothing: a double click opens what is there."""

    def with_selection(self, strip: Strip, index: int) -> Strip:
        """The drawn line of that index, with what is selected of it turned round."""
        selection = self.text_selection
        span = selection.get_span(index) if selection is not None else None
        if span is None:
            return strip
        start, end = span[0], strip.cell_length if span[1] < 0 else span[1]
        selected = strip.crop(start, end).apply_style(_SELECTED)
        return Strip.join([strip.crop(0, start), selected, strip.crop(end)])


def letter_at(screen: Screen[Any], x: int, y: int) -> tuple[Widget | None, Offset | None]:
    """The widget there, and the column and line of its text."""
    try:
        widget, region = screen.get_widget_at(x, y)
    except NoWidget:
        return None, None
    if not isinstance(widget, Selectable):
        return widget, None
    return widget, Offset(x - region.x, y - region.y) + widget.scroll_offset
