"""The menus over the main screen: columns, commands, help."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from ddtop.metrics import METRICS
from ddtop.present.help_text import KEY_NAMES, RANKS, help_lines
from ddtop.present.numbers import BY_KEY, COLUMNS, absent
from ddtop.present.text import Line, clean, clip_line, fit, line_width, rule_line, wrap
from ddtop.ui.commands import Choice, commands, hits, matching
from ddtop.ui.screens.page import FactsScreen, PageScreen
from ddtop.ui.session import Session
from ddtop.ui.terminal.terminal import OVERLAY, SizedScreen
from ddtop.ui.widgets.cursor_list import PickList
from ddtop.ui.widgets.lines import Key, KeyBar, LinesView

# -- The menu of the columns that the ranks table shows, room permitting


CHOICES = tuple(column for column in COLUMNS if column.room)
NO_ROOM, NO_GPU, NOT_KNOWN = "no room", "no GPU", "unknown"
_TEXT = (
    "RANK, STATE and NOW are always shown. A narrow terminal first hides columns whose values are"
    " also shown elsewhere."
)


def _why(key: str, missing: Collection[str]) -> str:
    """Why the table does not show a column that the user has chosen."""
    if key not in missing:
        return NO_ROOM
    return NO_GPU if BY_KEY[key].needs == "devices" else NOT_KNOWN


class ColumnsScreen(PageScreen):
    """One line per column; Space shows or hides it at once."""

    SEARCHED = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("up,k", "move(-1)", "up"),
        ("down,j", "move(1)", "down"),
        ("space,enter", "flip", "show or hide"),
        ("a", "all", "all"),
        ("c", "back", "back"),
    ]
    EXTRA_KEYS: ClassVar[tuple[Key, ...]] = (("space", "Space", "show or hide"), ("a", "a", "all"))

    def __init__(
        self,
        session: Session,
        hide: Callable[[tuple[str, ...]], None],
        shown: Callable[[], Collection[str]],
    ) -> None:
        """`hide`: the hidden columns. `shown`: the columns that the table has room for now."""
        super().__init__(session)
        self.cursor = 0
        self._hide, self._shown = hide, shown
        # The screen itself handles the keys.
        self.body.can_focus = False

    def page_lines(self, width: int) -> list[Line]:
        glyphs = self.session.paint.glyphs
        meanings = {metric.name: metric.meaning for metric in METRICS}
        shown, missing = self._shown(), absent(self.session.shown.snapshot)
        lines: list[Line] = []
        for at, column in enumerate(CHOICES):
            on = column.key not in self.session.setup.hidden
            name = f"[{'x' if on else ' '}] {fit(column.title, 9)}"
            why = "" if not on or column.key in shown else _why(column.key, missing)
            line = (
                (name, "picked" if at == self.cursor else ""),
                (f" {why:<{len(NO_ROOM)}} ", ""),
                (meanings[column.metric], "dim"),
            )
            lines.append(clip_line(line, width, glyphs.ellipsis))
        return [*lines, (), clip_line(((_TEXT, "dim"),), width, glyphs.ellipsis)]

    def action_move(self, steps: int) -> None:
        self.cursor = (self.cursor + steps) % len(CHOICES)
        self.show_facts()
        self.body.scroll_to(y=max(self.cursor - self.body.size.height + 1, 0), animate=False)

    def on_click(self, event: events.Click) -> None:
        """A click on a column shows or hides it."""
        line = self.clicked_line(event)
        if line is not None and line < len(CHOICES):
            self.action_move(line - self.cursor)
            self.action_flip()

    def action_flip(self) -> None:
        """Show or hide the column under the cursor."""
        key = CHOICES[self.cursor].key
        hidden = self.session.setup.hidden
        self._hide(tuple(one for one in hidden if one != key) if key in hidden else (*hidden, key))
        self.show_facts()

    def action_all(self) -> None:
        """Show all columns."""
        self._hide(())
        self.show_facts()


# -- The command palette: type some letters of a command, Enter runs it


NAME_MOST = 30


class CommandsScreen(SizedScreen[Choice | None]):
    """Typed text goes to the input, arrow keys to the list. Ends with the picked command, or
    None."""

    AUTO_FOCUS = "#wanted"
    DEFAULT_CLASSES = OVERLAY
    DEFAULT_CSS = """
    CommandsScreen #wanted, CommandsScreen #wanted:focus { height: 1; border: none; padding: 0; }
    CommandsScreen #rule, CommandsScreen #foot { height: 1; }
    CommandsScreen #found { height: 40%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+p", "leave", "back", priority=True),
        Binding("up", "move(-1)", "up", priority=True),
        Binding("down", "move(1)", "down", priority=True),
        Binding("pageup", "page(-1)", "page up", priority=True),
        Binding("pagedown", "page(1)", "page down", priority=True),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__()
        look = session.shown
        self.session = session
        self._snapshot = look.snapshot
        # The list is fixed when it is opened: if it changed while somebody presses Enter, the wrong
        # command would run.
        self._all = commands(look.snapshot, look.verdict.findings, session.program_rows())
        self._found: tuple[Choice, ...] = ()
        paint = session.paint
        self.input = Input(
            placeholder="sort by comm, only blocked ranks, rank 12, explain ...", id="wanted"
        )
        self.rule = LinesView(paint, "rule")
        self.list = PickList(paint, "found")
        self.list.can_focus = False
        self.foot = LinesView(paint, "foot")
        self.keys = KeyBar(paint)

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield from (self.rule, self.input, self.list, self.foot, self.keys)

    def on_input_changed(self) -> None:
        """Search while the user types; the best match is on top."""
        self.show_facts()
        self.list.action_move_to_end(0)

    def on_input_submitted(self) -> None:
        """Enter runs the command under the cursor."""
        self.list.action_open()

    def on_cursor_list_opened(self, message: PickList.Opened) -> None:
        """Run that command."""
        picked = next((choice for choice in self._found if choice.run == message.key), None)
        if picked is not None:
            self.dismiss(picked)

    def on_cursor_list_moved(self) -> None:
        """Other rows are visible."""
        self._show_foot()

    def show_facts(self) -> None:
        found = {
            choice.run: choice
            for choice in reversed(matching(self._all, self.input.value, self._snapshot))
        }
        self._found = tuple(reversed(found.values()))
        glyphs, width = self.session.paint.glyphs, self.size.width
        self.rule.show([rule_line(width, glyphs.rule)])
        names = min(
            max((len(choice.name) for choice in self._all), default=0), NAME_MOST, width // 2
        )
        self.list.show(
            [choice.run for choice in self._found],
            lambda at: self._row(self._found[at], names, width),
        )
        self._show_foot()
        self.keys.show_keys(
            (("enter", "Enter", "run"), ("down", "↑↓", "choose"), ("escape", "Esc", "back"))
        )

    def _show_foot(self) -> None:
        note = self.list.range_note if self._found else "nothing matches"
        self.foot.show([rule_line(self.size.width, self.session.paint.glyphs.rule, note)])

    def _row(self, choice: Choice, names: int, width: int) -> Line:
        ellipsis = self.session.paint.glyphs.ellipsis
        found = hits(choice.name, self.input.value)
        name = fit(choice.name, names, False, ellipsis)
        shown = f"  {choice.shown}" if choice.shown else ""
        left = clip_line(
            (
                # What was typed is underlined, which needs no colour.
                *((letter, "sorted" if at in found else "bold") for at, letter in enumerate(name)),
                ("  ", ""),
                (choice.meaning, "dim"),
            ),
            width - len(shown),
            ellipsis,
        )
        return (*left, (" " * max(width - line_width(left) - len(shown), 0), ""), (shown, "key"))

    def action_leave(self) -> None:
        """Close the palette and run nothing."""
        self.dismiss(None)

    def action_move(self, lines: int) -> None:
        self.list.action_move(lines)

    def action_page(self, pages: int) -> None:
        """Move the list's cursor by a screen."""
        self.list.action_move_page(pages)


# -- The help: what the screen below shows, and the keys


class HelpScreen(PageScreen):
    """The help; `?` closes it again. Enter presses the key under the cursor on the screen below."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("question_mark", "back", "back"),
        Binding("up,k", "move(-1)", "up", priority=True),
        Binding("down,j", "move(1)", "down", priority=True),
        Binding("enter", "run", "run", priority=True),
    ]
    EXTRA_KEYS: ClassVar[tuple[Key, ...]] = (("enter", "Enter", "run"), ("down", "↑↓", "choose"))

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._cursor = -1
        self._keys: dict[int, str] = {}

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What is typed into the search is text."""
        if action in ("move", "run") and self.has_class("filtering"):
            return False
        return super().check_action(action, parameters)

    def page_lines(self, width: int) -> list[Line]:
        """The help, starting with the screen below."""
        stack = self.app.screen_stack
        below = stack[stack.index(self) - 1] if self in stack else None
        if not isinstance(below, FactsScreen) or below is self:
            below = None
        topic = below.topic if below is not None else RANKS
        own = below.help_keys() if below is not None else ()
        lines = help_lines(width, self.session.paint.glyphs, topic, own, self.session.setup.keys)
        leads = {at: line[0] for at, line in enumerate(lines) if line}
        self._keys = {
            at: text.split()[0]
            for at, (text, style) in leads.items()
            if style == "key" and text.strip()
        }
        if self._cursor in self._keys:
            (label, _), *rest = lines[self._cursor]
            lines[self._cursor] = ((label, "picked"), *rest)
        failure = getattr(self.app, "differ_failure", None)
        if failure is None:
            return lines
        text = f"drawing: whole lines are sent instead of the cells that changed ({clean(failure)})"
        return [*lines, (), *(((part, "dim"),) for part in wrap(text, width))]

    def action_move(self, steps: int) -> None:
        """Go to the next key, or scroll where there is none."""
        others = [at for at in self._keys if (at - self._cursor) * steps > 0]
        if not others:
            self.body.scroll_relative(y=steps, animate=False)
            return
        self._cursor = min(others, key=lambda at: abs(at - self._cursor))
        self.show_facts()
        top, height = self.body.scroll_offset.y, self.body.size.height
        if not top <= self._cursor < top + height:
            self.body.scroll_to(y=max(self._cursor - height // 2, 0), animate=False)

    def action_run(self) -> None:
        """Press the key under the cursor on the screen below."""
        if (shown := self._keys.get(self._cursor)) is not None:
            self.dismiss(None)
            key = KEY_NAMES.get(shown) or (shown if len(shown) == 1 else shown.lower())
            self.app.call_later(self.app.simulate_key, key)

    def on_click(self, event: events.Click) -> None:
        """A click on a key presses it."""
        line = self.clicked_line(event)
        if line in self._keys:
            self._cursor = line
            self.action_run()
