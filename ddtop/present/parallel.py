"""The grid of ranks by their parallel groups: one column for each position in the innermost
dimension, one row for each position in the others."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ddtop.model.state.facts import Axis, RankFacts, Snapshot, State
from ddtop.present.glyphs import STATE_STYLES, UNICODE, Glyphs
from ddtop.present.text import Line, Span, clean, clip_line
from ddtop.words.ranks import rank_list
from ddtop.words.sentences import coordinates_text, stage_text

ROWS_LEAST = 2
CELL_LEAST = 4


@dataclass(frozen=True, slots=True)
class GridRow:
    """One row: its position in all dimensions except the innermost, and the ranks of each
    column."""

    places: tuple[int, ...]
    cells: tuple[tuple[int, ...], ...]


def grid_rows(snapshot: Snapshot) -> tuple[GridRow, ...]:
    """The grid from the outermost dimension on. It leaves out ranks that have not reported a place.

    With a single dimension there is one row.
    """
    if not snapshot.axes:
        return ()
    inner = snapshot.axes[-1]
    found: dict[tuple[int, ...], list[list[int]]] = {}
    for rank in snapshot.ranks:
        known = {name: place for name, place, _ in rank.comm.coordinates}
        places = [known.get(axis.name) for axis in snapshot.axes]
        if any(place is None for place in places) or places[-1] not in range(inner.size):
            continue
        *before, last = [place for place in places if place is not None]
        cells = found.setdefault(tuple(before), [[] for _ in range(inner.size)])
        cells[last].append(rank.rank)
    return tuple(
        GridRow(places, tuple(tuple(cell) for cell in found[places])) for places in sorted(found)
    )


def grid_lines(
    snapshot: Snapshot,
    width: int,
    most: int,
    at_fault: Collection[int] = (),
    glyphs: Glyphs = UNICODE,
) -> list[Line]:
    """The grid in at most `most` lines of at most `width` columns; empty if there is no grid.

    If not all rows fit, rows with ranks at fault come first, then rows with blocked ranks. A row
    with too many cells shows the ranges of its ranks by state instead.
    """
    rows = grid_rows(snapshot)
    if not rows or most < ROWS_LEAST:
        return []
    outer, inner = snapshot.axes[:-1], snapshot.axes[-1]
    digits = max(len(str(snapshot.world_size - 1)), 1)
    labels = [max(len(axis.name), len(str(axis.size - 1))) for axis in outer]
    lead = sum(labels) + 2 * len(labels)
    cell = max(CELL_LEAST, digits + 2, len(str(inner.size - 1)) + 2)
    lone = all(len(one) <= 1 for row in rows for one in row.cells)
    narrow = lone and lead + len(inner.name) + 1 + cell * inner.size <= width
    shown, hidden = _chosen(snapshot, rows, most - 1, at_fault)
    lines = [_heading(outer, inner, labels, cell, narrow)]
    for row in shown:
        line: list[Span] = [
            (f"{place:>{size}}  ", "dim") for place, size in zip(row.places, labels, strict=True)
        ]
        line.append((" " * (len(inner.name) + 1), ""))
        line += _cells(snapshot, row, cell, glyphs) if narrow else _ranges(snapshot, row, glyphs)
        lines.append(tuple(line))
    if hidden:
        lines.append(((f"{hidden:,} more rows: filter the ranks by {_example(snapshot)}", "dim"),))
    return [clip_line(line, width, glyphs.ellipsis) for line in lines]


def _heading(
    outer: tuple[Axis, ...], inner: Axis, labels: list[int], cell: int, narrow: bool
) -> Line:
    text = "".join(
        f"{clean(axis.name):>{size}}  " for axis, size in zip(outer, labels, strict=True)
    )
    text += f"{clean(inner.name)} "
    text += (
        "".join(f"{place:>{cell}}" for place in range(inner.size))
        if narrow
        else f"0-{inner.size - 1}, as ranks"
    )
    return ((text, "dim"),)


def _chosen(
    snapshot: Snapshot, rows: tuple[GridRow, ...], most: int, at_fault: Collection[int]
) -> tuple[list[GridRow], int]:
    """(the rows that are shown, in the order of the grid; how many are not)."""
    if len(rows) <= most:
        return list(rows), 0
    culprits = frozenset(at_fault)

    def trouble(number: int) -> tuple[bool, bool, int]:
        ranks = [rank for one in rows[number].cells for rank in one]
        states = {snapshot.rank(rank).state for rank in ranks}
        return culprits.isdisjoint(ranks), State.BLOCKED not in states, number

    best = sorted(sorted(range(len(rows)), key=trouble)[: max(most - 1, 1)])
    return [rows[number] for number in best], len(rows) - len(best)


def _cells(snapshot: Snapshot, row: GridRow, cell: int, glyphs: Glyphs) -> list[Span]:
    spans: list[Span] = []
    for ranks in row.cells:
        if not ranks:
            spans.append(("-".rjust(cell), "dim"))
            continue
        state = snapshot.rank(ranks[0]).state
        mark = glyphs.critical if state is State.CULPRIT else ""
        spans.append((f"{mark}{ranks[0]}".rjust(cell), STATE_STYLES[state]))
    return spans


def _ranges(snapshot: Snapshot, row: GridRow, glyphs: Glyphs) -> list[Span]:
    by_state: dict[State, list[int]] = {}
    for ranks in row.cells:
        for rank in ranks:
            by_state.setdefault(snapshot.rank(rank).state, []).append(rank)
    spans: list[Span] = []
    for state in sorted(by_state, key=lambda state: len(by_state[state])):
        text = f"{rank_list(by_state[state], 4)} {state.value}"
        spans.append((("" if not spans else f" {glyphs.bullet} ") + text, STATE_STYLES[state]))
    return spans


def _example(snapshot: Snapshot) -> str:
    return " ".join(f"{axis.name}:0" for axis in snapshot.axes[:2])


def place_text(snapshot: Snapshot, rank: RankFacts) -> str:
    """`pp 1, dp 0, tp 3`, for all dimensions of the grid; empty if there is no grid."""
    return clean(coordinates_text(snapshot.place_of(rank)))


def pipeline_texts(rank: RankFacts) -> list[str]:
    """Each pipeline stage of the rank."""
    return [clean(stage_text(stage)) for stage in rank.comm.pipeline]
