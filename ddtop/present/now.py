"""The NOW column: what a rank does, in as few words as possible, and for how long."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from ddtop.grouped import grouped
from ddtop.model.account import PROCESS, does
from ddtop.model.facts import Axis, RankFacts, Snapshot, State
from ddtop.present.text import STATE_STYLES, UNICODE, Glyphs, Line, Span, clean, clip_line
from ddtop.wire.records import Exit, OpenCall, Place, Spot
from ddtop.words import sentences, units
from ddtop.words.sentences import (
    call_text,
    collective_text,
    coordinates_text,
    exit_text,
    file_line,
    rank_list,
)

_OPEN = frozenset({"scheduled", "started"})
_MOVE = frozenset({State.RUNNING, State.STARTING})
_UNHEARD = frozenset({State.SILENT, State.LOST})
"""Of these the age is that of the report."""
BEGUN_S = 1.0
"""Agents report once a second: what is younger than that at a report may be over by the next."""


def waits_text(place: Place) -> str | None:
    """What the place waits on, as the cell of `words.activities`; None if it does not wait."""
    word = place.waits_on
    if not word or word == "collective":
        return None
    if word == "p2p":
        return sentences.P2P.cell
    known = sentences.WAITS.get(word)
    return known.cell if known else clean(word)


def spot_text(place: Place | Spot) -> str:
    """`train_step train.py:118`, without the functions around it."""
    return clean(f"{place.function.rpartition('<locals>.')[2]} {file_line(place)}")


def open_call_text(call: OpenCall) -> str:
    """`recv from rank 0`, `init_process_group`."""
    return clean(call_text(call.name, call.peer, call.within))


def end_text(gone: Exit) -> str:
    """How a process ended, with the exception: `exit code 1: ValueError`, `SIGKILL (out of
    memory)`."""
    text = exit_text(gone.code, gone.signal, gone.oom)
    raised = gone.exception if gone.signal is None and gone.code is not None else None
    return f"{text}: {clean(raised.type)}" if raised else text


class NowCell(NamedTuple):
    """What a rank does, and since when.

    `since_unix_ns`: on the clock of the snapshot. `age_s`: where only the age is known, seconds.
    `group`: torch's name of the process group, for a wait in a collective.
    """

    text: str
    since_unix_ns: int | None = None
    age_s: float | None = None
    group: str = ""


def now_text(rank: RankFacts) -> str:
    """The NOW column: what this rank does, or how it ended."""
    return doing(rank).text


def now_age_s(rank: RankFacts, time_unix_ns: int) -> float | None:
    """How long it has been doing what `now_text` says (s).

    None of a rank that has ended, and of one that had only begun with that when it reported: the
    age would be that of its report.
    """
    if rank.gone:
        return None
    now = doing(rank)
    age_s = now.age_s
    if now.since_unix_ns is not None:
        age_s = max(time_unix_ns - now.since_unix_ns, 0) / units.SECOND_NS
    reported_s = rank.agent.report_age_s or 0.0
    young = age_s is not None and age_s - reported_s < BEGUN_S
    return None if young and rank.state not in _UNHEARD else age_s


def heard_age_s(rank: RankFacts) -> float | None:
    """How old its last report is (s). None of a rank that has ended: the age would grow for ever,
    or be that of a recording."""
    return None if rank.gone else rank.agent.report_age_s


def doing(rank: RankFacts) -> NowCell:
    """Its end, its open call, what it waits for, or else its place in the code."""
    if rank.process.exit is not None:
        return NowCell(end_text(rank.process.exit), rank.process.exit_unix_ns)
    if rank.state is State.MISSING:
        return NowCell("never seen")
    sure = does(rank)
    if sure.source == PROCESS and (sure.word != "gc" or rank.state not in _MOVE):
        # The sentence says the same, whatever its agent reported last.
        return NowCell(clean(sure.text), _since_unix_ns(rank, sure.word))
    if rank.state is State.SILENT:
        return _silent(rank)
    if rank.state is State.LOST:
        return NowCell(f"was in {_calling(rank).text}", None, rank.agent.report_age_s)
    return _calling(rank)


def _since_unix_ns(rank: RankFacts, word: str) -> int | None:
    """Since when it is stopped, frozen or in a garbage collection."""
    if word == "gc" and rank.process.report is not None:
        return rank.process.report.gc_since_unix_ns
    return None if word == "exit" else rank.process.state_since_unix_ns


def _calling(rank: RankFacts) -> NowCell:
    """From its own last report."""
    oldest = min(rank.comm.open_calls, key=lambda call: call.since_unix_ns, default=None)
    if oldest is not None:
        return NowCell(open_call_text(oldest), oldest.since_unix_ns)
    return _waiting(rank) or _working(rank)


def _waiting(rank: RankFacts) -> NowCell | None:
    held = rank.comm.collective
    if rank.wait is not None:
        wait = rank.wait
        op = held.op if held is not None and held.seq == wait.seq else wait.op
        text = clean(collective_text(op, wait.seq))
        return NowCell(text, wait.since_unix_ns, group=wait.group)
    if held is None or held.state not in _OPEN or _place_says_more(rank):
        return None
    text = clean(collective_text(held.op, held.seq))
    return NowCell(text, None, rank.comm.collective_age_s, held.group)


def _working(rank: RankFacts) -> NowCell:
    if rank.reported.activity in sentences.COMPUTES and not _place_says_more(rank):
        return NowCell(rank.reported.activity or "", rank.progress.last_unix_ns)
    place = rank.reported.place
    if place is not None:
        # A loop at the top of a script never leaves its function, so the last progress counts too.
        known = [at for at in (place.since_unix_ns, rank.progress.last_unix_ns) if at is not None]
        text = clean(f"{waits_text(place) or place.function} {file_line(place)}")
        return NowCell(text, max(known, default=None))
    if rank.reported.activity is not None and rank.reported.activity != "other":
        known_wait = sentences.OF_THREAD.get(rank.reported.activity)
        cell = known_wait.cell if known_wait else clean(rank.reported.activity)
        return NowCell(cell, rank.progress.last_unix_ns)
    return NowCell(clean(rank.reported.phase))


def _place_says_more(rank: RankFacts) -> bool:
    """For a rank at fault, the place is more important than the kind of work."""
    return rank.state is State.CULPRIT and rank.reported.place is not None


def _silent(rank: RankFacts) -> NowCell:
    """Its agent no longer reports, so this is what the relay sees from outside."""
    if rank.process.report is None:
        return NowCell("agent silent", None, rank.agent.report_age_s)
    seen = f"process {clean(rank.process.report.state)}"
    if rank.process.report.wchan:
        seen += f" {clean(rank.process.report.wchan)}"
    return NowCell(f"silent, {seen}", None, rank.agent.report_age_s)


# -- The grid of ranks by their parallel groups: one column for each position in the innermost
#    dimension, one row for each position in the others


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
        example = " ".join(f"{axis.name}:0" for axis in snapshot.axes[:2])
        lines.append(((f"{hidden:,} more rows: filter the ranks by {example}", "dim"),))
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
        ranks = [rank for cell in rows[number].cells for rank in cell]
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
    by_state = grouped((snapshot.rank(rank).state, rank) for ranks in row.cells for rank in ranks)
    spans: list[Span] = []
    for state in sorted(by_state, key=lambda state: len(by_state[state])):
        text = f"{rank_list(by_state[state], 4)} {state.value}"
        spans.append((("" if not spans else f" {glyphs.bullet} ") + text, STATE_STYLES[state]))
    return spans


def place_text(snapshot: Snapshot, rank: RankFacts) -> str:
    """`pp 1, dp 0, tp 3`, for all dimensions of the grid; empty if there is no grid."""
    return clean(coordinates_text(snapshot.place_of(rank)))
