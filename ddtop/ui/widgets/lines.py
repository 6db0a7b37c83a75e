"""Lines of named styles on the screen; they scroll if not all fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.strip import Strip

from ddtop.present.help_text import KEY_NAMES, VIEWS
from ddtop.present.text import UNICODE, Glyphs, Line, beside, clip_line, line_width, plain
from ddtop.ui.session import Paint
from ddtop.ui.style import strip_of
from ddtop.ui.terminal.selection import Selectable

WIDEST = 120


class LinesView(Selectable):
    """Shows lines and redraws only the changed ones.

    `margin`: a thin vertical line at the left that separates a side pane from the table.
    """

    DEFAULT_CSS = """
    LinesView { scrollbar-size: 0 0; overflow-x: hidden; }
    """
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
        return self.with_selection(self.strip_of(line), y + self.scroll_offset.y)

    def texts(self) -> list[str]:
        """Its lines."""
        indent = " " * (self.size.width - self.room)
        return [indent + plain(line) for line in self._lines]

    def strip_of(self, line: Line) -> Strip:
        """The line as it is drawn."""
        line = clip_line(line, self.size.width, self._paint.glyphs.ellipsis)
        return strip_of(line, self.size.width, self._paint.palette)

    def action_page_up(self) -> None:
        """Scroll up by a screen."""
        self.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        """Scroll down by a screen."""
        self.scroll_page_down(animate=False)


def _at(lines: Sequence[Line], index: int) -> Line | None:
    return lines[index] if 0 <= index < len(lines) else None


# -- The banner below the header: what is wrong. Its height changes only with the finding


class Banner(LinesView):
    """The verdict. Enter or a click opens the findings."""

    DEFAULT_CSS = """
    Banner { height: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("enter", "screen.why", "why")]

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

    async def on_click(self, event: events.Click) -> None:
        """A click does what Enter does."""
        event.stop()
        await self.run_action("screen.why")


# -- The lines below the banner: the programs of a system


class ProgramsView(LinesView):
    """Shows the programs below their titles; a click on a line picks its job. `jobs`: the jobs of
    the lines."""

    jobs: Sequence[str] = ()

    async def on_click(self, event: events.Click) -> None:
        """Show the job under the pointer."""
        event.stop()
        if 0 < event.y <= len(self.jobs):
            await self.run_action(f"app.program({self.jobs[event.y - 1]!r})")


# -- The last line: the keys that work here


Key = tuple[str, str, str]
"""The key as Textual names it, the key as people write it, what it does."""


def key_at(keys: Sequence[Key], x: int) -> str | None:
    """The key whose words are at that column."""
    start = 0
    for name, shown, label in keys:
        end = start + len(f"{shown} {label}".rstrip())
        if start <= x < end:
            return name
        start = end + 2
    return None


def tabs_of(current: str, width: int) -> list[Key]:
    """The keys and names of the views; where there is no room, only the one in front has its
    name."""
    tabs = [(view.key, view.key, view.name) for view in VIEWS]
    if sum(len(shown) + len(name) + 3 for _, shown, name in tabs) - 1 <= width:
        return tabs
    return [(key, shown, name if name == current else "") for key, shown, name in tabs]


def tabs_line(current: str, width: int, glyphs: Glyphs = UNICODE) -> Line:
    """`1 ranks  2 map ...`, the one in front bold and underlined."""
    spans = beside(
        [(f"{shown} {name}".rstrip(), "tab" if name == current else "dim")]
        for _, shown, name in tabs_of(current, width)
    )
    rest = width - line_width(spans) - 1
    return (*spans, (" ", ""), (glyphs.rule * rest, "rule")) if rest > 0 else spans


class Pressed(LinesView):
    """Shows keys; a click on one presses it."""

    _keys: Sequence[Key] = ()

    def of_user(self, keys: Sequence[Key]) -> list[Key]:
        """These keys, or those that the user has put in their place."""
        own = self._paint.keys
        return [
            (KEY_NAMES.get(own[name], own[name]), own[name], label)
            if name in own
            else (name, shown, label)
            for name, shown, label in keys
        ]

    def on_click(self, event: events.Click) -> None:
        """Press the key under the pointer."""
        key = key_at(self._keys, event.x)
        if key is not None:
            event.stop()
            self.app.simulate_key(key)


class KeyBar(Pressed):
    """The keys that work here."""

    DEFAULT_CSS = """
    KeyBar { height: 1; }
    """

    def show_keys(self, keys: Sequence[Key]) -> None:
        """Show these keys."""
        self._keys = self.of_user(keys)
        parts = (((shown, "key"), (" " + label, "dim")) for _, shown, label in self._keys)
        self.show([beside(parts, self.size.width)])


# -- The rule under the banner: the names of the views, or the shown moment


class ViewBar(Pressed):
    """Shows the names of the views; a click on a name shows that view."""

    def show_tabs(self, current: str) -> None:
        """Draw the names."""
        self._keys = self.of_user(tabs_of(current, self.size.width))
        self.show([tabs_line(current, self.size.width, self._paint.glyphs)])
