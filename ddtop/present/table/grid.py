"""The position of each rank on the map: its cell and its line.

There are four layouts, and the first that fits is used: hosts as labelled rows; one cell per rank;
two ranks per cell, one above the other, as half blocks; one cell for the worst of several ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ddtop.present.text import cell_width, clean

GAP = 2
"""Columns between two hosts on one line."""
LABEL_MOST = 16


@dataclass(frozen=True, slots=True)
class HostRanks:
    """A host with its ranks, ascending."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive cells on a line, with `label` before them (numbers are right-aligned).

    `ranks`: the ranks of the cells, `per_cell` in each. With `halves`, each cell also shows a rank
    of `below`, if there is one.
    """

    x: int
    label: str
    label_width: int
    ranks: Sequence[int]
    below: Sequence[int] = ()
    per_cell: int = 1
    halves: bool = False


class Grid(Protocol):
    """A layout of the ranks. `lines`: number of lines; `per_cell`: how many ranks share a cell."""

    lines: int
    per_cell: int

    def pieces(self, y: int) -> tuple[Piece, ...]:
        """The pieces of a line, from left to right."""

    def ranks_at(self, x: int, y: int) -> Sequence[int]:
        """The ranks of the cell there; empty without a cell."""

    def moved(self, rank: int, dx: int, dy: int) -> int:
        """The rank this many cells to the right and down; the same rank if there is none."""

    def note(self) -> str:
        """A legend of the cells, if one is needed."""


class EvenGrid:
    """Ranks in their order, `columns` cells a line, each line labelled with its first rank."""

    def __init__(
        self, count: int, columns: int, label_width: int, per_cell: int = 1, halves: bool = False
    ) -> None:
        self.count, self.columns, self.per_cell, self.halves = count, columns, per_cell, halves
        self._label_width = label_width
        self._line = columns * per_cell * (2 if halves else 1)
        self.lines = -(-count // self._line)

    def pieces(self, y: int) -> tuple[Piece, ...]:
        """One piece, the whole line."""
        first = y * self._line
        if not 0 <= first < self.count:
            return ()
        row = self.columns * self.per_cell
        ranks = range(first, min(first + row, self.count))
        below = range(first + row, min(first + 2 * row, self.count)) if self.halves else ()
        return (
            Piece(0, f"{first:,}", self._label_width, ranks, below, self.per_cell, self.halves),
        )

    def ranks_at(self, x: int, y: int) -> Sequence[int]:
        """One rank, two above each other, or `per_cell` in a row."""
        column = x - self._label_width - 1
        if not (0 <= column < self.columns and 0 <= y < self.lines):
            return ()
        first = y * self._line + column * self.per_cell
        found = [*range(first, first + self.per_cell)]
        if self.halves:
            found.append(first + self.columns)
        return [rank for rank in found if rank < self.count]

    def moved(self, rank: int, dx: int, dy: int) -> int:
        """To another cell; in half blocks up and down goes through both halves."""
        cell = rank // self.per_cell + dx + dy * self.columns
        return cell * self.per_cell if 0 <= cell * self.per_cell < self.count else rank

    def note(self) -> str:
        """`1 cell = 4 ranks, the worst of them`."""
        if self.halves:
            return "1 cell = 2 ranks, one above the other"
        return f"1 cell = {self.per_cell:,} ranks, the worst of them" if self.per_cell > 1 else ""


class HostGrid:
    """Hosts as labelled blocks, as many on a line as fit; a host that is wider than the screen
    takes several lines."""

    per_cell = 1

    def __init__(self, hosts: Sequence[HostRanks], width: int, label_width: int) -> None:
        self._rows: list[list[Piece]] = []
        self._place: dict[int, tuple[int, int]] = {}
        cells, block, across = _blocks(hosts, width, label_width)
        for number, host in enumerate(hosts):
            for first in range(0, len(host.ranks), cells):
                if number % across == 0 or first:
                    self._rows.append([])
                x = (number % across) * (block + GAP)
                piece = Piece(
                    x, "" if first else host.name, label_width, host.ranks[first : first + cells]
                )
                self._rows[-1].append(piece)
                for offset, rank in enumerate(piece.ranks):
                    self._place[rank] = (x + label_width + 1 + offset, len(self._rows) - 1)
        self.lines = len(self._rows)

    def pieces(self, y: int) -> tuple[Piece, ...]:
        """The hosts on that line."""
        return tuple(self._rows[y]) if 0 <= y < self.lines else ()

    def ranks_at(self, x: int, y: int) -> Sequence[int]:
        """One rank."""
        for piece in self.pieces(y):
            offset = x - piece.x - piece.label_width - 1
            if 0 <= offset < len(piece.ranks):
                return (piece.ranks[offset],)
        return ()

    def moved(self, rank: int, dx: int, dy: int) -> int:
        """To the next cell of the line, across the gap between hosts; up and down to the nearest
        cell."""
        x, y = self._place.get(rank, (0, 0))
        if dx:
            line = [number for piece in self.pieces(y) for number in piece.ranks]
            at = line.index(rank) + dx if rank in line else 0
            if 0 <= at < len(line):
                return line[at]
            following = self.pieces(y + (1 if dx > 0 else -1))
            if not following:
                return rank
            return following[0].ranks[0] if dx > 0 else following[-1].ranks[-1]
        nearest = [
            (abs(self._place[n][0] - x), n) for piece in self.pieces(y + dy) for n in piece.ranks
        ]
        return min(nearest)[1] if nearest else rank

    def note(self) -> str:
        """No legend is needed."""
        return ""


def _blocks(hosts: Sequence[HostRanks], width: int, label_width: int) -> tuple[int, int, int]:
    """Cells of a host on one line, columns of a host with its label, hosts on a line."""
    widest = max((len(host.ranks) for host in hosts), default=1)
    cells = min(widest, max(width - label_width - 1, 1))
    block = label_width + 1 + cells
    return cells, block, 1 if widest > cells else max((width + GAP) // (block + GAP), 1)


def _host_lines(hosts: Sequence[HostRanks], width: int, label_width: int) -> int:
    cells, _, across = _blocks(hosts, width, label_width)
    if across > 1:
        return -(-len(hosts) // across)
    return sum(-(-len(host.ranks) // cells) for host in hosts)


def grid_for(hosts: Sequence[HostRanks], count: int, width: int, height: int, halves: bool) -> Grid:
    """The first layout that fits into these columns and lines. `halves`: half blocks can be drawn
    and distinguished."""
    height = max(height, 1)
    label_width = min(
        max((cell_width(host.name) for host in hosts), default=1), LABEL_MOST, max(width // 4, 4)
    )
    if hosts and _host_lines(hosts, width, label_width) <= height:
        return HostGrid(hosts, width, label_width)
    number_width = len(f"{max(count - 1, 0):,}")
    columns = max(width - number_width - 1, 1)
    columns -= columns % 8 if columns >= 16 else 0
    for per_cell, half in ((1, False), (1, True)):
        if half and not halves:
            continue
        if -(-count // (columns * (2 if half else 1))) <= height:
            return EvenGrid(count, columns, number_width, per_cell, half)
    per_cell = 2
    while -(-count // (columns * per_cell)) > height:
        per_cell *= 2
    return EvenGrid(count, columns, number_width, per_cell)


def hosts_of_ranks(names: Sequence[str | None]) -> tuple[HostRanks, ...]:
    """Ranks by host, hosts in the order of their first rank; ranks that were never seen come last,
    as `not seen`."""
    found: dict[str | None, list[int]] = {}
    for rank, name in enumerate(names):
        found.setdefault(name, []).append(rank)
    unseen = found.pop(None, [])
    hosts = [HostRanks(clean(name or ""), tuple(ranks)) for name, ranks in found.items()]
    if unseen:
        hosts.append(HostRanks("not seen", tuple(unseen)))
    return tuple(hosts)
