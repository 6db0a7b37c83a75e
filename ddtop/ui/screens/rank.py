"""Everything about one rank."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType

from ddtop.present.text import Line
from ddtop.ui.render.detail import detail_lines
from ddtop.ui.render.help import RANK_PAGE
from ddtop.ui.screens.copy import CopyScreen
from ddtop.ui.screens.facts import SourceOpener
from ddtop.ui.screens.page import PageScreen
from ddtop.ui.screens.signals import SignalsScreen
from ddtop.ui.screens.stacks import StacksScreen
from ddtop.ui.session import Session
from ddtop.ui.widgets.key_bar import Key


class RankScreen(PageScreen):
    """The page of one rank; the left and right keys go to its neighbours."""

    topic = RANK_PAGE
    BINDINGS: ClassVar[list[BindingType]] = [
        ("left,h", "neighbour(-1)", "rank before"),
        ("right,l", "neighbour(1)", "next rank"),
        ("d", "stacks(False)", "its stacks"),
        ("D", "stacks(True)", "all stacks"),
        ("f9,s", "signals", "signal"),
        ("y", "copy", "copy"),
        ("o", "edit", "open source"),
    ]
    EXTRA_KEYS: ClassVar[tuple[Key, ...]] = (
        ("left", "←", "rank before"),
        ("right", "→", "next rank"),
        ("d", "d", "stacks"),
        ("f9", "F9", "signal"),
        ("y", "y", "copy"),
        ("o", "o", "open source"),
        ("p", "p", "freeze"),
    )

    def __init__(self, session: Session, rank: int) -> None:
        super().__init__(session)
        self.rank = rank

    def page_lines(self, width: int) -> list[Line]:
        """The page's lines about the rank."""
        snapshot = self.session.shown.snapshot
        if snapshot is None:
            return []
        self.session.history.watch(self.rank)
        memory = self.session.history.of(self.rank)
        return detail_lines(snapshot, self.rank, memory, width, self.session.paint.glyphs)

    def action_stacks(self, of_all: bool) -> None:
        """Ask for the stacks of this rank, or of all."""
        self.app.push_screen(StacksScreen(self.session, () if of_all else (self.rank,)))

    def action_signals(self) -> None:
        """Offer signals to this rank."""
        self.app.push_screen(SignalsScreen(self.session, (self.rank,)))

    def action_copy(self) -> None:
        """Offer the texts that can be copied about this rank."""
        self.app.push_screen(CopyScreen(self.session, self.rank))

    def action_edit(self) -> None:
        """Open the source line that the rank is at."""
        if isinstance(self.app, SourceOpener):
            self.app.open_source(self.rank)

    def action_neighbour(self, steps: int) -> None:
        """Go to the next or the previous rank."""
        snapshot = self.session.shown.snapshot
        if snapshot is not None and snapshot.ranks:
            self.rank = (self.rank + steps) % len(snapshot.ranks)
            self.body.scroll_home(animate=False)
            self.show_facts()
