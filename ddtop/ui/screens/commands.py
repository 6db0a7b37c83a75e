"""The command palette: type some letters of a command, Enter runs it."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input

from ddtop.present.text import Line, clip_line, fit, line_width
from ddtop.ui.commands import Choice, commands, matching
from ddtop.ui.render.strips import rule_line
from ddtop.ui.session import Session
from ddtop.ui.terminal.sized import SizedScreen
from ddtop.ui.widgets.key_bar import KeyBar
from ddtop.ui.widgets.lines import LinesView
from ddtop.ui.widgets.pick_list import PickList

NAME_MOST = 30


class CommandsScreen(SizedScreen[Choice | None]):
    """Typed text goes to the input, arrow keys to the list. Ends with the picked command, or
    None."""

    AUTO_FOCUS = "#wanted"
    DEFAULT_CSS = """
    CommandsScreen #wanted, CommandsScreen #wanted:focus { height: 1; border: none; padding: 0; }
    CommandsScreen #rule, CommandsScreen #foot { height: 1; }
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
        self._all = commands(look.snapshot, look.verdict.findings)
        self._found: tuple[Choice, ...] = ()
        paint = session.paint
        self.input = Input(
            placeholder="sort by comm, only blocked ranks, rank 12, explain ...", id="wanted"
        )
        self.rule = LinesView(paint, "rule")
        self.list = PickList(paint, "body")
        self.list.can_focus = False
        self.foot = LinesView(paint, "foot")
        self.keys = KeyBar(paint)

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield self.input
        yield self.rule
        yield self.list
        yield self.foot
        yield self.keys

    def on_mount(self) -> None:
        """Draw the first picture."""
        self.call_after_refresh(self._show)

    def on_resize(self) -> None:
        """Another width needs other lines."""
        self.call_after_refresh(self._show)

    def on_input_changed(self) -> None:
        """Search while the user types; the best match is on top."""
        self._show()
        self.list.action_move_to_end(0)

    def on_input_submitted(self) -> None:
        """Enter runs the command under the cursor."""
        self.list.action_open()

    def on_cursor_list_opened(self, message: PickList.Opened) -> None:
        """Run that command."""
        picked = next((one for one in self._found if one.run == message.key), None)
        if picked is not None:
            self.dismiss(picked)

    def on_cursor_list_moved(self) -> None:
        """Other rows are visible."""
        self._show_foot()

    def _show(self) -> None:
        found = {
            one.run: one for one in reversed(matching(self._all, self.input.value, self._snapshot))
        }
        self._found = tuple(reversed(found.values()))
        glyphs, width = self.session.paint.glyphs, self.size.width
        self.rule.show([rule_line(width, glyphs.rule)])
        names = min(max((len(one.name) for one in self._all), default=0), NAME_MOST, width // 2)
        self.list.show(
            [one.run for one in self._found], lambda at: self._row(self._found[at], names, width)
        )
        self._show_foot()
        self.keys.show(
            (("enter", "Enter", "do it"), ("down", "↑↓", "choose"), ("escape", "Esc", "back"))
        )

    def _show_foot(self) -> None:
        note = self.list.range_note if self._found else "nothing has these words"
        self.foot.show([rule_line(self.size.width, self.session.paint.glyphs.rule, note)])

    def _row(self, one: Choice, names: int, width: int) -> Line:
        ellipsis = self.session.paint.glyphs.ellipsis
        shown = f"  {one.shown}" if one.shown else ""
        left = clip_line(
            ((fit(one.name, names, False, ellipsis), "bold"), ("  ", ""), (one.meaning, "dim")),
            width - len(shown),
            ellipsis,
        )
        return (*left, (" " * max(width - line_width(left) - len(shown), 0), ""), (shown, "key"))

    def action_leave(self) -> None:
        """Close the palette and run nothing."""
        self.dismiss(None)

    def action_move(self, lines: int) -> None:
        """Move the list's cursor."""
        self.list.action_move(lines)

    def action_page(self, pages: int) -> None:
        """Move the list's cursor by a screen."""
        self.list.action_move_page(pages)
