"""The main screen: the verdict, and below it one of the views with the evidence."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.widget import Widget
from textual.widgets import Input

from ddtop.diagnosis.finding import Verdict
from ddtop.model.facts import Snapshot
from ddtop.present.culprit import healthy_beside
from ddtop.present.events import STACKS as STACKS_TAKEN
from ddtop.present.events import Event
from ddtop.present.filter import parse_filter
from ddtop.present.findings import banner_lines
from ddtop.present.help_text import ACTIONS, MAP, RANKS, VIEWS
from ddtop.present.jobs import program_lines
from ddtop.present.map import map_metric
from ddtop.present.numbers import COLUMNS
from ddtop.present.stacks import last_request
from ddtop.present.text import Line, clean, wrap
from ddtop.ui.screens.finding import FindingScreen, StoryScreen
from ddtop.ui.screens.menus import ColumnsScreen
from ddtop.ui.screens.page import FactsScreen, TimeBar, foot_line
from ddtop.ui.screens.pages import (
    CopyScreen,
    ExplainScreen,
    GroupScreen,
    LogScreen,
    PairScreen,
    RankScreen,
)
from ddtop.ui.screens.signals import SignalsScreen
from ddtop.ui.screens.stacks import StacksScreen
from ddtop.ui.session import INTERVALS_S, Session
from ddtop.ui.views.lists import EventsView, GroupsView, HostsView, StacksView
from ddtop.ui.views.map import MapView
from ddtop.ui.views.ranks import RanksView
from ddtop.ui.views.view import Coded, View
from ddtop.ui.widgets.lines import Banner, Key, KeyBar, LinesView, ProgramsView, ViewBar
from ddtop.ui.widgets.rank_table import RankTable
from ddtop.words import units

BANNER_ROWS = 4
"""Who is at fault, who waits and what to do; the page "why" has the rest."""
KEPT_ROWS = 9
"""Rows that a long verdict leaves: names of the views, titles, foot, keys, and five ranks."""
BOTH_ROWS = 16
"""A terminal with so many rows has room for both the names of the views and the shown time."""


class MainScreen(FactsScreen):
    """Banner, view, keys. The actions are those of `actions.ACTIONS`."""

    DEFAULT_CSS = """
    MainScreen #head, MainScreen #rule, MainScreen #past, MainScreen #foot { height: 1; }
    """
    BINDINGS = [  # noqa: RUF012
        # Keys that Textual also handles have priority. So has the filter's key: on a slow line,
        # what was typed ahead goes into the filter and does not run as commands.
        Binding(
            action.keys,
            action.run,
            action.label,
            priority=action.name in ("filter", "next-view", "view-before"),
            id=action.name,
        )
        for action in ACTIONS
        if not action.run.startswith("app.")
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        paint, coded = session.paint, Coded()
        self.head = LinesView(paint, "head")
        self.rule = ViewBar(paint, "rule")
        self.past = TimeBar(session, "past")
        self.banner = Banner(paint, "banner")
        self.system = ProgramsView(paint, "system")
        self.system.display = False
        self.ranks = RanksView(session)
        self.map = MapView(session, coded)
        made = (
            self.ranks,
            self.map,
            GroupsView(session),
            StacksView(session),
            HostsView(session, coded),
            EventsView(session, self._open_event),
        )
        self.views: dict[str, View] = {view.topic: view for view in made}
        self.view: View = self.ranks
        self.folded = False
        self.foot = LinesView(paint, "foot")
        self.keys = KeyBar(paint)
        self.input = Input(
            placeholder="state:blocked host:node3 rank:0-7 tp:3 step>300 word", id="filter"
        )

    def on_mount(self) -> None:
        """Go on where this person left off."""
        job, text = self.session.setup.filtered
        if job == self.session.job and text:
            self.input.value = text
            self.filter_by(text)
        if self.session.setup.view in self.views:
            self._to_front(self.session.setup.view)

    @property
    def table(self) -> RankTable:
        return self.ranks.table

    @property
    def filtered(self) -> Widget:
        return self.view.target

    @property
    def topic(self) -> str:  # type: ignore[override]
        return self.view.topic

    def compose(self) -> ComposeResult:
        """From top to bottom; one view is visible."""
        # The names of the views are above everything that changes its height: they never move under
        # a mouse pointer.
        yield from (self.head, self.rule, self.past, self.banner, self.system)
        for view in self.views.values():
            view.display = view is self.view
            yield view
        yield from (self.foot, self.keys, self.input)

    def show_facts(self) -> None:
        if not self.is_mounted:
            return
        look = self.session.shown
        self._show_rule()
        if look.snapshot is None:
            self._show_top(None, self._waiting_lines())
            self.ranks.show_titles()
        else:
            self._show_banner(look.snapshot, look.verdict)
            self._show_programs(look.snapshot.time_unix_ns)
            self.view.show(look, look.snapshot)
        self._show_foot()

    def _waiting_lines(self) -> list[Line]:
        waited = units.duration(self.session.waited_s())
        contact = self.session.shown.contact
        text = f"waiting for the first records of {clean(self.session.job)}, {waited}"
        lines: list[Line] = [((text, "bold"),)]
        texts = wrap(clean(contact), self.size.width) if contact else [""]
        return [*lines, *(((part, "warning"),) for part in texts)]

    def _show_rule(self) -> None:
        """The names of the views and, below them, the shown moment if it is not now.

        On a low terminal only one of the two has room.
        """
        in_past = self.session.shown.snapshot is not None and self.session.shown.travelled
        self.past.display = in_past
        self.rule.display = not in_past or self.size.height >= BOTH_ROWS
        if in_past:
            self.past.show_moment()
        self.rule.show_tabs(self.view.topic)

    def _show_programs(self, now_unix_ns: int) -> None:
        """A line for each program of the system."""
        rows, most = self.session.program_rows(), max(self.size.height // 5, 2)
        glyphs = self.session.paint.glyphs
        self.system.jobs = [job.entry.job for job, _ in rows[:most]]
        self.system.display = bool(rows)
        self.system.styles.height = min(len(rows), most) + 1
        self.system.show(
            program_lines(rows[:most], self.session.job, self.size.width, now_unix_ns, glyphs)
        )

    def _show_top(self, subject: object, lines: list[Line]) -> None:
        """The header, and the verdict below the names of the views."""
        self.head.show(lines[:1])
        self.banner.show_for(subject, lines[1:] or [()])

    def _show_banner(self, snapshot: Snapshot, verdict: Verdict) -> None:
        usual = 2 if self.folded else min(max(self.size.height // 3, 3), 1 + BANNER_ROWS)
        most = usual if self.folded else max(self.size.height - KEPT_ROWS, usual)
        lines = banner_lines(
            snapshot,
            verdict,
            self.size.width,
            contact=self.session.contact(),
            per_s=self.session.per_s,
            glyphs=self.session.paint.glyphs,
            most=most,
            usual=usual,
            brief=True,
            past=self.session.timeline.events,
        )
        worst = verdict.findings[0].identity if verdict.findings else None
        self._show_top((worst, self.size, self.session.shown.contact is None, self.folded), lines)

    def _show_foot(self) -> None:
        """The notes about the view, and the keys that work now."""
        look = self.session.shown
        notes = [*self.view.notes(look.snapshot)] if look.snapshot is not None else []
        if self.view.searched and self.view.found:
            notes.insert(0, self.view.found)
        if look.travelled and self.view is not self.ranks:
            notes.insert(0, self.view.topic)
        if self.session.interval_s != INTERVALS_S[0]:
            notes.append(f"every {self.session.interval_s:g} s")
        problem = self.view.problem() if look.snapshot is not None else ""
        # In four rows there is room for all fields at 40 columns.
        texts = wrap(clean(problem), self.size.width)[:4] if problem else []
        self.foot.styles.height = len(texts) or 1
        self.foot.show(
            [((text, "warning"),) for text in texts]
            or [foot_line(self.session, self.size.width, *notes)]
        )
        self.keys.show_keys(self._keys())

    def _keys(self) -> list[Key]:
        """The most useful keys first: a narrow terminal shows only those."""
        look = self.session.shown
        keys: list[Key] = [("question_mark", "?", "help"), ("q", "q", "quit")]
        # A theme of an earlier session is named, because one forgets that.
        kept = self.session.setup.theme
        theme: Key = ("t", "t", f"theme: {kept}, kept" if kept else "theme")
        more: list[Key] = [("ctrl+p", "^P", "commands"), theme]
        if look.snapshot is None:
            return keys + more
        if look.verdict.findings:
            keys.append(("e", "e", "why"))
            more.append(("z", "z", "unfold" if self.folded else "fold"))
        if look.span is not None:
            more.append(("left_square_bracket", "[ ]", "time"))
        freeze: Key = ("p", "p", "resume" if self.session.frozen else "freeze")
        return [*keys, *self.view.keys(), ("tab", "Tab", "views"), freeze, *more]

    def help_keys(self) -> tuple[tuple[str, str], ...]:
        """The keys of the view in front: first those of the key bar, then those that work only in
        this view."""
        bar = self.view.keys()
        own = {
            action.shown: action.meaning
            for action in ACTIONS
            if action.listed and self.topic in action.views
        }
        known = {key for keys in own for key in keys.split()}
        meanings = {action.shown: action.meaning for action in ACTIONS}
        first = {
            key: meanings.get(key, label)
            for _, key, label in bar
            if not known.issuperset(key.split())
        }
        return tuple({**first, **own}.items())

    def action_view(self, name: str) -> None:
        """Show that view."""
        # What was said of the view before has been read.
        self.session.say("")
        self._to_front(name)

    def _to_front(self, name: str) -> None:
        before, self.view = self.view, self.views[name]
        before.display, self.view.display = False, True
        # Each view keeps its own filter.
        self.input.value = self.view.searched
        self.set_focus(self.view.target)
        self.session.prefer(view=name)
        self.draw_first()

    def action_next_view(self, steps: int) -> None:
        """Show the next or the previous view."""
        names = [view.name for view in VIEWS]
        self.action_view(names[(names.index(self.view.topic) + steps) % len(names)])

    def on_view_changed(self) -> None:
        """Update the foot and the keys after a move of the cursor."""
        self._show_foot()

    def action_stacks(self, whose: str) -> None:
        """Ask for stacks and show them as they arrive."""
        if self.session.shown.snapshot is not None:
            self.app.push_screen(
                StacksScreen(self.session, self.view.picked() if whose == "these" else ())
            )

    def action_stacks_of(self, text: str) -> None:
        """Ask for the stacks of the ranks that this filter lets through."""
        if (snapshot := self.session.shown.snapshot) is not None:
            ranks = parse_filter(text).ranks_of(snapshot)
            self.app.push_screen(StacksScreen(self.session, ranks))

    def action_signals(self) -> None:
        """Offer signals to the tagged ranks, or to the one under the cursor."""
        if self.session.shown.snapshot is not None and self.view.picked():
            self.app.push_screen(SignalsScreen(self.session, self.view.picked()))

    def _one_picked(self) -> int | None:
        """The rank under the cursor; without a cursor, the worst rank."""
        picked = self.view.picked()
        if len(picked) == 1:
            return picked[0]
        findings = self.session.shown.verdict.findings
        return next((rank for finding in findings for rank in finding.ranks), None)

    def action_copy(self) -> None:
        """Offer the texts that can be copied."""
        if self.session.shown.snapshot is not None:
            self.app.push_screen(CopyScreen(self.session, self._one_picked()))

    async def action_edit(self) -> None:
        """Open the source line that the rank under the cursor is at."""
        await self.run_action(f"app.edit({self._one_picked()})")

    def action_compare(self) -> None:
        """Show two ranks side by side: the two tagged ones, or this one and a healthy one."""
        snapshot, picked = self.session.shown.snapshot, self.view.picked()
        rank = picked[0] if len(picked) == 2 else self._one_picked()
        if snapshot is not None and rank is not None and len(snapshot.ranks) > 1:
            scene = self.ranks.scene_of
            other = picked[1] if len(picked) == 2 else healthy_beside(scene(snapshot), rank)
            self.app.push_screen(PairScreen(self.session, (rank, other), scene))

    def action_log(self) -> None:
        """Show what the rank under the cursor has written."""
        if self.session.shown.snapshot is not None and (rank := self._one_picked()) is not None:
            self.app.push_screen(LogScreen(self.session, rank))

    def action_problem(self, steps: int) -> None:
        """Go to the next rank that is not healthy."""
        self.ranks.next_problem(steps)

    def action_colour_by(self, steps: int) -> None:
        """Colour the map by the next number."""
        self.map.next_metric(steps)

    def action_colour_map(self, key: str) -> None:
        """Show the map, coloured by that number, or by the state."""
        self.action_view(MAP)
        self.map.colour_by(map_metric(key))

    def action_sort(self, steps: int) -> None:
        """Sort by the next column."""
        self.ranks.sort(steps)

    def action_reverse(self) -> None:
        """Turn the order of the rows round."""
        self.ranks.reverse()

    def action_sort_to(self, key: str) -> None:
        """Sort by that column, or by the verdict."""
        self.action_view(RANKS)
        self.ranks.sort_by(next((column for column in COLUMNS if column.key == key), None))

    def action_filter_to(self, text: str) -> None:
        """Show the rows that contain this text."""
        self.action_view(RANKS)
        self.input.value = text

    def action_go_to(self, rank: int) -> None:
        """Put the cursor on that rank."""
        self.action_view(RANKS)
        if not self.table.go_to(rank):
            self.session.say(f"the filter hides rank {rank}")

    def action_open_rank(self, rank: int) -> None:
        self.app.push_screen(RankScreen(self.session, rank))

    def action_open_group(self, name: str) -> None:
        self.app.push_screen(GroupScreen(self.session, name))

    def _open_event(self, event: Event) -> None:
        """Open the story of an event, or the stacks that it is about."""
        snapshot = self.session.shown.snapshot
        taken = snapshot is not None and event.key == (STACKS_TAKEN, last_request(snapshot))
        self.app.push_screen(
            StacksScreen(self.session, None) if taken else StoryScreen(self.session, event)
        )

    def action_finding(self, number: int) -> None:
        """Open the finding with that index; the worst is 0."""
        self.app.push_screen(FindingScreen(self.session, number))

    def action_explain(self, kind: str) -> None:
        self.app.push_screen(ExplainScreen(self.session, kind))

    def action_columns(self) -> None:
        self.app.push_screen(ColumnsScreen(self.session, self.ranks.hide, self.ranks.columns))

    def action_follow(self) -> None:
        """Follow the rank at fault, or stop following it."""
        self.ranks.follow()

    def action_enlarge(self, steps: int) -> None:
        """Give more room to the panels, or to the rows of the ranks."""
        self.ranks.enlarge(steps)

    def action_why(self) -> None:
        """Open the findings."""
        if self.session.shown.snapshot is not None:
            self.app.push_screen(FindingScreen(self.session))

    def action_fold(self) -> None:
        """Show one line of the findings, or unfold them."""
        self.folded = not self.folded
        self.show_facts()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the actions that do nothing in this view."""
        actions = [known for known in ACTIONS if known.run.split("(")[0] == action]
        if actions and not any(
            not known.views or self.view.topic in known.views for known in actions
        ):
            return False
        return super().check_action(action, parameters)

    def filter_by(self, text: str) -> None:
        """Show the rows of the view in front that contain this text, or go to the first match."""
        self.view.search(text)
        if self.view is self.ranks:
            self.session.prefer(filtered=(self.session.job, text))
