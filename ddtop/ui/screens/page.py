"""A page over the main screen: a header, lines to scroll, and the way back."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType

from ddtop.present.findings.banner import header_line
from ddtop.present.text import Line, clean
from ddtop.ui.actions import VIEWS
from ddtop.ui.screens.facts import FactsScreen, foot_line, under_banner
from ddtop.ui.session import Session
from ddtop.ui.widgets.key_bar import Key, KeyBar
from ddtop.ui.widgets.lines import LinesView


class PageScreen(FactsScreen):
    """Shows the lines that a subclass makes."""

    DEFAULT_CSS = """
    PageScreen #head { height: 1; }
    PageScreen #rule, PageScreen #foot { height: 1; }
    PageScreen #body { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q", "back", "back"),
        *((view.key, f"app.on_main(\"view('{view.name}')\")", view.name) for view in VIEWS),
    ]
    EXTRA_KEYS: ClassVar[tuple[Key, ...]] = ()

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        paint = session.paint
        self.head = LinesView(paint, "head")
        self.rule = LinesView(paint, "rule")
        self.body = LinesView(paint, "body", focusable=True)
        self.foot = LinesView(paint, "foot")
        self.keys = KeyBar(paint)

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield self.head
        yield self.rule
        yield self.body
        yield self.foot
        yield self.keys

    def page_lines(self, width: int) -> list[Line]:
        """The lines of this page."""
        raise NotImplementedError

    def show_facts(self) -> None:
        """Draw what the session shows now."""
        if not self.is_mounted:
            return
        width, glyphs = self.size.width, self.session.paint.glyphs
        snapshot = self.session.shown.snapshot
        head: Line = ((clean(self.session.job), "title"),)
        if snapshot is not None:
            head = header_line(snapshot, width, self.session.contact(), glyphs)
        self.head.show([head])
        self.rule.show([under_banner(self.session, width)])
        lines = self.page_lines(self.body.reading_room)
        self.body.show(lines)
        hidden = len(lines) - self.body.size.height
        more = f"{len(lines)} lines" if hidden > 0 else ""
        self.foot.show([foot_line(self.session, width, more)])
        scroll: tuple[Key, ...] = (("pagedown", "PgDn", "more"),) if hidden > 0 else ()
        self.keys.show((("escape", "Esc", "back"), *scroll, *self.extra_keys()))

    def extra_keys(self) -> tuple[Key, ...]:
        """Keys of this page that do something now."""
        return self.EXTRA_KEYS

    def clicked_line(self, event: events.Click) -> int | None:
        """The line of the page under the pointer; None beside it."""
        if not self.body.region.contains(event.screen_x, event.screen_y):
            return None
        return int(event.screen_y - self.body.region.y + self.body.scroll_offset.y)

    def action_back(self) -> None:
        """To the screen below."""
        self.dismiss(None)
