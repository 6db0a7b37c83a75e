"""The view of the last stack dump."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widget import Widget

from ddtop.model.state.facts import Snapshot
from ddtop.present.text import clean, plain
from ddtop.ui import actions
from ddtop.ui.session import Session
from ddtop.ui.stack_request import AskedStacks
from ddtop.ui.views.view import View
from ddtop.ui.widgets.key_bar import Key
from ddtop.ui.widgets.lines import LinesView
from ddtop.viewer.source import Look

POLL_S = 0.25
"""Source lines are read on a separate thread and arrive a moment later."""


class StacksView(View):
    """Merged stacks as classes or as a tree. New stacks are asked for on the stacks page."""

    topic: ClassVar[str] = actions.STACKS
    BINDINGS: ClassVar[list[BindingType]] = [
        ("v", "change_view", "classes or tree"),
        ("T", "threads", "other threads"),
        ("f", "frames", "all frames"),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.asked = AskedStacks(session, None)
        self.body = LinesView(session.paint, "stacks-lines", focusable=True)
        self._count = 0
        self._went_for = ""

    def compose(self) -> ComposeResult:
        """The lines, which can be scrolled."""
        yield self.body

    @property
    def target(self) -> Widget:
        """The lines."""
        return self.body

    def on_mount(self) -> None:
        """Check regularly for source lines that have been read."""
        self.set_interval(POLL_S, self._poll)

    def _poll(self) -> None:
        if self.display and self.session.excerpts.pending:
            self._show_again()

    def show(self, look: Look, snapshot: Snapshot) -> None:
        """Draw the last dump, no matter who asked for it."""
        del look, snapshot
        lines = self.asked.lines(self.body.reading_room)
        self._count = len(lines)
        self.body.show(lines)
        if self.searched:
            words = self.searched.lower()
            at = [number for number, line in enumerate(lines) if words in plain(line).lower()]
            self.found = f"{len(at)} lines with {clean(self.searched)}"
            if at and self._went_for != self.searched:
                self.body.scroll_to(y=at[0], animate=False)
            self._went_for = self.searched

    def _show_again(self) -> None:
        look = self.session.shown
        if look.snapshot is not None:
            self.show(look, look.snapshot)
        self.post_message(self.Changed())

    def notes(self, snapshot: Snapshot) -> list[str]:
        """Which lines are visible."""
        del snapshot
        return [f"{self._count} lines"] if self._count > self.body.size.height > 0 else []

    def keys(self) -> list[Key]:
        """The keys that show more of the stacks, and newer ones."""
        shape = self.asked.shape
        threads = "fewer threads" if shape.threads else "all threads"
        asks: list[Key] = [] if self.session.shown.recording else [("D", "D", "ask all")]
        return [
            *asks,
            ("v", "v", "classes" if shape.tree else "tree"),
            ("T", "T", threads),
            ("f", "f", "fold frames" if shape.frames else "all frames"),
        ]

    def action_change_view(self) -> None:
        """Switch between classes and the tree."""
        self.asked.change_view()
        self.body.scroll_home(animate=False)
        self._show_again()

    def action_frames(self) -> None:
        """Unfold the frames of libraries and frameworks, or fold them."""
        self.asked.change_frames()
        self._show_again()

    def action_threads(self) -> None:
        """Show the other threads in full, or one line per class."""
        self.asked.change_threads()
        self._show_again()
