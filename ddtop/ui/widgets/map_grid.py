"""The cells of the map. A line is made only when it is needed, and redrawn only when it has
changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.message import Message
from textual.strip import Strip

from ddtop.present.map import BLOCKED, HEALTHY, Grid, HostRanks, grid_for
from ddtop.present.text import Line
from ddtop.ui.rows import StateLook, map_line, map_strip
from ddtop.ui.session import Paint
from ddtop.ui.widgets.lines import LinesView


class MapGrid(LinesView, inherit_bindings=False):
    """One cell per rank, as far as there is room. Until the user moves the cursor, it stays on the
    worst rank."""

    DEFAULT_CSS = """
    MapGrid { height: 1fr; }
    """
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
        super().__init__(paint, name, focusable=True)
        self.cursor_rank: int | None = None
        self.grid: Grid | None = None
        self._look = StateLook()
        self._shown: object = None
        self._hovered: int | None = None
        self._hosts: Sequence[HostRanks] = ()
        self._touched = False
        self._laid_for: tuple[object, ...] = ()

    def show_ranks(self, hosts: Sequence[HostRanks], look: StateLook) -> None:
        """Draw these ranks."""
        changed = hosts is not self._hosts or look.shown != self._shown
        self._hosts, self._look, self._shown = hosts, look, look.shown
        count = len(look.codes)
        if not self._touched and count:
            self.cursor_rank = look.codes.index(max(look.codes))
        elif self.cursor_rank is not None and self.cursor_rank >= count:
            self.cursor_rank = count - 1 if count else None
        if self._lay_out() or changed:
            self._redraw()

    @property
    def pointed_rank(self) -> int | None:
        """The rank under the mouse, or else under the cursor."""
        hovered = self._hovered
        return self.cursor_rank if hovered not in range(len(self._look.codes)) else hovered

    def cell_of(self, rank: int) -> Sequence[int]:
        """The ranks of the cell that shows this rank."""
        return (rank,) if self.grid is None else self.grid.cell_of(rank)

    def _worst(self, ranks: Sequence[int]) -> int:
        """The rank that a cell stands for."""
        return max(ranks, key=lambda number: (self._look.codes[number], -number))

    def repaint(self) -> None:
        """Draw everything again, after a change of the palette."""
        self._lay_out()
        self._redraw()
        self.refresh()

    def _lay_out(self) -> bool:
        """Place the ranks; returns whether any place has changed. Areas of colour need a palette
        with colours."""
        slabs = self._paint.palette.background is not None and bool(self._paint.glyphs.half)
        count = len(self._look.codes)
        wanted = (id(self._hosts), count, self.size, slabs)
        if wanted == self._laid_for or not count or not self.size.area:
            return False
        self._laid_for = wanted
        self.grid = grid_for(self._hosts, count, self.size.width, self.size.height, slabs)
        return True

    def _line(self, y: int) -> Line:
        if self.grid is None:
            return ()
        # No cursor over the culprit's mark until the user moves it.
        cursor = self.cursor_rank if self._touched else None
        return map_line(self.grid, self._look, y, cursor)

    def _redraw(self) -> None:
        self.show([self._line(y) for y in range(self.size.height)])

    def strip_of(self, line: Line) -> Strip:
        return map_strip(line, self.size.width, self._paint.palette)

    def on_resize(self) -> None:
        """Place the ranks again: there is more or less room."""
        self._lay_out()
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
        self._hovered = None
        self.cursor_rank = self._worst(self.cell_of(rank))
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
        if self._look.codes:
            self._move_to(len(self._look.codes) - 1 if last else 0)

    def action_trouble(self, steps: int) -> None:
        """Move the cursor to the next rank whose state is not healthy, whatever the map shows;
        after the last comes the first. If some ranks are worse than blocked, only to those."""
        states = self._look.states
        if not states:
            return
        count, at = len(states), self.cursor_rank or 0
        borne = BLOCKED if max(states) > BLOCKED else HEALTHY
        cell = self.cell_of(at)
        found = (number % count for number in range(at + steps, at + steps * (count + 1), steps))
        rank = next(
            (number for number in found if states[number] > borne and number not in cell), None
        )
        if rank is not None:
            self._move_to(rank)

    def action_open(self) -> None:
        """Ask for the page of the rank under the cursor."""
        if self.cursor_rank is not None:
            self.post_message(self.Opened(self.cursor_rank))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """The line below tells the rank under the mouse; the cursor stays."""
        ranks = self.grid.ranks_at(event.x, event.y) if self.grid is not None else ()
        self._hover(self._worst(ranks) if ranks else None)

    def on_leave(self) -> None:
        """The line below tells the rank under the cursor again."""
        self._hover(None)

    def _hover(self, rank: int | None) -> None:
        if rank != self._hovered:
            self._hovered = rank
            self.post_message(self.Moved())

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor there, a double click opens."""
        ranks = self.grid.ranks_at(event.x, event.y) if self.grid is not None else ()
        if ranks:
            self._move_to(self._worst(ranks))
            if event.chain == 2:
                self.action_open()
