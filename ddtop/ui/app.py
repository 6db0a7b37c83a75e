"""The dashboard: asks its source for records twice a second and redraws the screen on top."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.timer import Timer

from ddtop.follow.look import Eager, Source
from ddtop.present.help_text import ACTIONS
from ddtop.present.text import Glyphs
from ddtop.ui import style
from ddtop.ui.commands import Choice
from ddtop.ui.screens.main import MainScreen
from ddtop.ui.screens.menus import CommandsScreen, HelpScreen
from ddtop.ui.screens.page import FactsScreen
from ddtop.ui.session import Kept, Programs, Session
from ddtop.ui.source_place import source_place
from ddtop.ui.terminal.files import editor_command, run_editor, save_screen
from ddtop.ui.terminal.terminal import OVERLAY
from ddtop.ui.themed_app import ThemedApp

ARRIVE_S = 0.02


class DdtopApp(ThemedApp):
    """A live view of one job.

    `clock` gives unix ns and is only used until the first records are there; from then on time is
    the job's own. `kept`: the user's settings, and the file they are kept in. `from_list`: there is
    a list of jobs to go back to. `to_list`, after the app has ended: the user wants to go back to
    it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            action.keys,
            action.run.removeprefix("app."),
            action.label,
            priority=action.name == "palette",
            id=action.name,
        )
        for action in ACTIONS
        if action.run.startswith("app.")
    ]

    def __init__(
        self,
        source: Source,
        job: str,
        *,
        readonly: bool = False,
        clock: Callable[[], int] | None = None,
        glyphs: Glyphs | None = None,
        from_list: bool = False,
        kept: Kept | None = None,
        programs: Programs | None = None,
    ) -> None:
        super().__init__(kept, glyphs)
        self.to_list = False
        self._from_list = from_list
        self.session = Session(
            source,
            job,
            paint=self.paint,
            clock=clock,
            readonly=readonly,
            setup=self.kept.setup,
            programs=programs,
        )
        if self.kept.problem:
            self.session.say(self.kept.problem)
        self._ticker: Timer | None = None
        self._arrival: Timer | None = None

    def get_default_screen(self) -> MainScreen:
        """The ranks."""
        return MainScreen(self.session)

    def on_mount(self) -> None:
        """Paint first, then connect: the worker starts after the first picture."""
        self.set_keymap(self.paint.keymap(self.session.setup.keys))
        self._ticker = self.set_interval(self.session.interval_s, self.tick)
        if isinstance(self.session.source, Eager):
            self.session.source.on_news = self._arrive_soon
        self.run_worker(self.session.source.run(), name="feed")

    def tick(self) -> None:
        """Refresh once; the picture is skipped while the terminal has not taken the last one."""
        self.session.refresh()
        if self.waiting_writes == 0:
            self._show()
        if self.session.setup != self.kept.setup:
            # In a thread: the home may be on a file server.
            self.run_worker(partial(self.kept.save, self.session.setup), name="setup", thread=True)

    def on_unmount(self) -> None:
        """Save the settings that were changed last."""
        self.kept.save(self.session.setup)

    def _show(self) -> None:
        # A tick may still come while the app takes its screens down.
        over = bool(self.screen_stack) and self.screen_stack[-1].has_class(OVERLAY)
        for screen in self.screen_stack[-2 if over else -1 :]:
            if isinstance(screen, FactsScreen):
                screen.show_facts()

    def action_to_list(self) -> None:
        """Leave this job for the list of jobs, where ddtop began with it."""
        if self._from_list:
            self.to_list = True
            self.exit()
        else:
            self.session.say(
                "there is no list of jobs to go back to; ddtop shows one if several jobs are live"
            )
            self._show()

    def action_next_program(self) -> None:
        """Go to the next program of the system."""
        jobs = [job.entry.job for job, _ in self.session.program_rows()]
        if self.session.job in jobs:
            self.action_program(jobs[(jobs.index(self.session.job) + 1) % len(jobs)])
        else:
            self.session.say("this job stands alone: no other live job here belongs to it")
            self._show()

    def action_program(self, name: str) -> None:
        """Leave this job for that program of its system."""
        for job, _ in self.session.program_rows():
            if job.entry.job == name != self.session.job:
                self.session.programs.chosen = job.entry
                self.exit()

    def action_help(self) -> None:
        """Open the help."""
        self.push_screen(HelpScreen(self.session))

    def action_palette(self) -> None:
        """Open the command palette."""
        if not isinstance(self.screen, CommandsScreen):
            self.push_screen(CommandsScreen(self.session), self._run_command)

    async def _run_command(self, command: Choice | None) -> None:
        if command is None:
            return
        if not command.run.startswith("app."):
            await self.action_on_main(command.run)
        else:
            await self.run_action(command.run, self.screen)

    async def action_on_main(self, run: str) -> None:
        """Close all pages and run the action on the main screen, where its effect is visible."""
        while len(self.screen_stack) > 1:
            self.pop_screen()
        await self.run_action(run, self.screen)

    def action_save_screen(self, kind: str) -> None:
        """Save the screen as a file."""
        try:
            path = save_screen(self, self.session.job, kind, time.time_ns())
        except OSError as error:
            self.session.say(f"the screen cannot be saved: {error}")
        else:
            self.session.say(f"saved {path}")
        self._show()

    def action_edit(self, rank: int | None) -> None:
        """Open the line that this rank is at in the person's editor."""
        place = source_place(self.session, rank)
        if place.why:
            self.session.say(place.why)
        else:
            command = editor_command(place.file, place.line)
            problem = self.run_suspended(partial(run_editor, command))
            if problem or place.note:
                self.session.say(problem or place.note)
        self._show()

    def action_freeze(self) -> None:
        """Freeze the picture, or unfreeze it."""
        self.session.freeze()
        self._show()

    def action_interval(self, steps: int) -> None:
        """Refresh more or less often."""
        self.session.change_interval(steps)
        if self._ticker is not None:
            self._ticker.stop()
        self._ticker = self.set_interval(self.session.interval_s, self.tick)
        self._show()

    def action_travel(self, seconds: float) -> None:
        """Go back or forward in time."""
        self.session.travel(seconds)
        self._arrive_soon()

    def action_travel_to(self, unix_ns: int) -> None:
        """Go to that moment."""
        self.session.travel_to(unix_ns)
        self._arrive_soon()

    def action_travel_to_critical(self, steps: int) -> None:
        """Go to where a critical finding began."""
        self.session.travel_to_critical(steps)
        self._arrive_soon()

    def action_travel_back(self) -> None:
        """Return to the present, or to the end of a recording."""
        self.session.travel_back()
        self._arrive_soon()

    def _arrive_soon(self) -> None:
        """Draw the chosen moment, once for several keys: for a large job drawing takes longer than
        the repeat interval of a held key."""
        if self._arrival is None:
            self._arrival = self.set_timer(ARRIVE_S, self._arrive)

    def _arrive(self) -> None:
        self._arrival = None
        self.session.refresh()
        self._show()

    def action_next_theme(self) -> None:
        """Switch every screen to the next theme."""
        self.action_theme_to(style.theme_after(self.paint.palette.name))

    def action_theme_to(self, name: str) -> None:
        """Switch every screen to this theme."""
        self.use_theme(name)
        self.session.prefer(theme=name)
        self.session.say(f"theme {name}")
        self._show()
