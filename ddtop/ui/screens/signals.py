"""Sends a signal to ranks, or takes their stacks by signal: a menu, then a question, and nothing is
sent before the answer."""

from __future__ import annotations

import signal
from typing import ClassVar

from textual import events
from textual.binding import BindingType

from ddtop.model.facts import RankFacts
from ddtop.present.help_text import (
    SIGNALS,
    STACKS_SIGNAL,
    menu_lines,
    question_lines,
    reachable,
    why_no_signals,
)
from ddtop.present.text import Line, clean, wrap
from ddtop.ui.screens.page import PageScreen
from ddtop.ui.screens.stacks import StacksScreen
from ddtop.ui.session import Session
from ddtop.ui.terminal.terminal import OVERLAY
from ddtop.ui.widgets.lines import Key


class SignalsScreen(PageScreen):
    """Sends one signal to these ranks if the user answers the question with `y`."""

    SEARCHED = False
    DEFAULT_CLASSES = OVERLAY
    BINDINGS: ClassVar[list[BindingType]] = [
        ("up,k", "move(-1)", "up"),
        ("down,j", "move(1)", "down"),
    ]

    def __init__(self, session: Session, ranks: tuple[int, ...]) -> None:
        super().__init__(session)
        self.numbers = ranks
        self.cursor = 0
        self.chosen: tuple[signal.Signals | None, tuple[RankFacts, ...]] | None = None
        # The screen itself handles the keys: there is nothing to scroll.
        self.body.can_focus = False

    def page_lines(self, width: int) -> list[Line]:
        """The menu, the question, or the reason why there is neither."""
        why = self._why_not()
        if why is not None:
            return [((text, "warning"),) for text in wrap(clean(why), width)]
        glyphs = self.session.paint.glyphs
        if self.chosen is None:
            return menu_lines(self._ranks(), self.cursor, width, glyphs)
        return question_lines(self.chosen[1], self.chosen[0], width, glyphs)

    def extra_keys(self) -> tuple[Key, ...]:
        if self._why_not() is not None:
            return ()
        if self.chosen is not None:
            return (("y", "y", "send it"), ("n", "n", "cancel"))
        return (("down", "↑↓", "move"), ("enter", "Enter", "choose, then confirm"))

    def _ranks(self) -> tuple[RankFacts, ...]:
        """The ranks that a signal can reach now."""
        snapshot = self.session.newest.snapshot
        found = (snapshot.rank(number) for number in self.numbers) if snapshot is not None else ()
        return tuple(rank for rank in found if reachable(rank))

    def _why_not(self) -> str | None:
        look = self.session.newest
        if look.snapshot is None:
            return "nothing is known about the job yet"
        named = [look.snapshot.rank(number) for number in self.numbers]
        live = look.snapshot.live and look.snapshot.ended is None
        if look.recording:
            return "this is a recording: no process can get a signal"
        why = why_no_signals(self.session.readonly, named, live)
        return why or (
            "you are looking at the past: a signal can only be sent in the present"
            if look.travelled
            else None
        )

    def action_move(self, steps: int) -> None:
        """Move to another signal."""
        self.cursor = (self.cursor + steps) % len(SIGNALS)
        self.show_facts()

    def choose(self) -> None:
        """Ask for confirmation."""
        if self._why_not() is None:
            self.chosen = (SIGNALS[self.cursor][0], self._ranks())
            self.show_facts()

    def on_click(self, event: events.Click) -> None:
        """A click on a signal picks it, a double click asks for confirmation; no click sends
        anything."""
        line = self.clicked_line(event)
        if line is None or self.chosen is not None or self._why_not() is not None:
            return
        at = line - len(self.page_lines(self.body.reading_room)) + len(SIGNALS)
        if 0 <= at < len(SIGNALS):
            self.action_move(at - self.cursor)
            if event.chain == 2:
                self.choose()

    def on_key(self, event: events.Key) -> None:
        """Only `y` sends; while a question is open every other key means no.

        These are not bindings: Textual looks those up after the next key has arrived, so fast
        typing would hit the wrong one.
        """
        if self.chosen is None and event.key != "enter":
            return
        event.stop()
        event.prevent_default()
        if self.chosen is None:
            self.choose()
            return
        (what, ranks), self.chosen = self.chosen, None
        if event.key != "y" or self._why_not() is not None:
            self.show_facts()
        elif what is STACKS_SIGNAL:
            numbers = tuple(rank.rank for rank in ranks)
            self.app.switch_screen(StacksScreen(self.session, numbers, by_signal=True))
        else:
            # Not a worker of this screen: it would end with the screen, before the answer arrives.
            self.app.run_worker(send_to(self.session, ranks, what), name="signal")
            self.dismiss(None)


async def send_to(session: Session, ranks: tuple[RankFacts, ...], what: signal.Signals) -> None:
    """Send the signal to one rank after the other; the foot shows the result for some seconds."""
    newest = session.newest.snapshot
    results = []
    for rank in ranks:
        if newest is None or newest.rank(rank.rank).pid != rank.pid:
            results.append(f"rank {rank.rank} is another process now: no signal was sent")
            continue
        results.append(await session.source.send_signal(rank.rank, what.value))
    session.say(results[0] if len(results) == 1 else _several(results, what))


def _several(results: list[str], what: signal.Signals) -> str:
    """One sentence for many ranks: how many signals were sent, and the first one that was not."""
    sent = sum(text.startswith("sent ") for text in results)
    failed = next((text for text in results if not text.startswith("sent ")), "")
    return f"sent {what.name} to {sent} of {len(results)} ranks" + (f"; {failed}" if failed else "")
