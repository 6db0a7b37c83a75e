"""The main screen: the verdict, and the ranks (or the process groups) as its evidence."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input

from ddtop.diagnosis.finding import Verdict
from ddtop.model.facts import Snapshot
from ddtop.ui.present import units
from ddtop.ui.present.banner import banner_lines
from ddtop.ui.present.columns import COLUMNS, Column
from ddtop.ui.present.order import (
    BY_VERDICT,
    by_column,
    by_verdict,
    culprits,
    describe_filter,
    parse_filter,
)
from ddtop.ui.present.text import Line, clean, wrap
from ddtop.ui.render.detail import detail_lines
from ddtop.ui.render.pages import group_lines
from ddtop.ui.session import INTERVALS_S, Session
from ddtop.ui.widgets.banner import Banner
from ddtop.ui.widgets.key_bar import Key, KeyBar
from ddtop.ui.widgets.lines import LinesView
from ddtop.ui.widgets.rank_table import RankTable, TitleRow

from .facts import FactsScreen, foot_line, under_banner
from .finding import FindingScreen
from .rank import RankScreen
from .signals import SignalsScreen
from .stacks import StacksScreen

RANKS, GROUPS = "ranks", "groups"
SIDE_FROM = 190
"""From this width on the selected rank's page stands beside the table: 133 columns for the table, 66 for the page."""
SIDE_WIDTH = 66


class MainScreen(FactsScreen):
    """Banner, table, keys."""

    DEFAULT_CSS = """
    MainScreen #rule, MainScreen #foot { height: 1; }
    MainScreen #side { width: 66; display: none; }
    MainScreen #groups { display: none; height: 1fr; }
    MainScreen Input, MainScreen Input:focus { display: none; height: 1; border: none; padding: 0; }
    MainScreen.filtering Input { display: block; }
    MainScreen.filtering KeyBar { display: none; }
    MainScreen.wide #side { display: block; }
    MainScreen.in-groups #groups { display: block; }
    MainScreen.in-groups #ranks { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        # First of all keys, so that what was typed ahead on a slow line goes to the filter and is not obeyed.
        Binding("slash", "filter", "filter", priority=True),
        ("escape", "clear_filter", "clear the filter"),
        ("less_than_sign", "sort(-1)", "sort by the column before"),
        ("greater_than_sign,f6", "sort(1)", "sort by the next column"),
        ("e", "why", "why"),
        ("1", "view('ranks')", "ranks"),
        ("3", "view('groups')", "groups"),
        ("4", "stacks('last')", "last stacks"),
        ("d", "stacks('these')", "stacks"),
        ("D", "stacks('all')", "all stacks"),
        ("f9,s", "signals", "signal"),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.sort_key = BY_VERDICT
        self.descending = False
        self.view = RANKS
        self.filter = parse_filter("")
        paint = session.paint
        self.banner = Banner(paint, "banner")
        self.rule = LinesView(paint, "rule")
        self.table = RankTable(paint, "body")
        self.titles = TitleRow(paint, self.table)
        self.side = LinesView(paint, "side", margin=True)
        self.groups = LinesView(paint, "groups", focusable=True)
        self.foot = LinesView(paint, "foot")
        self.keys = KeyBar(paint)
        self.input = Input(placeholder="state:blocked host:node3 rank:0-7 word", id="filter")

    def compose(self) -> ComposeResult:
        """From top to bottom; the side pane shows itself on wide terminals."""
        yield self.banner
        yield self.rule
        with Horizontal(id="ranks"):
            with Vertical():
                yield self.titles
                yield self.table
            yield self.side
        yield self.groups
        yield self.foot
        yield self.keys
        yield self.input

    def show_facts(self) -> None:
        """Draw what the session shows now."""
        if not self.is_mounted:
            return
        self.set_class(self.size.width >= SIDE_FROM, "wide")
        look = self.session.shown
        glyphs = self.session.paint.glyphs
        self.rule.show([under_banner(self.session, self.size.width)])
        self.keys.show(self._keys())
        if look.snapshot is None:
            self.banner.show_for(None, self._waiting_lines())
            self.titles.show(self.sort_key)
            self._show_foot()
            return
        self._show_banner(look.snapshot, look.verdict)
        if self.view == GROUPS:
            self.groups.show(group_lines(look.snapshot, self.groups.room, glyphs))
        else:
            self._show_table(look.snapshot, look.verdict)
            self._show_side()
        self._show_foot()

    def _waiting_lines(self) -> list[Line]:
        waited = units.duration(self.session.waited_s())
        contact = self.session.shown.contact
        text = f"waiting for the first records of {clean(self.session.job)}, {waited}"
        lines: list[Line] = [((text, "bold"),)]
        texts = wrap(clean(contact), self.size.width) if contact else [""]
        return [*lines, *(((part, "warning"),) for part in texts)]

    def _show_banner(self, snapshot: Snapshot, verdict: Verdict) -> None:
        most = max(self.size.height // 3, 3)
        lines = banner_lines(
            snapshot,
            verdict,
            self.size.width,
            contact=self.session.contact(),
            glyphs=self.session.paint.glyphs,
            most=most,
            hint="e: why",
        )
        worst = verdict.findings[0].identity if verdict.findings else None
        self.banner.show_for((worst, self.size, self.session.shown.contact is None), lines)

    def _show_table(self, snapshot: Snapshot, verdict: Verdict) -> None:
        if self.sort_key == BY_VERDICT:
            order = by_verdict(snapshot, verdict)
        else:
            order = by_column(snapshot, self.sort_key, self.descending)
        if not self.filter.empty:
            order = [number for number in order if self.filter.passes(snapshot.rank(number))]
        self.table.show(snapshot, order, frozenset(culprits(verdict)), self.session.old)
        self.titles.show(self.sort_key)

    def _show_side(self) -> None:
        snapshot, rank = self.session.shown.snapshot, self.table.cursor_rank
        if snapshot is None or rank is None or not self.has_class("wide"):
            return
        self.session.history.watch(rank)
        memory = self.session.history.of(rank)
        glyphs = self.session.paint.glyphs
        self.side.show(detail_lines(snapshot, rank, memory, SIDE_WIDTH - 2, glyphs, brief=True))

    def _show_foot(self) -> None:
        """What differs from the plain picture: filter, sort, tags, interval, and which rows are visible."""
        snapshot = self.session.shown.snapshot
        notes: list[str] = []
        if self.view == RANKS and snapshot is not None:
            first, last, rows = self.table.visible_range
            if not self.filter.empty or self.filter.problem:
                notes.append(describe_filter(self.filter, rows, len(snapshot.ranks)))
            if self.sort_key != BY_VERDICT:
                notes.append(f"sorted by {self._sort_title()}")
            if self.table.tagged:
                notes.append(f"{len(self.table.tagged)} tagged")
            if rows > self.table.size.height > 0:
                notes.append(f"rows {first:,}-{last:,} of {rows:,}")
        if self.session.interval_s != INTERVALS_S[0]:
            notes.append(f"every {self.session.interval_s:g} s")
        self.foot.show([foot_line(self.session, self.size.width, *notes)])

    def _sort_title(self) -> str:
        titles = [column.title for column in COLUMNS if column.key == self.sort_key]
        return titles[0] + (", largest first" if self.descending else "")

    def _keys(self) -> list[Key]:
        """The keys that do something now, the most wanted first: a narrow terminal shows only those."""
        freeze: Key = ("p", "p", "go on" if self.session.frozen else "freeze")
        more: list[Key] = [("t", "t", "theme")]
        keys: list[Key] = [("question_mark", "?", "help"), ("q", "q", "quit")]
        look = self.session.shown
        if look.snapshot is None:
            return keys + more
        if look.verdict.findings:
            keys.append(("e", "e", "why"))
        if look.span is not None:
            more.append(("left_square_bracket", "[ ]", "in time"))
        if self.view == GROUPS:
            return [*keys, ("1", "1", "ranks"), ("D", "D", "stacks of all"), freeze, *more]
        keys += [("enter", "Enter", "rank"), ("d", "d", "stacks"), ("slash", "/", "filter"), ("3", "3", "groups")]
        keys += [freeze, ("f9", "F9", "signal"), ("greater_than_sign", "< >", "sort"), ("space", "Space", "tag")]
        return [*keys, *more]

    def action_view(self, view: str) -> None:
        """Show the ranks or the groups."""
        self.view = view
        self.set_class(view == GROUPS, "in-groups")
        self.set_focus(self.groups if view == GROUPS else self.table)
        self.call_after_refresh(self.show_facts)

    def _picked(self) -> tuple[int, ...]:
        """The tagged ranks, else the one under the cursor; all where no cursor is seen."""
        if self.view != RANKS:
            return ()
        if self.table.tagged:
            return tuple(sorted(self.table.tagged))
        return () if self.table.cursor_rank is None else (self.table.cursor_rank,)

    def action_stacks(self, whose: str) -> None:
        """Ask for stacks and show them as they come; `last` shows those that there are."""
        if self.session.shown.snapshot is not None:
            ranks = {"last": None, "these": self._picked(), "all": ()}[whose]
            self.app.push_screen(StacksScreen(self.session, ranks))

    def action_signals(self) -> None:
        """Offer signals to the tagged ranks or the one under the cursor."""
        if self.session.shown.snapshot is not None and self._picked():
            self.app.push_screen(SignalsScreen(self.session, self._picked()))

    def action_sort(self, steps: int) -> None:
        """Sort by the next column that is shown; before the first one lies the order of the verdict."""
        shown = [None, *self.table.shape.columns]
        keys = [column.key if column else BY_VERDICT for column in shown]
        at = keys.index(self.sort_key) if self.sort_key in keys else 0
        picked = shown[(at + steps) % len(shown)]
        self._sort_by(picked)

    def _sort_by(self, column: Column | None) -> None:
        self.sort_key = column.key if column else BY_VERDICT
        self.descending = column.descending if column else False
        self.show_facts()

    def on_title_row_picked(self, message: TitleRow.Picked) -> None:
        """A title was clicked: sort by it, a second click turns the order around."""
        if message.column.key == self.sort_key:
            self.descending = not self.descending
            self.show_facts()
        else:
            self._sort_by(message.column)

    def action_why(self) -> None:
        """Open the findings."""
        if self.session.shown.snapshot is not None:
            self.app.push_screen(FindingScreen(self.session))

    def on_banner_opened(self) -> None:
        """The verdict was clicked."""
        self.action_why()

    def on_rank_table_opened(self, message: RankTable.Opened) -> None:
        """Open the page of a rank."""
        self.app.push_screen(RankScreen(self.session, message.rank))

    def on_rank_table_resized(self) -> None:
        """Titles, side pane and foot depend on the table's size."""
        self.show_facts()

    def on_rank_table_moved(self) -> None:
        """The side pane and the foot follow the cursor."""
        self._show_side()
        self._show_foot()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A slash in the filter is a slash."""
        if action == "filter" and (self.view != RANKS or self.has_class("filtering")):
            return False
        return super().check_action(action, parameters)

    def action_filter(self) -> None:
        """Ask for a filter."""
        if self.view == RANKS:
            self.add_class("filtering")
            # At once: keys that were typed ahead would otherwise be taken as commands.
            self.set_focus(self.input)

    def action_clear_filter(self) -> None:
        """Show all rows again."""
        self.remove_class("filtering")
        self.input.value = ""
        self.set_focus(self.table)

    def on_input_changed(self, message: Input.Changed) -> None:
        """Filter while it is typed."""
        self.filter = parse_filter(message.value)
        self.show_facts()

    def on_input_submitted(self) -> None:
        """Keep the filter and go back to the table."""
        self.remove_class("filtering")
        self.set_focus(self.table)
