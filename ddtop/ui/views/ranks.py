"""One row per rank, with the page of the selected rank beside the table on wide terminals."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from ddtop.diagnosis.rank_state import culprits
from ddtop.follow.look import Look
from ddtop.model.facts import Snapshot
from ddtop.present import help_text
from ddtop.present.events import EventRow, rows_of
from ddtop.present.filter import BY_VERDICT, FIELDS, Rows, describe_filter, parse_filter
from ddtop.present.gpus import silent_note
from ddtop.present.job_charts import LINE_LEAST
from ddtop.present.lanes import ALONE_MOST, legend
from ddtop.present.map import BLOCKED, HEALTHY, codes_of
from ddtop.present.numbers import COLUMNS, LANE, Number
from ddtop.present.panels import panel_lines
from ddtop.present.rank import detail_lines
from ddtop.present.scene import Scene
from ddtop.thresholds import chosen
from ddtop.ui.session import PANELS, ROOMS, ROWS, SHARED, Session
from ddtop.ui.stack_request import AskedStacks, recall
from ddtop.ui.views.view import View
from ddtop.ui.widgets.lines import Key, LinesView
from ddtop.ui.widgets.rank_table import RankTable, TitleRow
from ddtop.words.units import SECOND_NS

SIDE_FROM = 190
"""From this width on, the selected rank's page is beside the table: 133 columns for the table, 66
for the page."""
SIDE_WIDTH = 66
ROWS_LEAST = 3
"""Rows that the table keeps at least."""
POLL_S = 0.1
ONE_LINE_FROM = 14
"""A view with so many rows gives one of them to the job strip even if there are more ranks."""
RECALL_MOST, RECALL_AFTER_S = 256, 3.0
"""In jobs of up to so many ranks, earlier events are found without being asked for, after the first
picture. In larger jobs that takes seconds of CPU per recorded minute."""


class RanksView(View):
    """The table, its order and its filter."""

    DEFAULT_CSS = """
    RanksView #side { width: 66; display: none; }
    RanksView.wide #side { display: block; }
    RanksView #strip, RanksView #axis { height: 0; }
    """
    topic: ClassVar[str] = help_text.RANKS

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.sort_key, self.descending = BY_VERDICT, False
        self._followed: int | None = None
        self.filter = parse_filter("")
        self._rows = Rows()
        paint = session.paint
        self.table = self.target = RankTable(paint, "body")
        self.table.hidden = frozenset(session.setup.hidden)
        self.titles = TitleRow(paint, self.table, self._sort_clicked)
        self.axis = LinesView(paint, "axis")
        self.strip = LinesView(paint, "strip")
        self._stacks = AskedStacks(session, None)
        self.side = LinesView(paint, "side", margin=True)
        self._events: tuple[object, list[EventRow]] = (None, [])
        self._strip_for: tuple[object, ...] = ()
        self._below = self._shown_rows = 0
        self._reading = False

    def compose(self) -> ComposeResult:
        """Titles over the table, the side pane to the right."""
        with Horizontal():
            with Vertical():
                yield self.titles
                yield self.table
                yield self.axis
                yield self.strip
            yield self.side

    def on_mount(self) -> None:
        """Check regularly for source lines that have been read."""
        self.set_interval(POLL_S, self._poll)

    def _poll(self) -> None:
        if self.display and self._reading and not self.session.excerpts.pending:
            self._reading, self._strip_for = False, ()
            self.show_again()

    def show(self, look: Look, snapshot: Snapshot) -> None:
        """Draw the rows that pass the filter, in their order."""
        shared = self.session.setup.room == SHARED
        self.set_class(self.size.width >= SIDE_FROM and shared, "wide")
        order = self._rows.of(snapshot, look.verdict, self.sort_key, self.descending, self.filter)
        self._share_rows(look, snapshot)
        scene = self._scene(look, snapshot)
        self.table.lanes = scene.lanes
        top = self.table.scroll_offset.y
        shown = order[top : top + max(self.table.size.height, 1)]
        self.session.history.read([*scene.at_fault[:ALONE_MOST], *shown])
        self.table.show(snapshot, order, frozenset(culprits(look.verdict)), self.session.old)
        self._follow(look)
        self.show_titles()
        self._show_side()
        self._show_axis(scene)
        self._show_strip(look, scene)

    def _scene(self, look: Look, snapshot: Snapshot) -> Scene:
        events = self.session.timeline.events
        if events is not self._events[0]:
            self._events = events, rows_of(events)
        return Scene(
            snapshot,
            self.session.job_history,
            look.verdict,
            self._events[1],
            self.session.history,
            read=self.session.excerpts.get,
            glyphs=self.session.paint.glyphs,
            rows=self._shown_rows,
            log=self.session.tails.find,
        )

    def scene_of(self, snapshot: Snapshot) -> Scene:
        """The look with these facts, and the last stacks."""
        return replace(self._scene(self.session.shown, snapshot), merged=self._stacks.merged())

    def _share_rows(self, look: Look, snapshot: Snapshot) -> None:
        """Give the table its rows, and what is left to the axis and the panels.

        When the banner grows, the panels shrink at once. Of many ranks, those that a finding does
        not name are alike: panels tell more than their rows.
        """
        ranks, whole = len(snapshot.ranks), self.size.height - 1
        many = ranks > whole // 2 and bool(look.verdict.findings)
        rows = max(ROWS_LEAST, whole // 4) if many else ranks
        rows = {ROWS: whole, PANELS: ROWS_LEAST}.get(self.session.setup.room, rows)
        free = whole - rows
        roomy = free >= LINE_LEAST + 1
        axis = int(roomy and bool(self.table.shape.width(LANE)))
        self._below = free - axis if roomy else int(self.size.height >= ONE_LINE_FROM)
        _set_height(self.table, str(rows) if roomy else "1fr")
        _set_height(self.axis, str(axis))
        _set_height(self.strip, "1fr" if roomy else str(self._below))
        self._shown_rows = rows if roomy else whole - self._below

    def _show_strip(self, look: Look, scene: Scene) -> None:
        """Draw the panels in the rows that the ranks leave free."""
        snapshot = scene.snapshot
        self._recall_once(look, snapshot)
        # In a hang its curves change only every ten seconds: they show nothing new.
        still = scene.quiet and snapshot.is_still
        changes = scene.history.changes // 5 if still else scene.history.changes
        until = snapshot.time_unix_ns if look.travelled or not snapshot.live else None
        worst = scene.finding.identity if scene.finding is not None else None
        room = self.strip.room, self._below
        made_for = (changes, scene.events, until, worst, room, scene.glyphs)
        if made_for == self._strip_for:
            # Its numbers change every two seconds: making its lines at every look would cost as
            # much as the rows of the table.
            return
        self._strip_for = made_for
        if scene.finding is not None:
            scene = replace(scene, merged=self._stacks.merged())
        self.strip.show(panel_lines(scene, *room))
        self._reading = self.session.excerpts.pending

    def _show_axis(self, scene: Scene) -> None:
        """Draw the axis below the lanes, and what their signs mean."""
        shape = self.table.shape
        cells, before = shape.width(LANE), 0
        for column, width in shape.columns():
            if column.key == LANE:
                break
            before += width + 1
        shown = [scene.lanes.of(rank, cells) for rank in self.table.visible_ranks]
        room = self.table.size.width - before - cells
        meaning = legend(shown, scene.glyphs, room)
        axis = scene.axis(cells, cells * scene.lanes.each(cells) * SECOND_NS)
        self.axis.show([((" " * before, ""), *axis, *meaning)] if cells else [])

    def _recall_once(self, look: Look, snapshot: Snapshot) -> None:
        wanted = look.recall is not None and not look.recording and not self.session.recalled
        if (
            wanted
            and len(snapshot.ranks) <= RECALL_MOST
            and self.session.waited_s() >= RECALL_AFTER_S
        ):
            self.run_worker(recall(self.session), name="recall")

    def _follow(self, look: Look) -> None:
        """Move the cursor to the worst rank when another rank becomes the worst; in between, the
        user moves it."""
        worst = next((rank for finding in look.verdict.findings for rank in finding.ranks), None)
        if not self.session.setup.follow or worst is None:
            self._followed = None
        elif worst != self._followed and self.table.go_to(worst):
            self._followed = worst

    def follow(self) -> None:
        """Follow the rank at fault, or stop following it."""
        self.session.prefer(follow=not self.session.setup.follow)
        self._followed = None
        self.show_again()

    def enlarge(self, steps: int) -> None:
        """Give more room to the panels (`steps` > 0), or to the rows."""
        room = self.session.setup.room
        at = ROOMS.index(room) + steps if room in ROOMS else 1
        self.session.prefer(room=ROOMS[min(max(at, 0), len(ROOMS) - 1)])
        self.show_again()

    def next_problem(self, steps: int) -> None:
        """Move the cursor to the next row that is not healthy; after the last comes the first. If
        some ranks are worse than blocked, only to those."""
        look = self.session.shown
        if look.snapshot is not None:
            codes = codes_of(look.snapshot, culprits(look.verdict))
            borne = BLOCKED if max(codes, default=0) > BLOCKED else HEALTHY
            if not self.table.go_to_next(lambda rank: codes[rank] > borne, steps):
                self.session.say("no other rank has a problem")
            self.post_message(self.Changed())

    def hide(self, hidden: tuple[str, ...]) -> None:
        """Show all columns except these, room permitting."""
        self.session.prefer(hidden=hidden)
        self.table.hidden = frozenset(hidden)
        self.table.repaint()
        self.show_again()

    def columns(self) -> frozenset[str]:
        """The keys of the columns that there is room for."""
        return frozenset(column.key for column in self.table.shape.fields)

    def show_titles(self) -> None:
        """Draw only the titles: needed even before the first record."""
        self.titles.show_titles(self.sort_key, self.descending)

    def _show_side(self) -> None:
        snapshot, rank = self.session.shown.snapshot, self.table.cursor_rank
        if snapshot is None or rank is None or not self.has_class("wide"):
            return
        self.session.history.watch(rank)
        memory = self.session.history.memory_of(rank)
        glyphs = self.session.paint.glyphs
        self.side.show(detail_lines(snapshot, rank, memory, SIDE_WIDTH - 2, glyphs, brief=True))

    def problem(self) -> str:
        nothing = f"no rank matches {self.filter.text}; Esc: all ranks; {FIELDS}"
        hidden = not self.filter.empty and not self.table.visible_range[2]
        return self.filter.problem or (nothing if hidden else "")

    def notes(self, snapshot: Snapshot) -> list[str]:
        """Filter, sort, tags, and which rows are visible."""
        notes: list[str] = []
        if not self.filter.empty or self.filter.problem:
            notes.append(
                describe_filter(self.filter, self.table.visible_range[2], len(snapshot.ranks))
            )
        if self.sort_key != BY_VERDICT:
            title = next(column.title for column in COLUMNS if column.key == self.sort_key)
            notes.append(f"sorted by {title}" + (", largest first" if self.descending else ""))
        if self.session.setup.follow:
            notes.append("following")
        if self.session.setup.room == ROWS:
            notes.append("+: panels")
        if snapshot.devices and (silent := silent_note(snapshot, chosen())):
            notes.append(silent)
        if self.table.tagged:
            notes.append(f"{len(self.table.tagged)} tagged")
        return [*notes, self.table.range_note]

    def keys(self) -> list[Key]:
        return [
            ("enter", "Enter", "rank"),
            ("d", "d", "stacks"),
            ("slash", "/", "filter"),
            ("f9", "F9", "signal"),
            ("greater_than_sign", "< >", "sort"),
            ("space", "Space", "tag"),
        ]

    def picked(self) -> tuple[int, ...]:
        """The tagged ranks, or else the one under the cursor."""
        if self.table.tagged:
            return tuple(sorted(self.table.tagged))
        return () if self.table.cursor_rank is None else (self.table.cursor_rank,)

    def sort(self, steps: int) -> None:
        """Sort by the next shown column; the order of the verdict comes before the first column."""
        shown = [None, *self.table.shape.fields]
        keys = [column.key if column else BY_VERDICT for column in shown]
        at = keys.index(self.sort_key) if self.sort_key in keys else 0
        self.sort_by(shown[(at + steps) % len(shown)])

    def sort_by(self, column: Number | None) -> None:
        """Sort by a column; None: by the verdict."""
        self.sort_key = column.key if column else BY_VERDICT
        self.descending = column.descending if column else False
        self.show_again()

    def reverse(self) -> None:
        """Turn the order round."""
        if self.sort_key == BY_VERDICT:
            self.session.say("the rows have the order of the verdict; < and > sort by a column")
        self.descending = self.sort_key != BY_VERDICT and not self.descending
        self.show_again()

    def search(self, text: str) -> None:
        """Show the rows that contain this text."""
        self.searched = text.strip()
        self.filter = parse_filter(text)
        self.show_again()

    def _sort_clicked(self, column: Number) -> None:
        """Sort by the clicked title; a second click reverses the order."""
        if column.key == self.sort_key:
            self.reverse()
        else:
            self.sort_by(column)

    async def on_cursor_list_opened(self, message: RankTable.Opened) -> None:
        """Open the page of the rank."""
        message.stop()
        await self.run_action(f"screen.open_rank({message.key})")

    def on_cursor_list_resized(self, message: RankTable.Resized) -> None:
        """Titles and side pane depend on the table's size."""
        message.stop()
        self.show_again()

    def on_resize(self) -> None:
        """Draw the strip again: it has more or less room."""
        self.show_again()

    def on_cursor_list_moved(self, message: RankTable.Moved) -> None:
        """The side pane follows the cursor."""
        message.stop()
        self._show_side()
        self.post_message(self.Changed())


def _set_height(widget: Widget, height: str) -> None:
    if str(widget.styles.height) != height:
        widget.styles.height = height
