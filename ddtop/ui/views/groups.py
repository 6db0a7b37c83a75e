"""One row a process group."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult

from ddtop.diagnosis.rank_state import culprits
from ddtop.model.state.facts import Snapshot
from ddtop.present.groups import (
    GroupFacts,
    GroupWait,
    group_facts,
    group_waits,
    label_of,
    natural,
    order_of,
)
from ddtop.present.parallel import grid_lines
from ddtop.present.text import Line
from ddtop.ui import actions
from ddtop.ui.render.groups import group_row, groups_table
from ddtop.ui.session import Session
from ddtop.ui.views.listing import ListingView
from ddtop.ui.widgets.key_bar import Key
from ddtop.ui.widgets.lines import LinesView
from ddtop.ui.widgets.pick_list import PickList
from ddtop.viewer.source import Look
from ddtop.viewer.thresholds import chosen
from ddtop.wire.records import Group

PICKED_MOST = 256
GRID_LINES_MOST = 10
LARGE, LARGE_NS = 1024, 2_000_000_000
"""Groups with so many members are examined at most once in this time."""


class GroupsView(ListingView):
    """The grid of ranks, and below it the groups, stuck ones first.

    Members are examined for visible rows only, once per look.
    """

    DEFAULT_CSS = """
    GroupsView #groups-grid { height: 0; }
    """
    topic: ClassVar[str] = actions.GROUPS

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.grid = LinesView(session.paint, "groups-grid")
        self._groups: dict[str, Group] = {}
        self._by_name: list[str] = []
        self._named_for: tuple[Group, ...] = ()
        self._waits: dict[str, GroupWait] = {}
        self._facts: dict[str, GroupFacts] = {}
        self._snapshot: Snapshot | None = None
        self._looked_unix_ns = 0

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield self.grid
        yield from super().compose()

    def _show_grid(self, look: Look, snapshot: Snapshot) -> None:
        most = min(GRID_LINES_MOST, self.size.height // 2)
        paint, at_fault = self.session.paint, culprits(look.verdict)
        lines = grid_lines(snapshot, self.size.width, most, at_fault, paint.glyphs)
        self.grid.styles.height = len(lines) + (1 if lines else 0)
        self.grid.show([*lines, ()] if lines else [])

    def show(self, look: Look, snapshot: Snapshot) -> None:
        """Draw all groups; no group is examined twice for one look."""
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            self._forget(snapshot)
            self._waits = group_waits(snapshot, chosen())
            self._take_names(snapshot.groups)
        self._show_grid(look, snapshot)
        table, glyphs = groups_table(self.list.size.width), self.session.paint.glyphs
        order = order_of(snapshot, self._waits, self._by_name, chosen(), culprits(look.verdict))
        if not order:
            self.titles.show([(("no process group is known yet", "dim"),)])
            self.list.show((), lambda _: ())
            return
        self.titles.show([table.titles()])

        def row(index: int) -> Line:
            return group_row(snapshot, self._of(snapshot, order[index]), table, glyphs)

        self.put(order, row)

    def _forget(self, snapshot: Snapshot) -> None:
        """Drop old results. Those of large groups are kept a little longer: examining each member
        takes as long as everything else."""
        now, before = snapshot.time_unix_ns, self._looked_unix_ns
        if not before <= now < before + LARGE_NS:
            self._looked_unix_ns = now
            self._facts.clear()
        self._facts = {
            name: facts for name, facts in self._facts.items() if len(facts.group.ranks) >= LARGE
        }

    def _take_names(self, groups: tuple[Group, ...]) -> None:
        if groups != self._named_for:
            self._named_for = groups
            self._groups = {group.name: group for group in groups}
            self._by_name = [
                one.name for one in sorted(groups, key=lambda group: natural(label_of(group)))
            ]

    def _of(self, snapshot: Snapshot, name: str) -> GroupFacts:
        found = self._facts.get(name)
        if found is None:
            found = self._facts[name] = group_facts(
                snapshot, self._groups[name], self._waits.get(name)
            )
        return found

    def notes(self, snapshot: Snapshot) -> list[str]:
        """How many groups are stuck, and which rows are visible."""
        del snapshot
        still = f"{len(self._waits):,} of {len(self._by_name):,} wait" if self._waits else ""
        return [still, self.list.range_note]

    def keys(self) -> list[Key]:
        """The keys for a group."""
        return [("enter", "Enter", "members"), ("d", "d", "its stacks"), ("D", "D", "all stacks")]

    def picked(self) -> tuple[int, ...]:
        """The members of the group under the cursor."""
        group = self._groups.get(str(self.list.cursor_key))
        return group.ranks if group is not None and len(group.ranks) <= PICKED_MOST else ()

    def on_cursor_list_opened(self, message: PickList.Opened) -> None:
        """Open the page of the group."""
        message.stop()
        self.post_message(self.Opened(group=str(message.key)))
