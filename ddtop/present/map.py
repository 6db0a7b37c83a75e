"""The position of each rank on the map: its cell and its line.

There are four layouts, and the first that fits is used: hosts as labelled rows; one cell per rank;
two ranks per cell, one above the other, as half blocks; one cell for the worst of several ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.present.numbers import NUMBERS, Number, absent
from ddtop.present.text import UNICODE, Glyphs, cell_width, clean

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


# -- The class of each rank for the map: its state, without short changes
#
# A rank that runs and one that waits for a moment are both healthy. Codes are ordered: the worst of
# several ranks has the largest code. The codes of a whole job are one `bytes` object, so that
# comparing and counting ten thousand ranks takes microseconds.


SETTLE_NS = 5_000_000_000
"""Two looks are compared if they are no further apart."""
AT_FAULT = 16
"""Added to the code of a rank that a critical finding blames."""


@dataclass(frozen=True, slots=True)
class StateClass:
    """How the map shows a rank: the state whose glyph is used, the word, and the name of a
    style."""

    state: State
    word: str
    style: str


CLASSES = (
    StateClass(State.EXITED, "finished", "dim"),
    StateClass(State.RUNNING, "healthy", "dim"),
    StateClass(State.STARTING, "starting", "starting"),
    StateClass(State.BLOCKED, "blocked", "blocked"),
    StateClass(State.WARNING, "warning", "warning"),
    StateClass(State.STRAGGLER, "straggler", "straggler"),
    StateClass(State.SILENT, "silent", "silent"),
    StateClass(State.STOPPED, "stopped", "silent"),
    StateClass(State.LOST, "lost", "silent"),
    StateClass(State.MISSING, "missing", "gone"),
    StateClass(State.EXITED, "exited", "gone"),
    StateClass(State.KILLED, "killed", "gone"),
    StateClass(State.CULPRIT, "culprit", "culprit"),
)
"""The class of each code, from healthy to the worst."""
(
    FINISHED,
    HEALTHY,
    STARTING,
    BLOCKED,
    WARNING,
    STRAGGLER,
    SILENT,
    STOPPED,
    LOST,
    MISSING,
    EXITED,
    KILLED,
    CULPRIT,
) = range(len(CLASSES))

_CODES = {
    State.RUNNING: HEALTHY,
    State.WAITING: HEALTHY,
    State.STARTING: STARTING,
    State.JOINING: STARTING,
    State.BLOCKED: BLOCKED,
    State.WARNING: WARNING,
    State.STRAGGLER: STRAGGLER,
    State.SILENT: SILENT,
    State.STOPPED: STOPPED,
    State.LOST: LOST,
    State.MISSING: MISSING,
    State.EXITED: EXITED,
    State.KILLED: KILLED,
    State.CULPRIT: CULPRIT,
}
_OWN_WORD = frozenset({STRAGGLER, SILENT, STOPPED, LOST, MISSING, EXITED, KILLED, CULPRIT})


def class_of(code: int) -> StateClass:
    """The class of a code, whether at fault or not."""
    return CLASSES[code & (AT_FAULT - 1)]


def glyph_of(code: int, glyphs: Glyphs = UNICODE) -> str:
    """The sign of a code's class: the glyph of its state. A rank that has finished in order has a
    glyph of its own."""
    state_class = class_of(code)
    return (
        glyphs.finished
        if state_class.word == CLASSES[FINISHED].word
        else glyphs.states[state_class.state]
    )


def codes_of(snapshot: Snapshot, at_fault: Collection[int] = ()) -> bytes:
    """One code per rank. A rank at fault keeps a state that says how it ended; otherwise it is the
    culprit."""
    codes = bytearray(map(_CODES.__getitem__, [rank.state for rank in snapshot.ranks]))
    at = codes.find(EXITED)
    while at >= 0:
        gone = snapshot.ranks[at].process.exit
        if gone is not None and gone.code == 0:
            codes[at] = FINISHED
        at = codes.find(EXITED, at + 1)
    for number in at_fault:
        if 0 <= number < len(codes):
            codes[number] = AT_FAULT + (codes[number] if codes[number] in _OWN_WORD else CULPRIT)
    return bytes(codes)


def codes_at(codes: bytes, ranks: Sequence[int]) -> bytes:
    """The codes of these ranks; cut out in one piece where they follow each other."""
    if ranks and ranks[-1] - ranks[0] == len(ranks) - 1:
        return codes[ranks[0] : ranks[-1] + 1]
    return bytes(codes[rank] for rank in ranks if rank < len(codes))


class Settled:
    """Codes without short changes: a problem is shown at once, and a healthy rank again after two
    looks that agree."""

    def __init__(self) -> None:
        self.codes = b""
        self._last = b""
        self._subject: tuple[str, int] = ("", 0)
        self._unix_ns = 0

    def take(self, snapshot: Snapshot, codes: bytes) -> bytes:
        """The codes to show after this look. It starts again with looks of another run or another
        time."""
        subject, now = (snapshot.run, snapshot.attempt), snapshot.time_unix_ns
        step = now - self._unix_ns
        follows = (
            subject == self._subject and len(codes) == len(self._last) and 0 <= step <= SETTLE_NS
        )
        if follows and step == 0 and codes == self._last:
            return self.codes
        if not follows or codes in (self.codes, self._last):
            self.codes = codes
        else:
            self.codes = bytes(map(_settled, codes, self._last, self.codes))
        self._last, self._subject, self._unix_ns = codes, subject, now
        return self.codes


def _settled(code: int, before: int, shown: int) -> int:
    return shown if code <= HEALTHY < before else code


def counts(codes: bytes) -> list[tuple[int, int]]:
    """How many ranks each class has, the worst first; empty classes are left out. Ranks at fault
    count in their class."""
    found = []
    for code in range(len(CLASSES) - 1, -1, -1):
        number = codes.count(code) + codes.count(code + AT_FAULT)
        if number:
            found.append((code, number))
    return found


def ranks_in(codes: bytes, code: int, most: int) -> list[int]:
    """The first `most` ranks of a class."""
    found: list[int] = []
    for value in (code + AT_FAULT, code):
        at = codes.find(value)
        while at >= 0 and len(found) < most:
            found.append(at)
            at = codes.find(value, at + 1)
    return found


# -- The map coloured by a number: each rank's value has one of five levels
#
# A level is one byte per rank, like the classes of `rank_class`. Codes are ordered: the worst of
# several ranks has the largest code, and a rank at fault is above all levels.


LEVELS = 5
UNKNOWN = 0
"""The code of a rank without a measured value; the levels start at 1."""
SPREAD = 0.2
"""The smallest range of the levels, as a share of the largest value; smaller differences are
noise."""
HOLD = 0.25
"""A value keeps its level until it is this far beyond its end, as a part of a level, so that the
map does not flicker."""


def metrics_of(snapshot: Snapshot) -> tuple[Number, ...]:
    """The numbers by which this job's map can be coloured, in the order of their key, after the
    state."""
    missing = absent(snapshot)
    return tuple(number for number in NUMBERS if number.scale.label and number.key not in missing)


def map_metric(key: str) -> Number | None:
    """The number of that key; None: the map shows states."""
    return next((number for number in NUMBERS if number.key == key and number.scale.label), None)


def scaled(number: Number, rank: RankFacts, time_unix_ns: int) -> float | None:
    """The number as the map shows it: a share, where it is a part of a whole."""
    value: float | None = number.value(rank, time_unix_ns)
    if value is None or number.scale.of is None:
        return value
    whole = number.scale.of(rank, time_unix_ns)
    return value / whole if whole else None


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of one look: a code a rank, the ends of the range, and the rank to look at."""

    metric: Number
    codes: bytes
    low: float
    high: float
    worst: int | None = None

    def code(self, level: int) -> int:
        """The code of a level, 0 the lowest."""
        return LEVELS - level if self.metric.scale.low_is_bad else level + 1

    def level(self, code: int) -> int | None:
        """The level of a code; None: not measured, or a rank at fault."""
        if not 1 <= code <= LEVELS:
            return None
        return LEVELS - code if self.metric.scale.low_is_bad else code - 1

    def begin(self, level: int) -> float:
        """The lower end of a level."""
        return self.low + (self.high - self.low) * level / LEVELS


class Levelled:
    """Levels that do not flicker: the range stays while the values use it, and a rank's level stays
    while its value is near."""

    def __init__(self) -> None:
        self._last: Levels | None = None
        self._snapshot: Snapshot | None = None

    def take(self, metric: Number, snapshot: Snapshot, states: bytes) -> Levels:
        """The levels after this look. `states`: the codes of `rank_class`; those at fault stay."""
        last = self._last if self._last is not None and self._last.metric is metric else None
        if last is not None and snapshot is self._snapshot:
            return last
        values = [scaled(metric, rank, snapshot.time_unix_ns) for rank in snapshot.ranks]
        known = [value for value in values if value is not None]
        low, high = _range(metric, known, last)
        same = last is not None and (last.low, last.high) == (low, high)
        before = last.codes if last is not None and same else b""
        levels = Levels(metric, b"", low, high)
        codes = _codes(levels, values, before)
        for number, state in enumerate(states[: len(codes)]):
            if state >= AT_FAULT:
                codes[number] = state
        worst = None
        if known:
            worst = values.index(min(known) if metric.scale.low_is_bad else max(known))
        self._snapshot = snapshot
        self._last = Levels(metric, bytes(codes), low, high, worst)
        return self._last


def _codes(levels: Levels, values: Sequence[float | None], before: bytes) -> bytearray:
    low, size = levels.low, (levels.high - levels.low) / LEVELS
    codes = bytearray(len(values))
    of_level = [levels.code(level) for level in range(LEVELS)]
    kept = before if len(before) == len(values) else bytes(len(values))
    for number, (value, code) in enumerate(zip(values, kept, strict=True)):
        if value is None:
            continue
        place = (value - low) / size
        level = min(max(int(place), 0), LEVELS - 1)
        old = levels.level(code)
        if old is not None and old - HOLD <= place <= old + 1 + HOLD:
            level = old
        codes[number] = of_level[level]
    return codes


def _range(metric: Number, known: Sequence[float], last: Levels | None) -> tuple[float, float]:
    """The ends of the range: fixed ends; or the previous ones, if the values are inside and use at
    least half of the range; or those of the values."""
    ends = metric.scale.low, metric.scale.high
    if ends[0] is not None and ends[1] is not None:
        return ends[0], ends[1]
    least, most = min(known, default=0.0), max(known, default=1.0)
    if last is not None and last.low <= least and most <= last.high:
        spread = max(most - least, SPREAD * most)
        if spread >= (last.high - last.low) / 2:
            return last.low, last.high
    if most - least < SPREAD * most:
        # All values are equal: they are in the middle of the range.
        middle = (least + most) / 2
        return middle - SPREAD * most / 2, middle + SPREAD * most / 2
    return (least, most) if most > least else (0.0, 1.0)
