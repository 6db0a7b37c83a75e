"""One process group."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType

from ddtop.present.text import Line
from ddtop.ui.render.groups import group_lines
from ddtop.ui.render.help import GROUP_PAGE
from ddtop.ui.screens.page import PageScreen
from ddtop.ui.screens.stacks import StacksScreen
from ddtop.ui.session import Session
from ddtop.ui.widgets.key_bar import Key


class GroupScreen(PageScreen):
    """The page of one process group: its members by what they do."""

    topic = GROUP_PAGE
    BINDINGS: ClassVar[list[BindingType]] = [("d", "stacks", "stacks of its members")]
    EXTRA_KEYS: ClassVar[tuple[Key, ...]] = (
        ("d", "d", "stacks of its members"),
        ("p", "p", "freeze"),
    )

    def __init__(self, session: Session, name: str) -> None:
        super().__init__(session)
        self._group = name

    def page_lines(self, width: int) -> list[Line]:
        """The page's lines about the group."""
        snapshot = self.session.shown.snapshot
        return (
            []
            if snapshot is None
            else group_lines(snapshot, self._group, width, self.session.paint.glyphs)
        )

    def action_stacks(self) -> None:
        """Ask for the stacks of its members."""
        snapshot = self.session.shown.snapshot
        group = snapshot.group(self._group) if snapshot is not None else None
        if group is not None:
            self.app.push_screen(StacksScreen(self.session, group.ranks))
