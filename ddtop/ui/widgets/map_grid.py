"""The cells of the map. A line is made only when it is needed, and redrawn only when it has
changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from ddtop.present.map import Grid, HostRanks, grid_for
from ddtop.present.text import Line
from ddtop.ui.rows import STATE_LOOKS, StateLooks, map_line, map_strip
from ddtop.ui.session import Paint


class MapGrid(Widget, can_focus=True):
    """One cell per rank, as far as there is room. Until the user moves the cursor, it stays on the
    worst rank."""

    DEFAULT_CSS = """
    MapGrid { height: 1fr; }
    """
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("left,h", "move(-1, 0)", "left"),
        ("right,l", "move(1, 0)", "right"),
        ("up,k", "move(0, -1)", "up"),
        ("down,j", "move(0, 1)", "down"),
        ("pageup", "move_lines(-1)", "page up"),
        ("pagedown", "move_lines(1)", "page down"),
        ("home", "to_end(0)", "first"),
        ("end", "to_end(1)", "last"),
        ("n", "trouble(1)", "next unhealthy rank"),
        ("N", "trouble(-1)", "previous unhealthy rank"),
        ("enter", "open", "rank"),
    ]

    class Opened(Message):
        """Asks for the page of one rank."""

        def __init__(self, rank: int) -> None:
            super().__init__()
            self.rank = rank

    class Moved(Message):
        """The cursor or the grid has changed."""

    def __init__(self, paint: Paint, name: str | None = None) -> None:
        super().__init__(id=name)
        self.cursor_rank: int | None = None
        self.grid: Grid | None = None
        self._paint = paint
        self._codes = b""
        self._looks: StateLooks = STATE_LOOKS
        self._hosts: Sequence[HostRanks] = ()
        self._touched = False
        self._laid_for: tuple[object, ...] = ()
        self._drawn: dict[int, Line] = {}

    def show(
        self, hosts: Sequence[HostRanks], codes: bytes, looks: StateLooks = STATE_LOOKS
    ) -> None:
        """Draw these ranks: their codes, and the looks of the codes."""
        changed = codes != self._codes or hosts is not self._hosts or looks is not self._looks
        self._codes, self._hosts, self._looks = codes, hosts, looks
        if not self._touched and codes:
            self.cursor_rank = codes.index(max(codes))
        elif self.cursor_rank is not None and self.cursor_rank >= len(codes):
            self.cursor_rank = len(codes) - 1 if codes else None
        if self._lay_out() or changed:
            self._redraw()

    @property
    def cell(self) -> Sequence[int]:
        """The ranks of the cell that the cursor is on."""
        if self.grid is None or self.cursor_rank is None:
            return ()
        if self.grid.per_cell == 1:
            return (self.cursor_rank,)
        first = self.cursor_rank // self.grid.per_cell * self.grid.per_cell
        return range(first, min(first + self.grid.per_cell, len(self._codes)))

    def repaint(self) -> None:
        """Draw everything again, after a change of the palette."""
        self._lay_out()
        self._drawn.clear()
        self._redraw()
        self.refresh()

    def _lay_out(self) -> bool:
        """Place the ranks; returns whether any place has changed. Half blocks show states by colour
        only, so they need a palette with colours."""
        halves = self._paint.palette.background is not None and bool(self._paint.glyphs.eighths)
        wanted = (id(self._hosts), len(self._codes), self.size, halves)
        if wanted == self._laid_for or not self._codes or not self.size.area:
            return False
        self._laid_for = wanted
        self.grid = grid_for(
            self._hosts, len(self._codes), self.size.width, self.size.height, halves
        )
        return True

    def _line(self, y: int) -> Line:
        if self.grid is None:
            return ()
        # No cursor over the culprit's mark until the user moves it.
        cursor = self.cursor_rank if self._touched else None
        return map_line(self.grid, self._codes, y, cursor, self._paint.glyphs, self._looks)

    def _redraw(self) -> None:
        fresh = {y: self._line(y) for y in range(self.size.height)}
        for y, line in fresh.items():
            if line != self._drawn.get(y):
                self.refresh(Region(0, y, self.size.width, 1))
        self._drawn = fresh

    def render_line(self, y: int) -> Strip:
        """One line."""
        line = self._drawn.get(y)
        return map_strip(
            self._line(y) if line is None else line, self.size.width, self._paint.palette
        )

    def on_resize(self) -> None:
        """Place the ranks again: there is more or less room."""
        self._lay_out()
        self._drawn.clear()
        self._redraw()
        self.post_message(self.Moved())

    def go_to(self, rank: int) -> None:
        """Put the cursor on that rank."""
        self._touched = True
        self.cursor_rank = rank
        self._redraw()
        self.post_message(self.Moved())

    def _move_to(self, rank: int) -> None:
        self._touched = True
        self.cursor_rank = rank
        cell = self.cell
        if len(cell) > 1:
            self.cursor_rank = max(cell, key=lambda number: (self._codes[number], -number))
        self._redraw()
        self.post_message(self.Moved())

    def action_move(self, columns: int, lines: int) -> None:
        """Move the cursor by cells."""
        if self.grid is not None and self.cursor_rank is not None:
            self._move_to(self.grid.moved(self.cursor_rank, columns, lines))

    def action_move_lines(self, pages: int) -> None:
        """Move the cursor by half the map."""
        for _ in range(max(self.size.height // 2, 1)):
            if self.grid is not None and self.cursor_rank is not None:
                self.cursor_rank = self.grid.moved(self.cursor_rank, 0, pages)
        if self.cursor_rank is not None:
            self._move_to(self.cursor_rank)

    def action_to_end(self, last: int) -> None:
        """Move the cursor to the first or the last rank."""
        if self._codes:
            self._move_to(len(self._codes) - 1 if last else 0)

    def action_trouble(self, steps: int) -> None:
        """Move the cursor to the next rank that is not healthy; after the last comes the first. If
        some ranks are worse than blocked, only to those."""
        if not self._codes:
            return
        count, at = len(self._codes), self.cursor_rank or 0
        borne = self._looks.borne(self._codes)
        found = (number % count for number in range(at + steps, at + steps * (count + 1), steps))
        rank = next(
            (number for number in found if self._codes[number] > borne and number not in self.cell),
            None,
        )
        if rank is not None:
            self._move_to(rank)

    def action_open(self) -> None:
        """Ask for the page of the rank under the cursor."""
        if self.cursor_rank is not None:
            self.post_message(self.Opened(self.cursor_rank))

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor there, a double click opens."""
        ranks = self.grid.ranks_at(event.x, event.y) if self.grid is not None else ()
        if ranks:
            self._move_to(max(ranks, key=lambda number: (self._codes[number], -number)))
            if event.chain == 2:
                self.action_open()
