"""The last line: the keys that work here."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.strip import Strip
from textual.widget import Widget

from ddtop.present.text import Line, Span, line_width
from ddtop.ui.render.strips import strip_of
from ddtop.ui.session import Paint

Key = tuple[str, str, str]
"""The key as Textual names it, the key as people write it, what it does."""


def key_line(keys: Sequence[Key], width: int) -> Line:
    """As many keys as fit, from the left; the most useful come first."""
    spans: list[Span] = []
    for _, shown, label in keys:
        part: list[Span] = [("  ", "")] if spans else []
        part += [(shown, "key"), (" " + label, "dim")]
        if line_width([*spans, *part]) > width:
            break
        spans += part
    return tuple(spans)


def key_at(keys: Sequence[Key], x: int) -> str | None:
    """The key whose words are at that column."""
    start = 0
    for name, shown, label in keys:
        end = start + len(shown) + 1 + len(label)
        if start <= x < end:
            return name
        start = end + 2
    return None


class KeyBar(Widget):
    """Shows keys; a click on one presses it."""

    DEFAULT_CSS = """
    KeyBar { height: 1; }
    """
    ALLOW_SELECT = False

    def __init__(self, paint: Paint, name: str | None = None) -> None:
        super().__init__(id=name)
        self._paint = paint
        self._keys: Sequence[Key] = ()

    def show(self, keys: Sequence[Key]) -> None:
        """Show these keys."""
        if keys != self._keys:
            self._keys = keys
            self.refresh()

    def repaint(self) -> None:
        """Draw everything again, after a change of the palette."""
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """The one line."""
        line = key_line(self._keys, self.size.width) if y == 0 else ()
        return strip_of(line, self.size.width, self._paint.palette)

    def on_click(self, event: events.Click) -> None:
        """Press the key under the pointer."""
        key = key_at(self._keys, event.x)
        if key is not None:
            event.stop()
            self.app.simulate_key(key)
