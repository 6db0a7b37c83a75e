"""The dashboard: asks its source twice a second and lets the screen on top show what is new."""

from __future__ import annotations

import locale
import os
from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.filter import LineFilter, Monochrome
from textual.theme import Theme
from textual.timer import Timer

from ddtop.ui.present.glyphs import Glyphs, glyphs_for
from ddtop.ui.render.palette import ANSI, DARK, LIGHT, MONO, PALETTES, Palette
from ddtop.ui.screens.facts import FactsScreen
from ddtop.ui.screens.help import HelpScreen
from ddtop.ui.screens.main import MainScreen
from ddtop.ui.session import Session
from ddtop.ui.source import Source

ARRIVE_S = 0.02


class DdtopApp(App[None]):
    """A live view of one job.

    `clock` gives unix ns and is only used until the first records are there; from then on time is the job's own.
    """

    TITLE = "ddtop"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layers: base; background: $background; overflow: hidden; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", priority=True, show=False),
        Binding("question_mark", "help", "help"),
        Binding("p", "freeze", "freeze"),
        Binding("plus,equals_sign", "interval(1)", "look less often"),
        Binding("minus", "interval(-1)", "look more often"),
        Binding("t", "next_theme", "theme"),
        Binding("left_square_bracket", "travel(-5)", "5 s back"),
        Binding("right_square_bracket", "travel(5)", "5 s on"),
        Binding("left_curly_bracket", "travel(-60)", "a minute back"),
        Binding("right_curly_bracket", "travel(60)", "a minute on"),
        Binding("backslash", "travel_back", "to the end"),
    ]

    def __init__(
        self,
        source: Source,
        job: str,
        *,
        readonly: bool = False,
        clock: Callable[[], int] | None = None,
        glyphs: Glyphs | None = None,
    ) -> None:
        super().__init__()
        self.animation_level = "none"
        glyphs = glyphs or glyphs_for(locale.getpreferredencoding(False))
        self.session = Session(source, job, theme=self._first_theme(), glyphs=glyphs, clock=clock, readonly=readonly)
        self._ticker: Timer | None = None
        self._arrival: Timer | None = None
        for palette in (PALETTES[DARK], PALETTES[LIGHT]):
            self.register_theme(_theme(palette))
        self._use_palette()

    def _first_theme(self) -> str:
        """Colours where they are wanted; with sixteen of them the terminal's own are the legible ones."""
        if os.environ.get("NO_COLOR"):
            return MONO
        return ANSI if self.console.color_system == "standard" else DARK

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Textual's filters, without its greyscale for NO_COLOR where we bring no colours of our own.

        That filter makes black out of the terminal's default colour: on a black terminal nothing would be seen.
        """
        filters = super().get_line_filters()
        if self.session.paint.palette.background is not None:
            return filters
        return [one for one in filters if not isinstance(one, Monochrome)]

    def get_default_screen(self) -> MainScreen:
        """The ranks."""
        return MainScreen(self.session)

    def on_mount(self) -> None:
        """Paint first, connect then: the worker starts after the first picture."""
        self._ticker = self.set_interval(self.session.interval_s, self.tick)
        self.run_worker(self.session.source.run(), name="feed")

    def tick(self) -> None:
        """One refresh; the picture is skipped while the terminal has not taken the last one."""
        self.session.refresh()
        if not _behind(self):
            self._show()

    def _show(self) -> None:
        # A tick may still come while the app takes its screens down.
        screen = self.screen_stack[-1] if self.screen_stack else None
        if isinstance(screen, FactsScreen):
            screen.show_facts()

    def action_help(self) -> None:
        """Open the help."""
        self.push_screen(HelpScreen(self.session))

    def action_freeze(self) -> None:
        """Hold the picture, or go on."""
        self.session.freeze()
        self._show()

    def action_interval(self, steps: int) -> None:
        """Look more or less often."""
        self.session.change_interval(steps)
        if self._ticker is not None:
            self._ticker.stop()
        self._ticker = self.set_interval(self.session.interval_s, self.tick)
        self._show()

    def action_travel(self, seconds: float) -> None:
        """Go back or forth in time."""
        self.session.travel(seconds)
        self._arrive_soon()

    def action_travel_back(self) -> None:
        """To what is true now, or to the end of a recording."""
        self.session.travel_back()
        self._arrive_soon()

    def _arrive_soon(self) -> None:
        """Draw that moment, once for several keys: of a large job it takes longer than a held key repeats."""
        if self._arrival is None:
            self._arrival = self.set_timer(ARRIVE_S, self._arrive)

    def _arrive(self) -> None:
        self._arrival = None
        self.session.refresh()
        self._show()

    def action_next_theme(self) -> None:
        """The next theme, on every screen."""
        self.session.next_theme()
        self._use_palette()
        for screen in self.screen_stack:
            if isinstance(screen, FactsScreen):
                screen.repaint()
        self._show()

    def _use_palette(self) -> None:
        name = _theme_name(self.session.paint.palette)
        # Older releases of Textual call it otherwise; the text is legible on any of them.
        self.theme = next(one for one in (name, "textual-ansi", "textual-dark") if one in self.available_themes)


def _theme_name(palette: Palette) -> str:
    return "ansi-dark" if palette.background is None else f"ddtop-{palette.name}"


def _theme(palette: Palette) -> Theme:
    return Theme(
        name=_theme_name(palette),
        primary=palette["spark"].color.name if palette["spark"].color else "#5fafd7",
        foreground=palette.foreground,
        background=palette.background,
        surface=palette.background,
        panel=palette.background,
        dark=palette.name == DARK,
    )


def _behind(app: App[None]) -> bool:
    """The terminal has not yet taken what was written before.

    On a slow line the frames would queue up, and after 30 of them the event loop would block. Textual does not tell, so
    this looks into its driver; a driver without that queue is never behind.
    """
    writer = getattr(getattr(app, "_driver", None), "_writer_thread", None)
    queue = getattr(writer, "_queue", None)
    return queue is not None and bool(queue.qsize() > 0)
