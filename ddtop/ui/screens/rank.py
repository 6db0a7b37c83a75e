"""Everything about one rank."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType

from ddtop.ui.present.text import Line
from ddtop.ui.render.detail import detail_lines
from ddtop.ui.session import Session
from ddtop.ui.widgets.key_bar import Key

from .page import PageScreen


class RankScreen(PageScreen):
    """The page of one rank; left and right go to its neighbours."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("left,h", "neighbour(-1)", "rank before"),
        ("right,l", "neighbour(1)", "next rank"),
    ]
    EXTRA_KEYS: ClassVar[tuple[Key, ...]] = (
        ("left", "←", "rank before"),
        ("right", "→", "next rank"),
        ("p", "p", "freeze"),
    )

    def __init__(self, session: Session, rank: int) -> None:
        super().__init__(session)
        self.rank = rank

    def page_lines(self, width: int) -> list[Line]:
        """The facts of the rank."""
        snapshot = self.session.shown.snapshot
        if snapshot is None:
            return []
        self.session.history.watch(self.rank)
        memory = self.session.history.of(self.rank)
        return detail_lines(snapshot, self.rank, memory, width, self.session.paint.glyphs)

    def action_neighbour(self, steps: int) -> None:
        """Go to the rank with the next number."""
        snapshot = self.session.shown.snapshot
        if snapshot is not None and snapshot.ranks:
            self.rank = (self.rank + steps) % len(snapshot.ranks)
            self.body.scroll_home(animate=False)
            self.show_facts()
