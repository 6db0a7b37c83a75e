"""The map: one cell per rank."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult

from ddtop.diagnosis.rank_state import culprits
from ddtop.follow.look import Look
from ddtop.model.facts import Snapshot
from ddtop.present import help_text
from ddtop.present.filter import describe_filter, parse_filter
from ddtop.present.map import Levelled, metrics_of, scaled
from ddtop.present.numbers import Number
from ddtop.present.text import Line
from ddtop.ui.rows import LevelLook, StateLook, cursor_line, legend_line, levels_line
from ddtop.ui.session import Session
from ddtop.ui.views.view import Coded, View
from ddtop.ui.widgets.lines import Key, LinesView
from ddtop.ui.widgets.map_grid import MapGrid
from ddtop.words import units


class MapView(View):
    """The counts of states, the cells, and the rank under the cursor."""

    DEFAULT_CSS = """
    MapView #legend, MapView #cursor { height: 1; }
    """
    topic: ClassVar[str] = help_text.MAP

    def __init__(self, session: Session, coded: Coded) -> None:
        super().__init__(session)
        self.coded = coded
        self.metric: Number | None = None
        self._levelled = Levelled()
        self._by_state = StateLook(session.paint.glyphs)
        self._by_number = LevelLook(session.paint.glyphs)
        self.legend = LinesView(session.paint, "legend")
        self.grid = self.target = MapGrid(session.paint, "cells")
        self.cursor = LinesView(session.paint, "cursor")

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield from (self.legend, self.grid, self.cursor)

    def show(self, look: Look, snapshot: Snapshot) -> None:
        self.coded.take(look, snapshot)
        states, glyphs, width = self.coded.codes, self.session.paint.glyphs, self.size.width
        if self.metric is None or self.metric not in metrics_of(snapshot):
            self.legend.show([legend_line(snapshot, states, width, glyphs)])
            self._by_state.take(states)
            self.grid.show_ranks(self.coded.hosts, self._by_state)
        else:
            self._by_number.take_levels(self._levelled.take(self.metric, snapshot, states), states)
            self.legend.show([levels_line(snapshot, self._by_number, width)])
            self.grid.show_ranks(self.coded.hosts, self._by_number)
        self._show_cursor(snapshot)

    def colour_by(self, metric: Number | None) -> None:
        """Colour the cells by that number; None: by the state."""
        self.metric = metric
        self.show_again()

    def next_metric(self, steps: int) -> None:
        """The next number that has values; after the last one comes the first."""
        snapshot = self.session.shown.snapshot
        numbers = [None, *(metrics_of(snapshot) if snapshot is not None else ())]
        at = numbers.index(self.metric) if self.metric in numbers else 0
        self.colour_by(numbers[(at + steps) % len(numbers)])

    def search(self, text: str) -> None:
        """Put the cursor on the first rank that passes the filter."""
        wanted, look = parse_filter(text), self.session.shown
        self.searched, self.found = text.strip(), ""
        if look.snapshot is not None and self.searched:
            blamed = frozenset(culprits(look.verdict))
            at = look.snapshot.time_unix_ns
            passing = [
                rank.rank
                for rank in look.snapshot.ranks
                if wanted.passes(rank, rank.rank in blamed, at)
            ]
            self.found = describe_filter(wanted, len(passing), len(look.snapshot.ranks))
            if passing and not wanted.empty:
                self.grid.go_to(passing[0])
        self.post_message(self.Changed())

    def _show_cursor(self, snapshot: Snapshot) -> None:
        """The rank under the mouse, or else the one under the cursor."""
        rank = self.grid.pointed_rank
        if rank is not None:
            glyphs = self.session.paint.glyphs
            line = cursor_line(
                snapshot, self.coded.codes, rank, self.grid.cell_of(rank), self.size.width, glyphs
            )
            self.cursor.show([(*self._value_of(snapshot, rank), *line)])

    def _value_of(self, snapshot: Snapshot, rank: int) -> Line:
        """The number of that rank, where the map shows one."""
        if self.metric is None:
            return ()
        value = scaled(self.metric, snapshot.rank(rank), snapshot.time_unix_ns)
        text = units.NOT_MEASURED if value is None else self.metric.scale.text(value)
        return ((f"{self.metric.scale.label} {text}", "bold"), ("  ", ""))

    def notes(self, snapshot: Snapshot) -> list[str]:
        """How many ranks a cell stands for, if more than one."""
        del snapshot
        return [self.grid.grid.note()] if self.grid.grid is not None else []

    def keys(self) -> list[Key]:
        return [
            ("enter", "Enter", "rank"),
            ("m", "m", "colour by"),
            ("n", "n", "next unhealthy"),
            ("d", "d", "stacks"),
            ("f9", "F9", "signal"),
        ]

    def picked(self) -> tuple[int, ...]:
        return () if self.grid.cursor_rank is None else (self.grid.cursor_rank,)

    async def on_map_grid_opened(self, message: MapGrid.Opened) -> None:
        """Open the page of the rank."""
        message.stop()
        await self.run_action(f"screen.open_rank({message.rank})")

    def on_map_grid_moved(self, message: MapGrid.Moved) -> None:
        """Update the line about the rank under the cursor."""
        message.stop()
        if self.session.shown.snapshot is not None:
            self._show_cursor(self.session.shown.snapshot)
        self.post_message(self.Changed())
