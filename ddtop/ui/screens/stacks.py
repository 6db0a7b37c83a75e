"""The merged stacks of all ranks. The page opens at once and fills as answers arrive."""

from __future__ import annotations

import time
from typing import ClassVar

from textual.binding import BindingType

from ddtop.present import help_text
from ddtop.present.text import Line
from ddtop.ui.screens.page import PageScreen
from ddtop.ui.session import Session
from ddtop.ui.stack_request import AskedStacks, ShapedStacks
from ddtop.ui.widgets.lines import Key

POLL_S = 0.1
"""Answers are shown after this time at most. The app itself refreshes only every half second."""


class StacksScreen(ShapedStacks, PageScreen):
    """Asks for the stacks of `ranks` (empty: all) and shows them; None: shows the last ones without
    asking.

    `by_signal`: the first request is for stacks by signal, to which the user has agreed.
    """

    topic = help_text.STACKS
    BINDINGS: ClassVar[list[BindingType]] = [
        ("v", "change_view", "classes or tree"),
        ("T", "threads", "other threads"),
        ("f", "frames", "all frames"),
        ("d", "ask_again", "ask again"),
        ("D", "ask_all", "ask all"),
    ]

    def __init__(
        self, session: Session, ranks: tuple[int, ...] | None, by_signal: bool = False
    ) -> None:
        super().__init__(session)
        self._by_signal = by_signal
        self.asked = AskedStacks(session, ranks)

    def on_mount(self) -> None:
        """Ask, and check for answers more often than the app does."""
        super().on_mount()
        self.set_interval(POLL_S, self._poll)
        if self.asked.ranks is not None:
            self._ask(self.asked.ranks, self._by_signal)

    def page_lines(self, width: int) -> list[Line]:
        """The answers so far, and what is missing."""
        return self.asked.lines(width)

    def extra_keys(self) -> tuple[Key, ...]:
        return (*self.asked.shape_keys(), ("d", "d", "ask again"), ("D", "D", "ask all"))

    def _poll(self) -> None:
        if self.asked.due():
            began = time.monotonic()
            self.session.refresh()
            self.show_facts()
            self.asked.looked(time.monotonic() - began)

    def _ask(self, ranks: tuple[int, ...], by_signal: bool = False) -> None:
        self.asked.asking(ranks)
        self.body.scroll_home(animate=False)
        self.run_worker(self._answered(by_signal), name="ask", exclusive=True)
        self.show_facts()

    async def _answered(self, by_signal: bool) -> None:
        await self.asked.ask(by_signal)
        self.show_facts()

    def action_ask_again(self) -> None:
        """Ask the same ranks again, or all if none were asked here."""
        self._ask(self.asked.ranks or ())

    def action_ask_all(self) -> None:
        """Ask all ranks."""
        self._ask(())

    def show_again(self) -> None:
        self.show_facts()
