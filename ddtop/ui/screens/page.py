"""A page over the main screen: a header, lines to scroll, and keys to go back."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from ddtop.model.facts import Snapshot
from ddtop.present.findings import header_line
from ddtop.present.help_text import RANKS, VIEWS
from ddtop.present.strip import moment_under, scrubber_line
from ddtop.present.text import Line, clean, clip, rule_line
from ddtop.ui.page_text import FOUND, HERE, found_lines, marked
from ddtop.ui.session import Session
from ddtop.ui.terminal.terminal import SizedScreen
from ddtop.ui.widgets.cursor_list import CursorList
from ddtop.ui.widgets.lines import Key, KeyBar, LinesView


def foot_line(session: Session, width: int, *notes: str) -> Line:
    """The thin line above the keys: the latest message, or notes at its right end."""
    glyphs = session.paint.glyphs
    if session.notice:
        return ((clip(clean(session.notice), width, glyphs.ellipsis), "bold"),)
    return rule_line(width, glyphs.rule, *notes)


class TimeBar(LinesView):
    """The shown moment. A click on the bar goes to the moment there, the wheel goes 5 s on."""

    def __init__(self, session: Session, name: str) -> None:
        super().__init__(session.paint, name)
        self._session = session

    def show_moment(self) -> None:
        """Draw it; a thin line while the screen shows the present."""
        look, glyphs, width = self._session.shown, self._paint.glyphs, self.size.width
        line = rule_line(width, glyphs.rule)
        if look.snapshot is not None and look.span is not None and look.travelled:
            at, over = look.snapshot.time_unix_ns, look.recording
            line = scrubber_line(
                at, look.span, width, recording=over, marks=look.marks, glyphs=glyphs
            )
        self.show([line])

    async def on_click(self, event: events.Click) -> None:
        """Go to the moment under the pointer."""
        look = self._session.shown
        if look.snapshot is None or look.span is None or not look.travelled:
            return
        at = moment_under(
            event.x,
            look.snapshot.time_unix_ns,
            look.span,
            self.size.width,
            recording=look.recording,
        )
        if at is not None:
            event.stop()
            await self.run_action(f"app.travel_to({at})")

    async def on_mouse_scroll_up(self) -> None:
        """Go 5 s back."""
        await self.run_action("app.travel(-5)")

    async def on_mouse_scroll_down(self) -> None:
        """Go 5 s forward."""
        await self.run_action("app.travel(5)")


# -- A screen whose last line becomes an input while a filter is typed


class FilteringScreen(SizedScreen[None]):
    """Filters while the user types; Enter keeps the filter, Esc removes it. Subclasses compose
    `input` last, after a key bar."""

    DEFAULT_CSS = """
    FilteringScreen Input, FilteringScreen Input:focus { display: none; height: 1; border: none; padding: 0; }
    FilteringScreen.filtering Input { display: block; }
    FilteringScreen.filtering KeyBar { display: none; }
    """  # noqa: E501
    AUTO_FOCUS = "#body"
    input: Input

    @property
    def filtered(self) -> Widget:
        """The widget that gets the keys back."""
        raise NotImplementedError

    def filter_by(self, text: str) -> None:
        """Show the rows that contain this text."""
        raise NotImplementedError

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """While a filter is typed, keys are text and not commands."""
        if self.has_class("filtering") and action in ("filter", "next_view"):
            return False
        return super().check_action(action, parameters)

    def action_filter(self) -> None:
        """Open the input for a filter."""
        self.add_class("filtering")
        # At once: otherwise keys that were typed ahead would run as commands.
        self.set_focus(self.input)

    def action_clear_filter(self) -> None:
        """Show all rows again."""
        self.remove_class("filtering")
        self.input.value = ""
        self.set_focus(self.filtered)

    def on_input_changed(self, message: Input.Changed) -> None:
        """Filter while the user types."""
        self.filter_by(message.value)

    def on_input_submitted(self) -> None:
        """Keep the filter and go back to the rows."""
        self.remove_class("filtering")
        self.set_focus(self.filtered)

    def repaint(self) -> None:
        """Draw everything again, after a change of the palette."""
        for node in self.walk_children():
            if isinstance(node, (LinesView, CursorList)):
                node.repaint()


# -- What the screens of the dashboard have in common: they show the session's facts


class FactsScreen(FilteringScreen):
    """A screen that shows the facts of the session. `topic`: what the help explains first if it is
    opened here."""

    topic: ClassVar[str] = RANKS

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def on_text_selected(self) -> None:
        """Copy what was selected with the mouse."""
        if text := (self.get_selected_text() or "").strip("\n"):
            self.app.copy_to_clipboard(text)
            self.session.say("copied what is selected, if this terminal takes OSC 52")
            self.show_facts()

    def help_keys(self) -> tuple[tuple[str, str], ...]:
        """The keys of this screen for the help: each as people write it, and what it does."""
        return ()


# -- The page over the main screen


class PageScreen(FactsScreen):
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
        ("N", "match(-1)", "prev match"),
        *((view.key, f"app.on_main(\"view('{view.name}')\")", view.name) for view in VIEWS),
    ]
    EXTRA_KEYS: ClassVar[tuple[Key, ...]] = ()
    SEARCHED: ClassVar[bool] = True
    """False for menus, where every key may be an answer."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        paint = session.paint
        self.head = LinesView(paint, "head")
        self.rule = TimeBar(session, "rule")
        self.body = LinesView(paint, "body", focusable=True)
        self.foot = LinesView(paint, "foot")
        self.keys = KeyBar(paint)
        self.input = Input(placeholder="search this page", id="filter")
        self._searched, self._match = "", 0

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield from (self.head, self.rule, self.body, self.foot, self.keys, self.input)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the search in menus."""
        if action in ("filter", "match") and not self.SEARCHED:
            return False
        return super().check_action(action, parameters)

    @property
    def filtered(self) -> Widget:
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
        """The lines of this page; none before the first facts."""
        snapshot = self.session.shown.snapshot
        return [] if snapshot is None else self.lines_of(snapshot, width)

    def lines_of(self, snapshot: Snapshot, width: int) -> list[Line]:
        """The lines of a page about these facts."""
        raise NotImplementedError

    def show_facts(self) -> None:
        if not self.is_mounted:
            return
        width, glyphs = self.size.width, self.session.paint.glyphs
        snapshot = self.session.shown.snapshot
        head: Line = ((clean(self.session.job), "title"),)
        if snapshot is not None:
            head = header_line(snapshot, width, self.session.contact(), glyphs, self.session.per_s)
        self.head.show([head])
        self.rule.show_moment()
        lines, searched = self._marked(self.page_lines(self.body.reading_room))
        self.body.show(lines)
        hidden = len(lines) - self.body.size.height
        more = f"{len(lines)} lines" if hidden > 0 else ""
        self.foot.show([foot_line(self.session, width, searched, more)])
        scroll: tuple[Key, ...] = (("pagedown", "PgDn", "more"),) if hidden > 0 else ()
        search: tuple[Key, ...] = (("slash", "/", "search"),) if self.SEARCHED else ()
        if self._searched:
            search = (("n", "n", "next match"),)
        self.keys.show_keys((("escape", "Esc", "back"), *scroll, *self.extra_keys(), *search))

    def help_keys(self) -> tuple[tuple[str, str], ...]:
        """The page's own keys, and those of all pages."""
        own = tuple((shown, label) for _, shown, label in self.extra_keys())
        search = (("/ n N", "search this page, next match, previous match"),)
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
