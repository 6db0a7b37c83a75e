"""The texts that can be copied, with one key each. They go to the clipboard of the terminal that
shows ddtop."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import BindingType

from ddtop.present.copies import CopyItem, copies_of
from ddtop.present.text import Line, clip_line
from ddtop.ui.screens.page import PageScreen
from ddtop.ui.session import Session
from ddtop.ui.widgets.key_bar import Key

SHOWN_LINES = 6
"""Only the first lines of a stack are shown here; the whole stack is copied."""
BYTES_MAX = 60_000
"""Terminals drop longer OSC 52 sequences completely."""


class CopyScreen(PageScreen):
    """Copies one text by the escape sequence OSC 52, which also works over ssh."""

    SEARCHED = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *((key, f"copy('{key}')", "copy") for key in "sphclk"),
        ("y", "back", "back"),
    ]

    def __init__(self, session: Session, rank: int | None) -> None:
        super().__init__(session)
        self.rank = rank
        # The texts are fixed when the screen is opened: the user copies what is shown.
        look = session.shown
        self._items: tuple[CopyItem, ...] = (
            copies_of(look.snapshot, look.verdict, rank) if look.snapshot is not None else ()
        )
        self._lines_of: list[str] = []

    def page_lines(self, width: int) -> list[Line]:
        """Every text below its key."""
        whose = f"copy, of rank {self.rank}" if self.rank is not None else "copy"
        lines: list[Line] = [((whose, "title"),), ()]
        self._lines_of = ["", ""]
        ellipsis = self.session.paint.glyphs.ellipsis
        for item in self._items:
            texts = item.text.splitlines()
            for number, text in enumerate(texts[:SHOWN_LINES]):
                lead = f"  {item.key}  {item.label:<9} " if number == 0 else " " * 15
                lines.append(clip_line(((lead, "key"), (text, "")), width, ellipsis))
                self._lines_of.append(item.key)
            if len(texts) > SHOWN_LINES:
                lines.append(((f"{'':15}and {len(texts) - SHOWN_LINES} more lines", "dim"),))
                self._lines_of.append(item.key)
        return lines

    def extra_keys(self) -> tuple[Key, ...]:
        """One key for each text."""
        return tuple((item.key, item.key, item.label) for item in self._items)

    def action_copy(self, key: str) -> None:
        """Copy that text and go back."""
        item = next((one for one in self._items if one.key == key), None)
        if item is None:
            return
        text = item.text.encode()[:BYTES_MAX].decode(errors="ignore")
        self.app.copy_to_clipboard(text)
        self.session.say(f"copied the {item.label}, if this terminal takes OSC 52")
        self.dismiss(None)

    def on_click(self, event: events.Click) -> None:
        """A click on a text copies it."""
        line = self.clicked_line(event)
        if line is not None and line < len(self._lines_of) and self._lines_of[line]:
            self.action_copy(self._lines_of[line])
