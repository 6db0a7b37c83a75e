"""The view of events, the newest last."""

from __future__ import annotations

from typing import ClassVar

from ddtop.model.state.facts import Snapshot
from ddtop.present.text import Line
from ddtop.ui import actions
from ddtop.ui.backfill import recall
from ddtop.ui.render.events import EventRow, event_row, events_table, rows_of
from ddtop.ui.session import Session
from ddtop.ui.views.listing import ListingView
from ddtop.ui.widgets.key_bar import Key
from ddtop.ui.widgets.pick_list import PickList
from ddtop.viewer.source import Look
from ddtop.words import units


class EventsView(ListingView):
    """All entries of the session's timeline. Events from before this viewer connected are found
    when the view is first shown."""

    topic: ClassVar[str] = actions.EVENTS

    def __init__(self, session: Session) -> None:
        super().__init__(session, at_end=True)
        self._rows: list[EventRow] = []
        self._made_for: object = None
        self._recalling = False

    def show(self, look: Look, snapshot: Snapshot) -> None:
        """Draw all entries."""
        if not self._recalling and not self.session.recalled and look.recall is not None:
            self._recalling = True
            self.run_worker(self._recall(), name="recall")
        entries = self.session.timeline.entries
        if entries is not self._made_for:
            self._made_for, self._rows = entries, rows_of(entries)
        rows, now = self._rows, snapshot.time_unix_ns
        table, glyphs = events_table(self.list.size.width), self.session.paint.glyphs
        self.titles.show([table.titles() if rows else (("nothing has happened yet", "dim"),)])

        def row(index: int) -> Line:
            return event_row(rows[index], now, table, glyphs)

        self.put([(row.entry.key, row.over) for row in rows], row)

    async def _recall(self) -> None:
        try:
            await recall(self.session)
        finally:
            self._recalling = False
        if self.session.shown.snapshot is not None:
            self.show(self.session.shown, self.session.shown.snapshot)
            self.post_message(self.Changed())

    def notes(self, snapshot: Snapshot) -> list[str]:
        """The time from which on events are known, and which rows are visible."""
        del snapshot
        timeline = self.session.timeline
        if self._recalling:
            return ["reading what was before ..."]
        gone = f"{timeline.forgotten:,} older ones forgotten" if timeline.forgotten else ""
        began = timeline.began_unix_ns
        since = f"watched since {units.clock(began)}" if began is not None and not gone else gone
        return [since, self.list.range_note]

    def keys(self) -> list[Key]:
        """The keys for an event."""
        return [("enter", "Enter", "its story"), ("end", "End", "the newest")]

    def on_cursor_list_opened(self, message: PickList.Opened) -> None:
        """Open the story of the entry."""
        message.stop()
        row = next((row for row in self._rows if (row.entry.key, row.over) == message.key), None)
        if row is not None:
            self.post_message(self.Opened(entry=row.entry))
