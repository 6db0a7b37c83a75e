"""The list of jobs to choose from. The list is read again every two seconds; the state of each job
is asked for in the background."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import ClassVar, TypeVar

import msgspec
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from ddtop import registry
from ddtop.patience import in_thread
from ddtop.present import jobs
from ddtop.present.jobs import Health, Listed
from ddtop.present.text import Glyphs, Line, clean, clip, fit, rule_line
from ddtop.ui.screens.page import FilteringScreen
from ddtop.ui.session import Kept, Paint
from ddtop.ui.style import theme_after
from ddtop.ui.themed_app import ThemedApp
from ddtop.ui.widgets.cursor_list import PickList
from ddtop.ui.widgets.lines import Key, KeyBar, LinesView
from ddtop.words import units

READ_S = 2.0
ASK_AGAIN_S = 15.0
"""One look at a job costs its relay and us as much as an attach. For fresher facts there is the
dashboard."""
ASKERS = 4
FOLLOW_S = 0.5
"""How often the rows of followed jobs are drawn again."""

_T = TypeVar("_T")
JobKey = tuple[str, str]
Read = Callable[[], Sequence[registry.JobEntry]]
Ask = Callable[[registry.JobEntry], Health]
Followed = Callable[[], Mapping[JobKey, Health]]


class JobSearch:
    """What is known of the jobs.


    `read` raises RegistryError; `ask` is called in threads of its own and may take seconds.
    `follow_jobs` is called once, in a thread, and returns what says at once how the jobs with a
    relay are doing; then only the others are asked.
    """

    def __init__(
        self,
        read: Read,
        ask: Ask,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.follow_jobs: Callable[[], Followed] | None = None
        self.followed: Followed | None = None
        self.jobs: list[Listed] = []
        self.problem: str | None = None
        self.health: dict[JobKey, Health] = {}
        self.clock = clock
        self._read, self._ask = read, ask
        self._asked_mono_s: dict[JobKey, float] = {}
        self._asking: set[JobKey] = set()
        self._wanted: deque[JobKey] = deque()

    async def refresh(self) -> None:
        """Read the list of jobs; if that fails, the last list stays. Not on the event loop: the
        home folder may be slow."""
        try:
            entries = await in_thread(self._read)
        except registry.RegistryError as error:
            self.problem = str(error)
            return
        self.problem = None
        self.jobs = jobs.listed(entries, self.clock())

    def want(self, visible: Sequence[Listed]) -> None:
        """Ask for the state of these jobs first."""
        self._wanted = deque(job.key for job in visible if job.live or job.key not in self.health)

    def _next(self) -> Listed | None:
        """The job to ask now: the visible one that has waited longest, then one of the others."""
        now = time.monotonic()
        live = {
            job.key: job
            for job in self.jobs
            # How a job has ended does not change: only rows that are seen are asked, once.
            if (job.live or (job.key in self._wanted and job.key not in self.health))
            and job.key not in self._asking
            and (self.followed is None or not job.live or job.entry.relay_pid == 0)
        }
        due = [
            key for key in live if now - self._asked_mono_s.get(key, -ASK_AGAIN_S) >= ASK_AGAIN_S
        ]
        first = [key for key in self._wanted if key in due] or due
        if not first:
            return None
        return live[min(first, key=lambda key: self._asked_mono_s.get(key, 0.0))]

    def follow(self) -> None:
        """Take over the newest states of the followed jobs."""
        if self.followed is not None:
            self.health.update(self.followed())

    async def ask_on(self, news: Callable[[], None]) -> None:
        """Ask one job after the other until cancelled; `news` is called after each answer."""
        while True:
            job = self._next()
            if job is None:
                await asyncio.sleep(READ_S / 4)
                continue
            self._asking.add(job.key)
            self._asked_mono_s[job.key] = time.monotonic()
            entry = job.entry
            try:
                self.health[job.key] = await in_thread(lambda: self._ask(entry))  # noqa: B023 - awaited in this round
            finally:
                self._asking.discard(job.key)
            news()


HELP = (
    "Enter    the dashboard of the job under the cursor; J there comes back here",
    "/        only jobs with these words in their name, script or host; Esc: all",
    "s < >    sort by another column",
    "t        another theme",
    "q        quit",
    "",
    "HEALTH   the worst active finding; ok, or unknown while its relay is silent",
    "FINDING  its sentence; how far it is if nothing is wrong, and how it ended",
    "RANKS    ranks that report, and all ranks",
    "STEP/S   steps a second, the median of its ranks",
    "STUCK    how long no rank has made progress",
    "STARTED  when its first process started",
    "",
    "An ended job is dim: its last state and its recording can still be opened.",
)
"""The help that `?` shows."""


class PickScreen(FilteringScreen):
    """One row per job."""

    DEFAULT_CSS = """
    PickScreen #head { height: 1; }
    PickScreen #rule, PickScreen #titles, PickScreen #foot { height: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", priority=True),
        ("s,greater_than_sign,f6", "sort(1)", "sort"),
        ("less_than_sign", "sort(-1)", "sort"),
        ("escape", "clear_filter", "clear the filter"),
        ("question_mark", "help", "help"),
    ]

    def __init__(self, search: JobSearch, paint: Paint) -> None:
        super().__init__()
        self._found, self._paint = search, paint
        self._shown: dict[Hashable, Listed] = {}
        self._filter = ""
        self._sort = jobs.WORST
        self._helps = False
        self.head = LinesView(paint, "head")
        self.rule = LinesView(paint, "rule")
        self.titles = LinesView(paint, "titles")
        self.table = PickList(paint, "body")
        self.foot = LinesView(paint, "foot")
        self.keys = KeyBar(paint)
        self.input = Input(placeholder="words of the name, the script or the host", id="filter")

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield from (self.head, self.rule, self.titles, self.table)
        yield from (self.foot, self.keys, self.input)

    def show_facts(self) -> None:
        if not self.is_mounted:
            return
        if self._helps:
            self.titles.show([(("keys and columns; ? or Esc goes back", "heading"),)])
            self.table.show(range(len(HELP)), lambda index: ((HELP[index], ""),))
            return
        search, width, glyphs = self._found, self.size.width, self._paint.glyphs
        rows = jobs.in_order(jobs.passing(search.jobs, self._filter), search.health, self._sort)
        self._shown = {job.key: job for job in rows}
        table = jobs.columns(search.jobs, width)
        now = search.clock()
        self.head.show([self._head_line(width, now)])
        self.rule.show([rule_line(width, glyphs.rule)])
        self.titles.show([table.titles()])
        health = search.health
        self.table.show(
            [job.key for job in rows],
            lambda index: jobs.row(rows[index], table, health.get(rows[index].key), now, glyphs),
        )
        self._show_foot()
        self.keys.show_keys(self._keys())
        self._want_visible()

    def _head_line(self, width: int, now_unix_ns: int) -> Line:
        clock = units.clock(now_unix_ns)
        text = fit(jobs.heading(self._found.jobs), max(width - len(clock) - 8, 0))
        return (("ddtop", "title"), ("  ", ""), (text, ""), (" ", ""), (clock, "dim"))

    def _show_foot(self) -> None:
        glyphs, width = self._paint.glyphs, self.size.width
        if self._found.problem is not None:
            self.foot.show(
                [((clip(clean(self._found.problem), width, glyphs.ellipsis), "warning"),)]
            )
            return
        if not self._shown:
            text = (
                f"no job has {self._filter!r} in its name, script or host"
                if self._filter
                else jobs.HOW_TO_START
            )
            self.foot.show([((clip(clean(text), width, glyphs.ellipsis), "bold"),)])
            return
        notes = [self.table.range_note]
        if self._sort != jobs.WORST:
            notes.insert(0, f"by {self._sort}")
        if self._filter:
            notes.insert(
                0, f"{len(self._shown)} of {len(self._found.jobs)} with {clean(self._filter)}"
            )
        self.foot.show([rule_line(width, glyphs.rule, *notes)])

    def _keys(self) -> list[Key]:
        keys: list[Key] = (
            [("enter", "Enter", "attach; J there returns here")] if self._shown else []
        )
        keys += [
            ("q", "q", "quit"),
            ("slash", "/", "filter"),
            ("s", "s", "sort"),
            ("question_mark", "?", "help"),
        ]
        return (
            [*keys, ("escape", "Esc", "all jobs")] if self._filter else [*keys, ("t", "t", "theme")]
        )

    def on_cursor_list_moved(self) -> None:
        """Other rows are visible now: ask about those jobs first."""
        self._want_visible()
        self._show_foot()

    def _want_visible(self) -> None:
        first, last, _ = self.table.visible_range
        self._found.want(list(self._shown.values())[max(first - 1, 0) : last])

    def on_cursor_list_opened(self, message: PickList.Opened) -> None:
        """Pick the job under the cursor."""
        job = self._shown.get(message.key)
        if job is not None and isinstance(self.app, PickerApp):
            self.app.pick(job.entry)

    def action_help(self) -> None:
        """Show the help in place of the rows, or the rows again."""
        self._helps = not self._helps
        self.show_facts()

    def action_clear_filter(self) -> None:
        """Show all rows again, also in place of the help."""
        self._helps = False
        super().action_clear_filter()
        self.show_facts()

    def action_sort(self, step: int) -> None:
        """Sort by the next order, or by the previous one."""
        self._sort = jobs.SORTS[(jobs.SORTS.index(self._sort) + step) % len(jobs.SORTS)]
        self.show_facts()

    @property
    def filtered(self) -> Widget:
        return self.table

    def filter_by(self, text: str) -> None:
        self._filter = text
        self.show_facts()


class PickerApp(ThemedApp):
    """Shows the jobs until one is picked; `picked`: that job; None where the user quit."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "next_theme", "theme"),
    ]

    def __init__(
        self, search: JobSearch, *, glyphs: Glyphs | None = None, kept: Kept | None = None
    ) -> None:
        """`kept`: the dashboard that follows has the same theme."""
        super().__init__(kept, glyphs)
        self.picked: registry.JobEntry | None = None
        self._found = search

    def get_default_screen(self) -> PickScreen:
        """The list."""
        return PickScreen(self._found, self.paint)

    def on_mount(self) -> None:
        """Read the list and ask the jobs as long as the list is shown."""
        self.run_worker(self._refresh(), name="jobs")

    async def _refresh(self) -> None:
        await self._found.refresh()
        self.show()
        self.run_worker(self._ask(), name="health")
        while True:
            await asyncio.sleep(READ_S)
            await self._found.refresh()
            self.show()

    async def _ask(self) -> None:
        # The first rows are drawn meanwhile: the modules that follow jobs take as long to import.
        await asyncio.sleep(0.1)
        if self._found.follow_jobs is not None:
            self._found.followed = await in_thread(self._found.follow_jobs)
            self.set_interval(FOLLOW_S, self._follow)
        await asyncio.gather(*(self._found.ask_on(self.show) for _ in range(ASKERS)))

    def _follow(self) -> None:
        self._found.follow()
        self.show()

    def show(self) -> None:
        """Draw what is known now."""
        screen = self.screen_stack[0] if self.screen_stack else None
        if isinstance(screen, PickScreen):
            screen.show_facts()

    def pick(self, entry: registry.JobEntry) -> None:
        """End with this job."""
        self.picked = entry
        self.exit()

    def action_next_theme(self) -> None:
        """Switch to the next theme."""
        name = theme_after(self.paint.palette.name)
        self.use_theme(name)
        # In a thread: the home may be on a file server.
        self.run_worker(
            partial(self.kept.save, msgspec.structs.replace(self.kept.setup, theme=name)),
            thread=True,
        )
