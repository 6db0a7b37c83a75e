"""The interface between the main screen and a view.

To add one: a subclass with its `topic`, an entry in `actions.VIEWS`, a text in `render.helping`,
and a line in `MainScreen`.
"""

from __future__ import annotations

from typing import ClassVar

from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget

from ddtop.diagnosis.rank_state import culprits
from ddtop.model.state.facts import Snapshot
from ddtop.present.hosts.hosts import names_of
from ddtop.present.table.grid import HostRanks, hosts_of_ranks
from ddtop.present.table.rank_class import Settled, codes_of
from ddtop.ui.session import Session
from ddtop.ui.widgets.key_bar import Key
from ddtop.viewer.source import Look


class View(Vertical):
    """Draws the session's facts while it is in front. `topic` names it everywhere."""

    DEFAULT_CSS = """
    View { height: 1fr; }
    """
    topic: ClassVar[str]

    class Opened(Message):
        """Asks for a page: of a `rank`, of a process `group` or of an `entry` of the timeline; or
        for a `host`'s ranks."""

        def __init__(
            self,
            *,
            rank: int | None = None,
            group: str | None = None,
            entry: object = None,
            host: HostRanks | None = None,
        ) -> None:
            super().__init__()
            self.rank, self.group, self.entry, self.host = rank, group, entry, host

    class Changed(Message):
        """The cursor, the visible part or the size has changed: the foot and the keys may have to
        change too."""

    def __init__(self, session: Session) -> None:
        super().__init__(id=self.topic)
        self.session = session
        self.searched = ""
        self.found = ""

    @property
    def target(self) -> Widget:
        """The widget that gets the keys."""
        raise NotImplementedError

    def show(self, look: Look, snapshot: Snapshot) -> None:
        """Draw this look, which has a snapshot, in at most ten milliseconds for 10,000 ranks."""
        raise NotImplementedError

    def search(self, text: str) -> None:
        """Show the rows that contain these words, or go to the first match; `found` is the number
        of matches."""
        self.searched, self.found = text.strip(), ""
        look = self.session.shown
        if look.snapshot is not None and self.is_mounted:
            self.show(look, look.snapshot)
        self.post_message(self.Changed())

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
