"""The views that are lists: events, groups, hosts, stacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from ddtop.diagnosis.rank_state import culprits
from ddtop.follow.look import Look
from ddtop.model.facts import Snapshot
from ddtop.present import help_text
from ddtop.present.events import Event, EventRow, rows_of
from ddtop.present.findings import event_row, events_table
from ddtop.present.gpus import driver_line, gpu_line, gpu_titles
from ddtop.present.groups import (
    GroupFacts,
    GroupWait,
    chain_line,
    group_facts,
    group_row,
    group_waits,
    groups_table,
    label_of,
    natural,
    order_of,
)
from ddtop.present.hosts import HostFacts, gpus_note, host_row, hosts_facts, hosts_table, part_of
from ddtop.present.map import AT_FAULT, HostRanks
from ddtop.present.now import grid_lines
from ddtop.present.text import Line, clean, plain
from ddtop.thresholds import chosen
from ddtop.ui.session import Session
from ddtop.ui.stack_request import AskedStacks, ShapedStacks, recall
from ddtop.ui.views.view import Coded, ListingView, View
from ddtop.ui.widgets.cursor_list import PickList
from ddtop.ui.widgets.lines import Key, LinesView
from ddtop.wire.records import Group
from ddtop.words import units
from ddtop.words.sentences import rank_list

# -- The view of events, the newest last


class EventsView(ListingView):
    """All events of the session's log. Those from before this viewer connected are found
    when the view is first shown."""

    topic: ClassVar[str] = help_text.EVENTS

    def __init__(self, session: Session, opened: Callable[[Event], None]) -> None:
        """`opened`: called with the event whose story is wanted."""
        super().__init__(session, at_end=True)
        self._opened = opened
        self._rows: list[EventRow] = []
        self._made_for: object = None
        self._recalling = False

    def show(self, look: Look, snapshot: Snapshot) -> None:
        if not self._recalling and not self.session.recalled and look.recall is not None:
            self._recalling = True
            self.run_worker(self._recall(), name="recall")
        events = self.session.timeline.events
        if events is not self._made_for:
            self._made_for, self._rows = events, rows_of(events)
        rows, now = self._rows, snapshot.time_unix_ns
        table, glyphs = events_table(self.list.size.width), self.session.paint.glyphs
        self.titles.show([table.titles() if rows else (("nothing has happened yet", "dim"),)])

        def row(index: int) -> Line:
            return event_row(rows[index], now, table, glyphs)

        self.put([(row.event.key, row.over) for row in rows], row)

    async def _recall(self) -> None:
        try:
            await recall(self.session)
        finally:
            self._recalling = False
        self.show_again()

    def notes(self, snapshot: Snapshot) -> list[str]:
        """The time from which on events are known, and which rows are visible."""
        del snapshot
        timeline = self.session.timeline
        if self._recalling:
            return ["reading earlier events ..."]
        gone = f"{timeline.forgotten:,} older events forgotten" if timeline.forgotten else ""
        began = timeline.began_unix_ns
        since = f"events since {units.clock(began)}" if began is not None and not gone else gone
        return [since, self.list.range_note]

    def keys(self) -> list[Key]:
        return [("enter", "Enter", "details"), ("end", "End", "newest")]

    def on_cursor_list_opened(self, message: PickList.Opened) -> None:
        """Open the story of the event."""
        message.stop()
        row = next((row for row in self._rows if (row.event.key, row.over) == message.key), None)
        if row is not None:
            self._opened(row.event)


# -- One row a process group


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
    topic: ClassVar[str] = help_text.GROUPS

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
        yield self.grid
        yield from super().compose()

    def _show_grid(self, look: Look, snapshot: Snapshot) -> None:
        most = min(GRID_LINES_MOST, self.size.height // 2)
        paint, at_fault = self.session.paint, culprits(look.verdict)
        chain = chain_line(snapshot, self._waits, at_fault, self.size.width, paint.glyphs)
        lines = grid_lines(snapshot, self.size.width, most, at_fault, paint.glyphs)
        lines = [chain, *([()] if lines else []), *lines] if chain else lines
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
        return [("enter", "Enter", "members"), ("d", "d", "its stacks"), ("D", "D", "all stacks")]

    def picked(self) -> tuple[int, ...]:
        """The members of the group under the cursor."""
        group = self._groups.get(str(self.list.cursor_key))
        return group.ranks if group is not None and len(group.ranks) <= PICKED_MOST else ()

    async def on_cursor_list_opened(self, message: PickList.Opened) -> None:
        """Open the page of the group."""
        message.stop()
        await self.run_action(f"screen.open_group({str(message.key)!r})")


# -- One row per host


SECOND_NS = 1_000_000_000
SPAN_NS = 10 * SECOND_NS
"""The CPU share of a relay is the mean over this time."""
GPU_TITLES = -1
"""The row of titles above the GPUs of a host."""


class HostsView(ListingView):
    """The hosts in the order of their ranks, those with a rank at fault first."""

    topic: ClassVar[str] = help_text.HOSTS
    BINDINGS: ClassVar[list[BindingType]] = [("f", "gpus", "all GPUs")]

    def __init__(self, session: Session, coded: Coded) -> None:
        super().__init__(session)
        self.coded = coded
        self._found: tuple[HostFacts, ...] = ()
        self._snapshot: Snapshot | None = None
        self._relays: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._unfolded = False

    def show(self, look: Look, snapshot: Snapshot) -> None:
        self.coded.take(look, snapshot)
        if self._due(snapshot):
            self._snapshot = snapshot
            self._found = hosts_facts(snapshot, self.coded.hosts, self.coded.codes, chosen())
            self._note_relays(snapshot.time_unix_ns)
        found, codes, glyphs = self._found, self.coded.codes, self.session.paint.glyphs
        width, gpus = self.list.size.width, bool(snapshot.devices)
        table = hosts_table(width, found, gpus)
        self.titles.show([table.titles()])
        rows = self._rows()

        def row(index: int) -> Line:
            host, gpu = rows[index]
            if gpu is not None and host.watch is not None:
                return driver_line(host.watch, len(host.devices), width, chosen(), glyphs)
            if gpu == GPU_TITLES:
                return gpu_titles(width)
            if gpu is not None:
                device = host.devices[gpu]
                line = gpu_line(
                    device, width, glyphs, host.waits(device), part_of(host.devices, gpu)
                )
                # A report this old says nothing about now.
                return (
                    line
                    if (host.age_s or 0.0) <= chosen().host_report_old_s
                    else tuple((text, "old") for text, _ in line)
                )
            return host_row(host, codes, self._relay_cpu(host), table, glyphs)

        self.put([host.name if gpu is None else (host.name, gpu) for host, gpu in rows], row)

    def _rows(self) -> list[tuple[HostFacts, int | None]]:
        """The hosts, and below each its GPUs. Without a rank at fault that is only those that need
        attention, until they are unfolded."""
        every = self._unfolded or len(self._found) == 1
        found: list[tuple[HostFacts, int | None]] = []
        for host in self._found:
            found.append((host, None))
            if host.watch is not None:
                found.append((host, 0))
                continue
            whole = every or host.worst >= AT_FAULT
            gpus = range(len(host.devices)) if whole else host.troubled
            found += [(host, gpu) for gpu in ((GPU_TITLES, *gpus) if gpus else ())]
        return found

    def action_gpus(self) -> None:
        """List the GPUs of all hosts, or fold them."""
        self._unfolded = not self._unfolded
        self.search(self.searched)

    def _due(self, snapshot: Snapshot) -> bool:
        """Whether to read again. Relays report once a second: reading more often finds nothing
        new."""
        before = self._snapshot
        if before is None or before.run != snapshot.run:
            return True
        return not before.time_unix_ns <= snapshot.time_unix_ns < before.time_unix_ns + SECOND_NS

    def _note_relays(self, now_unix_ns: int) -> None:
        """A relay reports the CPU time since its start; a share needs two reports."""
        for facts in self._found:
            host, age_s = facts.state, facts.age_s
            if host is None or age_s is None:
                continue
            at = now_unix_ns - int(age_s * SECOND_NS)
            known = self._relays.setdefault((facts.name, host.relay_pid), [])
            if known and at < known[-1][0]:
                known.clear()
            if not known or at > known[-1][0]:
                known.append((at, host.relay_cpu_ns))
            while len(known) > 2 and known[1][0] <= at - SPAN_NS:
                known.pop(0)

    def _relay_cpu(self, host: HostFacts) -> float | None:
        state = host.state
        known = self._relays.get((host.name, state.relay_pid), []) if state is not None else []
        if len(known) < 2 or known[-1][0] - known[0][0] < SECOND_NS:
            return None
        return max(known[-1][1] - known[0][1], 0) / (known[-1][0] - known[0][0])

    def notes(self, snapshot: Snapshot) -> list[str]:
        """A note about GPUs, and which rows are visible."""
        note = gpus_note(self._found, bool(snapshot.devices))
        return [*([note] if note else []), self.list.range_note]

    def keys(self) -> list[Key]:
        fold = "fold GPUs" if self._unfolded else "all GPUs"
        gpus = len(self._found) > 1 and any(host.devices for host in self._found)
        return [
            ("enter", "Enter", "its ranks"),
            *([("f", "f", fold)] if gpus else []),
            ("d", "d", "its stacks"),
            ("D", "D", "all stacks"),
        ]

    def picked(self) -> tuple[int, ...]:
        """The ranks of the host under the cursor."""
        key = self.list.cursor_key
        if isinstance(key, tuple) and key[1] != GPU_TITLES:
            host = next((host for host in self._found if host.name == key[0]), None)
            return (
                host.devices[key[1]].ranks
                if host is not None and key[1] < len(host.devices)
                else ()
            )
        name = key[0] if isinstance(key, tuple) else key
        return next((host.ranks for host in self.coded.hosts if host.name == name), ())

    async def on_cursor_list_opened(self, message: PickList.Opened) -> None:
        """Show the ranks of the host."""
        message.stop()
        name = message.key[0] if isinstance(message.key, tuple) else message.key
        host = next((host for host in self.coded.hosts if host.name == name), None)
        if host is not None:
            await self.run_action(f"screen.filter_to({self._filter_of(host)!r})")

    def _filter_of(self, host: HostRanks) -> str:
        """The host's name as a filter; its ranks if the name is part of another host's name or is
        not one word."""
        snapshot = self.session.shown.snapshot
        names = (
            {host.name} if snapshot is None else {clean(rank.host or "") for rank in snapshot.ranks}
        )
        like = [name for name in names if host.name.lower() in name.lower()]
        if like == [host.name] and not set(host.name) & set(" ,"):
            return f"host:{host.name}"
        return f"rank:{rank_list(host.ranks)}"


# -- The view of the last stack dump


POLL_S = 0.25
"""Source lines are read on a separate thread and arrive a moment later."""


class StacksView(View, ShapedStacks):
    """Merged stacks as classes or as a tree. New stacks are asked for on the stacks page."""

    topic: ClassVar[str] = help_text.STACKS
    BINDINGS: ClassVar[list[BindingType]] = [
        ("v", "change_view", "classes or tree"),
        ("T", "threads", "other threads"),
        ("f", "frames", "all frames"),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.asked = AskedStacks(session, None)
        self.body = self.target = LinesView(session.paint, "stacks-lines", focusable=True)
        self._count = 0
        self._went_for = ""

    def compose(self) -> ComposeResult:
        """The lines, which can be scrolled."""
        yield self.body

    def on_mount(self) -> None:
        """Check regularly for source lines that have been read."""
        self.set_interval(POLL_S, self._poll)

    def _poll(self) -> None:
        if self.display and self.session.excerpts.pending:
            self.show_again()

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

    def notes(self, snapshot: Snapshot) -> list[str]:
        del snapshot
        return [f"{self._count} lines"] if self._count > self.body.size.height > 0 else []

    def keys(self) -> list[Key]:
        """The keys that show more of the stacks, and newer ones."""
        asks: list[Key] = [] if self.session.shown.recording else [("D", "D", "ask all")]
        return [*asks, *self.asked.shape_keys()]
