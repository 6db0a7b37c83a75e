"""The ranks table, and the titles above it.

Textual's own DataTable costs 8 to 100 times as much (measured). It also repaints itself completely
for one changed cell, and its cursor stays on a row number, while people follow a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import BindingType

from ddtop.model.facts import Snapshot
from ddtop.present.lanes import Lanes
from ddtop.present.numbers import CellContext, Number, absent, host_width, place_width, rank_table
from ddtop.present.text import Table
from ddtop.ui.rows import alarming, row_line, title_line
from ddtop.ui.session import Paint
from ddtop.ui.widgets.cursor_list import CursorList, ListRow
from ddtop.ui.widgets.lines import LinesView


class RankTable(CursorList):
    """One row per rank; a culprit is in the first row."""

    BINDINGS: ClassVar[list[BindingType]] = [("space", "tag", "tag")]

    def __init__(self, paint: Paint, name: str | None = None) -> None:
        super().__init__(paint, name)
        self.tagged: set[int] = set()
        self.hidden: frozenset[str] = frozenset()
        self.lanes: Lanes | None = None
        self._snapshot: Snapshot | None = None
        self._culprits: frozenset[int] = frozenset()
        self._old = False
        self._hosts: tuple[tuple[str, int, int], int] = (("", 0, 0), 0)
        self._absent = absent(None)

    @property
    def cursor_rank(self) -> int | None:
        return self.cursor_key if isinstance(self.cursor_key, int) else None

    @property
    def visible_ranks(self) -> list[int]:
        """Those whose rows are seen."""
        first, last, _ = self.visible_range
        return [rank for rank in self._keys[first - 1 : last] if isinstance(rank, int)]

    @property
    def shape(self) -> Table[Number]:
        """The columns that fit, with their widths."""
        snapshot = self._snapshot
        return rank_table(
            self.size.width,
            snapshot.world_size if snapshot else 0,
            self._hosts[1],
            self.hidden | self._absent,
            place_width(snapshot) if snapshot else 0,
            several_hosts=snapshot is not None and len(snapshot.hosts) > 1,
        )

    def show(
        self, snapshot: Snapshot, order: Sequence[int], culprits: frozenset[int], old: bool
    ) -> None:
        """Draw these ranks in this order."""
        self._snapshot, self._culprits, self._old = snapshot, culprits, old
        self._absent = absent(snapshot)
        self._measure_hosts(snapshot)
        self.show_keys(order)

    def _measure_hosts(self, snapshot: Snapshot) -> None:
        """Measure the column HOST. It only grows, and is measured only when there may be new
        ranks."""
        key = (snapshot.run, snapshot.reporting, len(snapshot.hosts))
        known, width = self._hosts
        if key != known:
            same_run = known[0] == snapshot.run
            self._hosts = (key, max(host_width(snapshot), width if same_run else 0))

    def made(self, index: int) -> ListRow:
        number = self._keys[index]
        if self._snapshot is None or not isinstance(number, int):
            return ListRow(())
        rank = self._snapshot.rank(number)
        shown = self._snapshot
        glyphs, now = self._paint.glyphs, shown.time_unix_ns
        context = CellContext(now, glyphs, shown.axes, shown.groups, self.lanes)
        line = row_line(rank, self.shape, context, number in self.tagged, self._old)
        return ListRow(line, alarming(rank, self._culprits), number == self.cursor_key)

    def go_to(self, rank: int) -> bool:
        """Put the cursor on that rank; False if it is not among the rows."""
        if rank not in self._keys:
            return False
        self.move_to(self._keys.index(rank))
        return True

    def go_to_next(self, wanted: Callable[[int], bool], steps: int) -> bool:
        """Put the cursor on the next of these ranks; after the last comes the first. False if there
        is no other."""
        count = len(self._keys)
        for way in range(1, count):
            rank = self._keys[(self._cursor + way * steps) % count]
            if isinstance(rank, int) and wanted(rank):
                self.move_to((self._cursor + way * steps) % count)
                return True
        return False

    def action_tag(self) -> None:
        """Tag or untag the rank under the cursor, and go to the next one."""
        if self.cursor_rank is None:
            return
        self.tagged ^= {self.cursor_rank}
        self.action_move(1)


class TitleRow(LinesView):
    """The titles above the table. `picked`: called with the column whose title is clicked."""

    DEFAULT_CSS = """
    TitleRow { height: 1; }
    """

    def __init__(self, paint: Paint, table: RankTable, picked: Callable[[Number], None]) -> None:
        super().__init__(paint)
        self._table, self._picked = table, picked

    def show_titles(self, sort_key: str, descending: bool) -> None:
        """Draw the titles of the table's columns."""
        glyphs = self._paint.glyphs
        arrow = glyphs.down if descending else glyphs.up
        self.show([title_line(self._table.shape, sort_key, arrow)])

    def on_click(self, event: events.Click) -> None:
        """Sort by the title under the pointer."""
        column = self._table.shape.at(event.x)
        if column is not None:
            self._picked(column)
