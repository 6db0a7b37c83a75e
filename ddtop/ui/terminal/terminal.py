"""How the dashboard treats a real terminal: few bytes, no waiting for slow terminals, suspend and
resume, and the terminal's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import locale
import os
import queue
import shutil
import signal
import sys
import termios
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import RenderableType
from textual import events
from textual._xterm_parser import XTermParser
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.drivers import linux_driver
from textual.geometry import Offset, Size
from textual.screen import Screen, ScreenResultType
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from ddtop.present.text import Glyphs, glyphs_for
from ddtop.ui.terminal.selection import letter_at

if TYPE_CHECKING:
    from ddtop.ui.terminal.differ import Differ


# -- Reads Esc and the key after it as two keys
#
# Terminals send Alt+key as Esc and the key, and Textual reads them as Alt+key (or drops the Esc)
# when both arrive within a tenth of a second. ddtop has no keys with Alt. But a user who leaves a
# page and presses the next key at once, or whose connection delivers several keys in one packet,
# means two keys. The overridden parts are not public: if they are not as expected, Textual's own
# parser is used.


ESC = "\x1b"
_PARAMETERS = ["self", "sequence", "alt"]


class Parser(XTermParser):
    """Textual's parser without Alt keys."""

    def _sequence_to_key_events(self, sequence: str, alt: bool = False) -> Iterable[events.Key]:
        keys = [*super()._sequence_to_key_events(sequence)]
        # The beginning of a longer sequence means nothing yet.
        if keys and len(sequence) == 2 and sequence[0] == ESC:
            alt, keys = True, [*super()._sequence_to_key_events(sequence[1])]
        if alt:
            yield events.Key("escape", ESC)
        yield from keys


def install() -> bool:
    """Make the driver use this parser; False if this release of Textual is built differently."""
    own = getattr(XTermParser, "_sequence_to_key_events", None)
    if (
        own is None
        or list(inspect.signature(own).parameters) != _PARAMETERS
        or not hasattr(linux_driver, "XTermParser")
    ):
        return False
    linux_driver.__dict__["XTermParser"] = Parser
    return True


# -- A screen that ignores outdated sizes


OVERLAY = "overlay"
"""The class of a screen at the bottom of the one below, whose rows stay visible."""


class SizedScreen(Screen[ScreenResultType]):
    """A screen whose size is always that of the terminal.

    When a screen is shown again during a change of size, Textual lays it out in both sizes. Each
    layout reports its size to the screen, and each report causes a layout, so the two alternate
    without end and use a whole core. And of two size events that wait, Textual keeps the later
    one. That may be the report of an earlier layout, and then the terminal's own size is lost.
    """

    empty = False
    """Whether its widgets have no lines yet: until then the terminal keeps the page before."""

    def show_facts(self) -> None:
        """Draw what is known now."""
        raise NotImplementedError

    def on_mount(self) -> None:
        self.draw_first()

    def on_resize(self) -> None:
        """Another width needs other lines."""
        if not self.empty:
            self.call_after_refresh(self.show_facts)

    def on_screen_resume(self) -> None:
        """Draw the facts that changed while another screen was on top."""
        if not self.empty:
            self.call_after_refresh(self.show_facts)

    def get_widget_and_offset_at(self, x: int, y: int) -> tuple[Widget | None, Offset | None]:
        """The letter under the pointer, for text that is selected with the mouse."""
        return letter_at(self, x, y)

    def _forward_event(self, event: events.Event) -> None:
        # Who has drawn the mouse over text has selected it, and not clicked on where it ended.
        if not (isinstance(event, events.Click) and self.selections):
            super()._forward_event(event)

    def draw_first(self) -> None:
        """Draw it as soon as the widgets have their sizes, and show nothing before."""
        self.empty = True
        self.call_after_refresh(self.show_facts)
        # Once more: what was drawn may have changed the sizes.
        self.call_after_refresh(self.call_after_refresh, self._filled)

    def _filled(self) -> None:
        self.show_facts()
        self.empty = False
        self.refresh()

    def _screen_resized(self, size: Size) -> None:
        """Called by Textual with the size in an event, which may be outdated."""
        now = self.app.size
        if size == now or self.size != now:
            super()._screen_resized(now)


# -- The screen for a terminal that is too small: says so, and which size is needed


SMALLEST = Size(40, 10)
"""Below this size the verdict and a row of the table do not fit."""


class SmallScreen(SizedScreen[None]):
    """Covers the other screens until the terminal is large enough."""

    DEFAULT_CSS = """
    SmallScreen Static { width: 100%; height: auto; }
    """

    @staticmethod
    def wanted(size: Size) -> bool:
        """Whether the terminal is too small."""
        return size.width < SMALLEST.width or size.height < SMALLEST.height

    def compose(self) -> ComposeResult:
        """One sentence with the most important word first: perhaps only that word fits."""
        yield Static(markup=False)

    def show_facts(self) -> None:
        size = self.app.size
        wanted = f"{SMALLEST.width}x{SMALLEST.height}"
        self.query_one(Static).update(
            f"too small: {size.width}x{size.height}, ddtop needs {wanted}; q quits"
        )


# -- The terminal under the dashboard


OFF_SWITCH = "DDTOP_DIFFER"
"""`0` in this variable: Textual draws by itself, for terminals that show remains of earlier
pictures."""

MOST_WAITING = 3
"""Writes that may wait for the terminal; Textual stops the event loop at 30. One frame is up to
three of them. Asking the terminal for its cursor instead fails where terminals never answer."""

CATCH_UP_S = 0.1
GONE_S = 1.0
"""How often we check whether the terminal still exists; normally a signal reports its end."""

CLEAN = "\x1b(B\x0f\x1b[r\x1b[m\x1b[2J"
"""Resets character set, scroll region and pen, whatever was written to the terminal, and clears
it."""

SMALL_ACTIONS = frozenset({"quit", "redraw", "suspend_process"})


class TerminalApp(App[None]):
    """An app that treats its terminal and its shell politely."""

    TITLE = "ddtop"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layers: base; background: $background; overflow: hidden; }
    .overlay { background: transparent; align-vertical: bottom; }
    .overlay #head { display: none; }
    .overlay #body { height: auto; max-height: 60%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", priority=True, show=False),
        Binding("ctrl+l", "redraw", "redraw everything", show=False),
        Binding("ctrl+z", "suspend_process", "stop; fg continues", show=False, priority=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.animation_level = "none"
        self.ended_by: signal.Signals | None = None
        self._differ, self._without_differ = _differ()
        self._drawn_screen: Screen[Any] | None = None
        self._catching_up: Timer | None = None

    @property
    def differ_failure(self) -> str | None:
        """Why whole lines are sent instead of changed cells; None if changed cells are sent."""
        return self._without_differ if self._differ is None else self._differ.failure

    @property
    def waiting_writes(self) -> int:
        """Writes that the terminal has not taken yet.

        Textual does not expose them, so this reads its driver's queue; a driver without that queue
        is never behind.
        """
        waiting = _queue(self)
        return 0 if waiting is None else waiting.qsize()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run until the user quits.

        Raises: SystemExit: 128 plus the number of the signal that ended it, after the terminal has
        been restored.
        """
        # Esc and an immediate key are two keys, if this release of Textual allows it.
        with contextlib.suppress(ImportError, AttributeError, TypeError, ValueError):
            install()
        with whole_writes():
            result: Any = super().run(*args, **kwargs)  # Every picture is written here.
        if self.ended_by is not None:
            raise SystemExit(128 + self.ended_by)
        return result

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        """The only method through which Textual writes to its driver."""
        if isinstance(screen, SizedScreen) and screen.empty:
            return
        if renderable is not None and self.waiting_writes > MOST_WAITING:
            if self._catching_up is None:
                self._catching_up = self.set_interval(CATCH_UP_S, self._catch_up)
            return
        if self._differ is not None and renderable is not None:
            if screen is not self._drawn_screen:
                # People change the page to get rid of what other programs wrote to their terminal.
                self._differ.forget()
                self._drawn_screen = screen
            renderable = self._differ.over(renderable)
        super()._display(screen, renderable)

    def _catch_up(self) -> None:
        """Draw the skipped pictures as soon as the terminal has taken the earlier writes."""
        if self.waiting_writes == 0 and self._catching_up is not None:
            self._catching_up.stop()
            self._catching_up = None
            self._refresh_top()

    def _refresh_top(self) -> None:
        if self.screen_stack:
            self.screen_stack[-1].refresh()

    def _draw_all(self) -> None:
        if self._differ is not None:
            self._differ.forget()
        self._refresh_top()

    def action_redraw(self) -> None:
        """Draw everything again: another program wrote to the terminal."""
        if (
            self._driver is not None
            and not self.is_headless
            and self.waiting_writes <= MOST_WAITING
        ):
            self._driver.write(CLEAN)
        self._draw_all()

    def on_resize(self) -> None:
        """Forget the picture: terminals move text when they are resized, even if the old size
        returns before the next picture."""
        if self._differ is not None:
            self._differ.forget()
        self.call_later(self._judge_size)

    def _judge_size(self) -> None:
        self._catch_last_size()
        self._refresh_top()
        if not self.screen_stack:
            return
        shown = isinstance(self.screen_stack[-1], SmallScreen)
        if SmallScreen.wanted(self.size) and not shown:
            self.push_screen(SmallScreen())
        elif shown and not SmallScreen.wanted(self.size):
            self.pop_screen()

    def _catch_last_size(self) -> None:
        """Textual reads the size in its signal handler: a handler that another one interrupts
        reports the older size last."""
        if self.is_headless or self._driver is None:
            return
        now = Size(*shutil.get_terminal_size((self.size.width, self.size.height)))
        if now and now != self.size:
            self.post_message(events.Resize(now, now))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """On a terminal that is too small, only a few keys work."""
        if (
            self.screen_stack
            and isinstance(self.screen_stack[-1], SmallScreen)
            and action not in SMALL_ACTIONS
        ):
            return False
        return super().check_action(action, parameters)

    def on_mount(self) -> None:
        """Take the signals over from Textual: its handlers may run in the middle of any code, ours
        run between two events."""
        if (
            self.is_headless
            or self._driver is None
            or threading.current_thread() is not threading.main_thread()
        ):
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._leave, number)
        if self._driver.can_suspend:
            loop.add_signal_handler(signal.SIGTSTP, self.action_suspend_process)
            loop.add_signal_handler(signal.SIGCONT, self._continued)
        if _has_terminal():
            self.set_interval(GONE_S, self._look_for_terminal)

    def _leave(self, number: signal.Signals) -> None:
        self.ended_by = number
        if not _has_terminal():
            _abandon_terminal(_queue(self))
        self.exit()

    def _look_for_terminal(self) -> None:
        """End with the terminal: under nohup there is no SIGHUP, and the app would read a closed
        terminal for ever."""
        if self.ended_by is None and not _has_terminal():
            self._leave(signal.SIGHUP)

    def action_suspend_process(self) -> None:
        """Restore the terminal and stop, as Ctrl+Z does everywhere; `fg` continues."""
        if self.is_headless or self._driver is None or not self._driver.can_suspend:
            return
        self._driver.suspend_application_mode()
        # The signal's default action. The kernel skips it if there is no shell that could continue
        # us.
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTSTP, self.action_suspend_process)
        self._driver.resume_application_mode()
        self._draw_all()

    def run_suspended(self, program: Callable[[], str | None]) -> str | None:
        """Leave the terminal to a program until it ends; returns the program's message."""
        if self.is_headless or self._driver is None or not self._driver.can_suspend:
            return "this terminal cannot be handed to another program"
        with self.suspend():
            message = program()
        self._draw_all()
        return message

    def _continued(self) -> None:
        """Set the terminal up again after SIGSTOP, which no handler sees: the shell may have
        changed it."""
        if self._driver is not None and not _is_raw():
            writer = getattr(self._driver, "_writer_thread", None)
            if writer is None or writer.is_alive():
                self._driver.suspend_application_mode()
            self._driver.resume_application_mode()
        self._draw_all()


def glyphs_here() -> Glyphs:
    """The glyphs that this terminal can show."""
    return glyphs_for(locale.getpreferredencoding(False), os.environ.get("TERM", ""))


def _differ() -> tuple[Differ | None, str | None]:
    """The differ, or the reason why there is none."""
    if os.environ.get(OFF_SWITCH) == "0":
        return None, f"{OFF_SWITCH}=0"
    try:
        # All uses of the library's private parts are in that module: a release without them fails
        # here.
        from ddtop.ui.terminal import differ

        reason = differ.unfit()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        return None, f"{type(error).__name__}: {error}"
    return (differ.Differ(), None) if reason is None else (None, reason)


@contextlib.contextmanager
def whole_writes() -> Iterator[None]:
    """Buffer the output. Without a buffer (PYTHONUNBUFFERED) a stop can cut a write short, and
    the rest of the picture would be lost."""
    file = sys.__stderr__
    if file is None or not isinstance(file.buffer, io.RawIOBase):
        yield
        return
    # The stream that the driver uses. It is not closed: its thread may be blocked in a write to a
    # terminal that takes nothing.
    whole = open(file.fileno(), "w", encoding=file.encoding, errors=file.errors, closefd=False)  # noqa: SIM115
    vars(sys)["__stderr__"] = whole
    try:
        yield
    finally:
        vars(sys)["__stderr__"] = file


def _queue(app: App[None]) -> queue.Queue[str | None] | None:
    found = getattr(getattr(getattr(app, "_driver", None), "_writer_thread", None), "_queue", None)
    return found if isinstance(found, queue.Queue) else None


def _has_terminal() -> bool:
    return sys.__stdin__ is not None and os.isatty(sys.__stdin__.fileno())


def _is_raw() -> bool:
    """Whether the terminal is still in raw mode, as the driver set it."""
    try:
        attributes = (
            termios.tcgetattr(sys.__stdin__.fileno()) if sys.__stdin__ is not None else None
        )
    except termios.error:
        return True
    return attributes is None or not attributes[3] & termios.ICANON


def _abandon_terminal(waiting: queue.Queue[str | None] | None) -> None:
    """Abandon a terminal that is gone: replace it by /dev/null and drop the writes that will
    never be written."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        with contextlib.suppress(OSError):
            os.dup2(nothing, stream)
    os.close(nothing)
    while waiting is not None:
        try:
            waiting.get_nowait()
        except queue.Empty:
            return
