"""The interface between the main screen and a view.

To add one: a subclass with its `topic`, an entry in `actions.VIEWS`, a text in `render.helping`,
and a line in `MainScreen`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget

from ddtop.diagnosis.rank_state import culprits
from ddtop.follow.look import Look
from ddtop.model.facts import Snapshot
from ddtop.present.hosts import names_of
from ddtop.present.map import HostRanks, Settled, codes_of, hosts_of_ranks
from ddtop.present.text import Line, clean, plain
from ddtop.ui.session import Session
from ddtop.ui.widgets.cursor_list import PickList
from ddtop.ui.widgets.lines import Key, LinesView


class View(Vertical):
    """Draws the session's facts while it is in front. `topic` names it everywhere."""

    DEFAULT_CSS = """
    View { height: 1fr; }
    """
    topic: ClassVar[str]
    target: Widget
    """The widget that gets the keys."""

    class Changed(Message):
        """The cursor, the visible part or the size has changed: the foot and the keys may have to
        change too."""

    def __init__(self, session: Session) -> None:
        super().__init__(id=self.topic)
        self.session = session
        self.searched = ""
        self.found = ""

    def show(self, look: Look, snapshot: Snapshot) -> None:
        """Draw this look, which has a snapshot, in at most ten milliseconds for 10,000 ranks."""
        raise NotImplementedError

    def search(self, text: str) -> None:
        """Show the rows that contain these words, or go to the first match; `found` is the number
        of matches."""
        self.searched, self.found = text.strip(), ""
        self.show_again()

    def show_again(self) -> None:
        """Draw the shown look once more, and what the screen says of the view."""
        look = self.session.shown
        if look.snapshot is not None and self.is_mounted:
            self.show(look, look.snapshot)
        self.post_message(self.Changed())

    def problem(self) -> str:
        """What is wrong with the filter: a word that is unknown, or that nothing matches."""
        return ""

    def notes(self, snapshot: Snapshot) -> list[str]:
        """Notes for the foot: everything that differs from the default picture."""
        del snapshot
        return []

    def keys(self) -> list[Key]:
        """Keys that work here now, the most useful first."""
        return []

    def picked(self) -> tuple[int, ...]:
        """The ranks that a dump or a signal applies to; empty: all."""
        return ()


class Coded:
    """The class of each rank and the ranks of each host, computed once per look and shared by the
    views of a screen."""

    def __init__(self) -> None:
        self.codes = b""
        self.hosts: tuple[HostRanks, ...] = ()
        self._settled = Settled()
        self._snapshot: Snapshot | None = None
        self._hosts_for: tuple[object, ...] = ()

    def take(self, look: Look, snapshot: Snapshot) -> None:
        """Compute both for a look; does nothing if that was done before."""
        if snapshot is self._snapshot:
            return
        self._snapshot = snapshot
        self.codes = self._settled.take(snapshot, codes_of(snapshot, culprits(look.verdict)))
        subject = (
            snapshot.run,
            snapshot.attempt,
            snapshot.reporting,
            len(snapshot.ranks),
            len(snapshot.hosts),
        )
        if subject != self._hosts_for:
            self._hosts_for = subject
            hosts = hosts_of_ranks(names_of(snapshot.ranks))
            # Unchanged hosts stay the same object: so the map knows that its layout is still valid.
            self.hosts = self.hosts if hosts == self.hosts else hosts


# -- A view that is a list under a row of titles


class ListingView(View):
    """Titles and rows."""

    DEFAULT_CSS = """
    ListingView .titles { height: 1; }
    """

    def __init__(self, session: Session, *, at_end: bool = False) -> None:
        super().__init__(session)
        self.titles = LinesView(session.paint, f"{self.topic}-titles")
        self.titles.add_class("titles")
        self.list = self.target = PickList(session.paint, f"{self.topic}-list", at_end=at_end)

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield from (self.titles, self.list)

    def put(self, keys: Sequence[Hashable], row: Callable[[int], Line]) -> None:
        """Draw one row per key; with a filter, only the rows that contain all of its words."""
        words = self.searched.lower().split()
        if not words:
            self.list.show(keys, row)
            return
        kept = [
            index
            for index in range(len(keys))
            if (text := plain(row(index)).lower()) and all(word in text for word in words)
        ]
        self.found = f"filter {clean(self.searched)}, {len(kept):,} of {len(keys):,} rows"
        self.list.show([keys[index] for index in kept], lambda index: row(kept[index]))

    def problem(self) -> str:
        return (
            f"no row contains {self.searched}; Esc: all rows"
            if self.searched and not self.list.visible_range[2]
            else ""
        )

    def on_cursor_list_resized(self, message: PickList.Resized) -> None:
        """Another size shows other columns."""
        message.stop()
        if self.display:
            self.show_again()

    def on_cursor_list_moved(self, message: PickList.Moved) -> None:
        """Update the foot, which shows which rows are visible."""
        message.stop()
        self.post_message(self.Changed())
