"""A page over the main screen: a header, lines to scroll, and keys to go back."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from ddtop.present.findings.banner import header_line
from ddtop.present.text import Line, clean
from ddtop.ui.actions import VIEWS
from ddtop.ui.render.search import FOUND, HERE, found_lines, marked
from ddtop.ui.screens.facts import FactsScreen, foot_line, under_banner
from ddtop.ui.screens.filtering import FilteringScreen
from ddtop.ui.session import Session
from ddtop.ui.widgets.key_bar import Key, KeyBar
from ddtop.ui.widgets.lines import LinesView


class PageScreen(FilteringScreen, FactsScreen):
    """Shows the lines of a subclass, and can search them."""

    DEFAULT_CSS = """
    PageScreen #head { height: 1; }
    PageScreen #rule, PageScreen #foot { height: 1; }
    PageScreen #body { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q", "back", "back"),
        Binding("slash", "filter", "search", priority=True),
        ("n", "match(1)", "next match"),
        ("N", "match(-1)", "match before"),
        *((view.key, f"app.on_main(\"view('{view.name}')\")", view.name) for view in VIEWS),
    ]
    EXTRA_KEYS: ClassVar[tuple[Key, ...]] = ()
    SEARCHED: ClassVar[bool] = True
    """False for menus, where every key may be an answer."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        paint = session.paint
        self.head = LinesView(paint, "head")
        self.rule = LinesView(paint, "rule")
        self.body = LinesView(paint, "body", focusable=True)
        self.foot = LinesView(paint, "foot")
        self.keys = KeyBar(paint)
        self.input = Input(placeholder="search this page", id="filter")
        self._searched, self._match = "", 0

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield self.head
        yield self.rule
        yield self.body
        yield self.foot
        yield self.keys
        yield self.input

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the search in menus."""
        if action in ("filter", "match") and not self.SEARCHED:
            return False
        return super().check_action(action, parameters)

    @property
    def filtered(self) -> Widget:
        """The widget that gets the keys back."""
        return self.body

    def filter_by(self, text: str) -> None:
        """Mark this text, and go to the next line that contains it."""
        self._searched = text
        found = found_lines(self.page_lines(self.body.reading_room), text)
        top = round(self.body.scroll_offset.y)
        self._match = next((at for at, line in enumerate(found) if line >= top), 0)
        self.show_facts()
        self._to_match(found)

    def action_match(self, steps: int) -> None:
        """Go to the next match; after the last match comes the first."""
        found = found_lines(self.page_lines(self.body.reading_room), self._searched)
        if found:
            self._match = (self._match + steps) % len(found)
            self.show_facts()
            self._to_match(found)

    def _to_match(self, found: list[int]) -> None:
        if found:
            line, height = found[min(self._match, len(found) - 1)], self.body.size.height
            if not self.body.scroll_offset.y <= line < self.body.scroll_offset.y + height:
                self.body.scroll_to(y=max(line - height // 3, 0), animate=False)

    def _marked(self, lines: list[Line]) -> tuple[list[Line], str]:
        """The lines with marked matches, and the foot's text about the search."""
        if not self._searched:
            return lines, ""
        found = found_lines(lines, self._searched)
        if not found:
            return lines, "not found"
        self._match = min(self._match, len(found) - 1)
        lines = [*lines]
        for number, at in enumerate(found):
            style = HERE if number == self._match else FOUND
            lines[at] = marked(lines[at], self._searched, style)
        return lines, f"match {self._match + 1} of {len(found)}"

    def page_lines(self, width: int) -> list[Line]:
        """The lines of this page."""
        raise NotImplementedError

    def show_facts(self) -> None:
        """Draw the session's current facts."""
        if not self.is_mounted:
            return
        width, glyphs = self.size.width, self.session.paint.glyphs
        snapshot = self.session.shown.snapshot
        head: Line = ((clean(self.session.job), "title"),)
        if snapshot is not None:
            head = header_line(snapshot, width, self.session.contact(), glyphs)
        self.head.show([head])
        self.rule.show([under_banner(self.session, width)])
        lines, searched = self._marked(self.page_lines(self.body.reading_room))
        self.body.show(lines)
        hidden = len(lines) - self.body.size.height
        more = f"{len(lines)} lines" if hidden > 0 else ""
        self.foot.show([foot_line(self.session, width, searched, more)])
        scroll: tuple[Key, ...] = (("pagedown", "PgDn", "more"),) if hidden > 0 else ()
        search: tuple[Key, ...] = (("slash", "/", "search"),) if self.SEARCHED else ()
        if self._searched:
            search = (("n", "n", "next match"),)
        self.keys.show((("escape", "Esc", "back"), *scroll, *self.extra_keys(), *search))

    def help_keys(self) -> tuple[tuple[str, str], ...]:
        """The page's own keys, and those of all pages."""
        own = tuple((shown, label) for _, shown, label in self.extra_keys())
        search = (("/ n N", "search this page, next match, match before"),)
        return (*own, *(search if self.SEARCHED else ()), ("Esc q", "back"))

    def extra_keys(self) -> tuple[Key, ...]:
        """Keys of this page that work now."""
        return self.EXTRA_KEYS

    def clicked_line(self, event: events.Click) -> int | None:
        """The line of the page under the pointer; None outside the page."""
        if not self.body.region.contains(event.screen_x, event.screen_y):
            return None
        return int(event.screen_y - self.body.region.y + self.body.scroll_offset.y)

    def action_back(self) -> None:
        """Return to the screen below; from a search, first to the page."""
        if self.has_class("filtering") or self._searched:
            self.action_clear_filter()
        else:
            self.dismiss(None)
