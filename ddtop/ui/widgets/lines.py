"""Lines of named styles on the screen; they scroll if not all fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ddtop.present.help_text import KEY_NAMES
from ddtop.present.text import Line, beside, clip_line
from ddtop.ui.page_text import tab_at, tabs_line
from ddtop.ui.session import Paint
from ddtop.ui.style import strip_of

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
        return self.strip_of(line)

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


def key_line(keys: Sequence[Key], width: int) -> Line:
    """As many keys as fit, from the left; the most useful come first."""
    return beside((((shown, "key"), (" " + label, "dim")) for _, shown, label in keys), width)


def key_at(keys: Sequence[Key], x: int) -> str | None:
    """The key whose words are at that column."""
    start = 0
    for name, shown, label in keys:
        end = start + len(shown) + 1 + len(label)
        if start <= x < end:
            return name
        start = end + 2
    return None


class KeyBar(LinesView):
    """Shows keys; a click on one presses it."""

    DEFAULT_CSS = """
    KeyBar { height: 1; }
    """
    _keys: Sequence[Key] = ()

    def show_keys(self, keys: Sequence[Key]) -> None:
        """Show these keys, or those that the user has put in their place."""
        own = self._paint.keys
        self._keys = [
            (KEY_NAMES.get(own[name], own[name]), own[name], label) if name in own else key
            for key in keys
            for name, _, label in [key]
        ]
        self.show([key_line(self._keys, self.size.width)])

    def on_click(self, event: events.Click) -> None:
        """Press the key under the pointer."""
        key = key_at(self._keys, event.x)
        if key is not None:
            event.stop()
            self.app.simulate_key(key)


# -- The rule under the banner: the names of the views, or the shown moment


class ViewBar(LinesView):
    """Shows the names of the views; a click on a name shows that view."""

    _current = ""

    def show_tabs(self, current: str) -> None:
        """Draw the names."""
        self._current = current
        self.show([tabs_line(current, self.size.width, self._paint.glyphs)])

    async def on_click(self, event: events.Click) -> None:
        """Show the view under the pointer."""
        view = tab_at(self._current, self.size.width, event.x)
        if view is not None:
            event.stop()
            await self.run_action(f"screen.view({view!r})")
