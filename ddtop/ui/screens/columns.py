"""The menu of the columns that the ranks table shows, room permitting."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar

from textual import events
from textual.binding import BindingType

from ddtop.metrics import METRICS
from ddtop.present.table.columns import ALWAYS, COLUMNS, OF_GPUS, absent
from ddtop.present.text import Line, clip_line, fit
from ddtop.ui.screens.page import PageScreen
from ddtop.ui.session import Session
from ddtop.ui.widgets.key_bar import Key

CHOICES = tuple(column for column in COLUMNS if column.key not in ALWAYS)
NO_ROOM, NO_GPU, NOT_KNOWN = "no room", "no GPU", "unknown"
_TEXT = (
    "RANK, STATE and NOW are always there. A narrow terminal first hides columns whose facts are"
    " shown elsewhere too."
)


def _why(key: str, missing: Collection[str]) -> str:
    """Why the table does not show a column that the user has chosen."""
    if key not in missing:
        return NO_ROOM
    return NO_GPU if key in OF_GPUS else NOT_KNOWN


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
        """The columns and their meanings."""
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
        """Move to another column."""
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
