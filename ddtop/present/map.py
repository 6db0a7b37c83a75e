"""The position of each rank on the map: a tile for each host, and in it a cell for each rank.

Cells are as large as the screen allows. In a larger job tiles lose the line with the host's name;
then a cell has two ranks, one above the other, as half blocks; then it shows the worst of several.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ddtop.grouped import grouped
from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.present.numbers import NUMBERS, Bad, Number, absent
from ddtop.present.text import UNICODE, Glyphs, cell_width, clean

LABEL_MOST = 16
NAME_LEAST = 7
"""A tile that is narrower has no line for the host's name."""
RANKS_TOGETHER = 64
"""Ranks of a tile if there is no room for a tile of each host, or a power of two times as many."""


@dataclass(frozen=True, slots=True)
class HostRanks:
    """A host with its ranks, ascending."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CellShape:
    """The size of cells, in columns and lines of the screen, and of tiles, in cells.

    `across`: tiles side by side, `down`: below each other. `titled`: a line with the host's name is
    above the cells. `label_width`: columns for the name of the first host of a line. `halves`: two
    rows of cells share a line of the screen.
    """

    width: int
    height: int
    columns: int
    rows: int
    across: int
    down: int
    titled: bool
    label_width: int
    per_cell: int
    halves: bool

    @property
    def lines(self) -> int:
        """Lines of a tile."""
        return self.titled + (-(-self.rows // 2) if self.halves else self.rows * self.height)


class Grid:
    """The tiles in their order, line by line, all of one shape.

    `slabs`: cells are drawn as areas of colour. `lines`: lines that are used.
    """

    def __init__(
        self, tiles: Sequence[HostRanks], shape: CellShape, width: int, height: int, slabs: bool
    ) -> None:
        self.tiles, self.shape, self.slabs = tiles, shape, slabs
        self.count = sum(len(tile.ranks) for tile in tiles)
        self.tile_width = shape.columns * shape.width
        free = width - shape.label_width - self.tile_width * shape.across
        self.stride = self.tile_width + min(free // max(shape.across - 1, 1), 6)
        free = height - shape.lines * shape.down
        self._tile_lines = shape.lines + min(free // max(shape.down - 1, 1), 1)
        self.lines = (shape.down - 1) * self._tile_lines + shape.lines
        self._across = shape.across * shape.columns
        self._cells: dict[int, Sequence[int]] = {}
        for number, tile in enumerate(tiles):
            for at in range(0, len(tile.ranks), shape.per_cell):
                row, column = divmod(at // shape.per_cell, shape.columns)
                place = self._place(number, row, column)
                self._cells[place] = tile.ranks[at : at + shape.per_cell]
        self._places = {rank: place for place, ranks in self._cells.items() for rank in ranks}

    def _place(self, tile: int, row: int, column: int) -> int:
        """The number of a cell, counted line by line across all tiles."""
        down, across = divmod(tile, self.shape.across)
        line = down * self.shape.rows + row
        return line * self._across + across * self.shape.columns + column

    def on_line(self, y: int) -> tuple[Sequence[HostRanks], int]:
        """The tiles that this line of the screen crosses, and which of their lines it is; -1: that
        of the name."""
        down, line = divmod(y, self._tile_lines)
        if line >= self.shape.lines:
            return (), 0
        first = down * self.shape.across
        return self.tiles[first : first + self.shape.across], line - self.shape.titled

    def odd(self, y: int) -> bool:
        """Whether every other tile is here, where no line is between one and the next."""
        return self._tile_lines == self.shape.lines - self.shape.titled and bool(
            y // self._tile_lines % 2
        )

    def rows_on(self, line: int) -> range:
        """The rows of cells on this line of a tile."""
        if self.shape.halves:
            return range(2 * line, 2 * line + 2)
        return range(line // self.shape.height, line // self.shape.height + 1)

    def row(self, tile: HostRanks, row: int) -> Sequence[int]:
        """The ranks in a row of cells of a tile."""
        size = self.shape.columns * self.shape.per_cell
        return tile.ranks[row * size : (row + 1) * size]

    def cell_of(self, rank: int) -> Sequence[int]:
        """The ranks that share the cell of this one."""
        return self._cells[self._places[rank]]

    def ranks_at(self, x: int, y: int) -> Sequence[int]:
        """The ranks of the cell there, or of the host whose name is there; empty without a cell."""
        tiles, line = self.on_line(y)
        number, x = divmod(x - self.shape.label_width, self.stride)
        if not 0 <= number < len(tiles) or x >= self.tile_width:
            return ()
        if line < 0:
            return tiles[number].ranks
        number += y // self._tile_lines * self.shape.across
        places = [self._place(number, row, x // self.shape.width) for row in self.rows_on(line)]
        return [rank for place in places for rank in self._cells.get(place, ())]

    def moved(self, rank: int, dx: int, dy: int) -> int:
        """The first rank of the next cell in this direction; the same rank if there is none.

        At the end of a line the next line follows. Up and down a shorter line is left at its end.
        """
        step = dx + dy * self._across
        place = self._places[rank] + step
        while 0 <= place < self.shape.down * self.shape.rows * self._across:
            for before in range(place, place - (place % self._across if dy else 0) - 1, -1):
                if before in self._cells:
                    return self._cells[before][0]
            place += step
        return rank

    def note(self) -> str:
        """A legend of the cells, if one is needed: `1 cell = 4 ranks, the worst of them`."""
        per_cell = self.shape.per_cell
        if self.shape.halves:
            each = "2 ranks" if per_cell == 1 else f"2 times the worst of {per_cell:,} ranks"
            return f"1 cell = {each}, one above the other"
        return f"1 cell = {per_cell:,} ranks, the worst of them" if per_cell > 1 else ""


def grid_for(
    hosts: Sequence[HostRanks], count: int, width: int, height: int, slabs: bool = False
) -> Grid:
    """The largest cells for these columns and lines. `slabs`: areas of colour can be drawn, and so
    half blocks."""
    height = max(height, 1)
    tiles = _tiles(hosts, count, (width + 1) // 2 * height)
    most = max((len(tile.ranks) for tile in tiles), default=1)
    name_width = min(max((cell_width(tile.name) for tile in tiles), default=1), LABEL_MOST)
    per_cell = 1
    while True:
        for halves in (False, True) if slabs else (False,):
            for titled, label_width in ((True, 0), (False, name_width + 1), (False, 0)):
                if (titled and (halves or per_cell > 1)) or label_width > width // 4:
                    continue
                shape = _largest(
                    len(tiles),
                    -(-most // per_cell),
                    width - label_width,
                    height,
                    titled,
                    label_width,
                    per_cell,
                    halves,
                )
                if shape is not None:
                    return Grid(tiles, shape, width, height, slabs)
        per_cell *= 2


def _tiles(hosts: Sequence[HostRanks], count: int, most: int) -> Sequence[HostRanks]:
    """A tile for each host, and several for one that has many more ranks than usual; if these are
    too many, tiles of ranks in their order."""
    if len(hosts) > most or not hosts:
        size = RANKS_TOGETHER
        while size * most < count:
            size *= 2
        return [
            HostRanks(f"{first:,}", tuple(range(first, min(first + size, count))))
            for first in range(0, count, size)
        ]
    sizes = sorted(len(host.ranks) for host in hosts)
    usual = sizes[len(sizes) // 2] * 2
    if sizes[-1] <= usual or len(hosts) < 3:
        return hosts
    tiles = [
        HostRanks(host.name, host.ranks[first : first + usual])
        for host in hosts
        for first in range(0, len(host.ranks), usual)
    ]
    return tiles if len(tiles) <= most else _tiles((), count, most)


def _largest(
    tiles: int,
    cells: int,
    width: int,
    height: int,
    titled: bool,
    label_width: int,
    per_cell: int,
    halves: bool,
) -> CellShape | None:
    """The shape with the largest cells for so many tiles of so many cells; None: no room."""
    best, found = (0.0, 0), None
    parts = 1
    while parts < 2 * cells:
        columns = -(-cells // parts)
        rows = -(-cells // columns)
        parts *= 2
        least = titled + (-(-rows // 2) if halves else rows)
        if least > height or rows > max(columns, 2):
            continue
        fewest = -(-tiles // (height // least))
        for across in range(fewest, min(tiles, (width + 1) // (columns + 1)) + 1):
            down = -(-tiles // across)
            cell = ((width + 2) // across - 2) // columns
            if cell < 2:
                cell = 1
            if titled and cell * columns < NAME_LEAST:
                continue
            tall = 1 if halves else (height // down - titled) // rows
            # Text needs wide cells, a picture none that are much longer than high.
            size = min(cell, 4 * tall) * min(tall, 0.7 * cell), columns
            if size > best:
                best = size
                found = CellShape(
                    cell,
                    tall,
                    columns,
                    rows,
                    across,
                    down,
                    titled,
                    label_width,
                    per_cell,
                    halves,
                )
    return found


def hosts_of_ranks(names: Sequence[str | None]) -> tuple[HostRanks, ...]:
    """Ranks by host, hosts in the order of their first rank; ranks that were never seen come last,
    as `not seen`."""
    found = grouped((name, rank) for rank, name in enumerate(names))
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
    StateClass(State.BLOCKED, "behind", "behind"),
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
    BEHIND,
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
    glyph of its own, and so has one that waits for those that wait."""
    state_class = class_of(code)
    own = {CLASSES[FINISHED].word: glyphs.finished, CLASSES[BEHIND].word: glyphs.behind}
    return own.get(state_class.word) or glyphs.states[state_class.state]


def codes_of(snapshot: Snapshot, at_fault: Collection[int] = ()) -> bytes:
    """One code per rank. A rank at fault keeps a state that says how it ended; otherwise it is the
    culprit."""
    codes = bytearray(map(_CODES.__getitem__, [rank.state for rank in snapshot.ranks]))
    for number in ranks_in(bytes(codes), EXITED, len(codes)):
        gone = snapshot.ranks[number].process.exit
        if gone is not None and gone.code == 0:
            codes[number] = FINISHED
    # Of those that wait, the ones who wait for the ranks at fault themselves lead to them.
    blamed = frozenset(at_fault)
    for number in ranks_in(bytes(codes), BLOCKED, len(codes)) if blamed else ():
        wait = snapshot.ranks[number].wait
        if wait is not None and blamed.isdisjoint(wait.behind):
            codes[number] = BEHIND
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
# A level is one byte per rank, like the classes above, and the worst value has the highest level. A
# rank with a mark of its own is above all levels: at fault, or so bad a state that people look for
# it.


LEVELS = 5
UNKNOWN = 0
"""The code of a rank without a measured value; the levels start at 1."""
MARKS = LEVELS + 1 - STRAGGLER
"""Added to the state of a rank with a mark that is not at fault."""
SPREAD = 0.2
"""The smallest range of the levels, as a share of the largest value; smaller differences are
noise."""
HOLD = 0.5
"""A value keeps its level until it is this far beyond its end, as a part of a level, so that the
map does not flicker."""
FEW = 8
"""One in so many ranks may be far from the others without changing the range for all of them."""


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
    """The levels of one look: a code and a value a rank.

    `good`, `bad`: the ends of the range, as `_badness` counts. `usual`: the median of the values.
    `worst`: the rank whose value stands out at the bad end; None if there is none.
    """

    metric: Number
    codes: bytes
    values: Sequence[float | None]
    good: float
    bad: float
    usual: float
    worst: int | None = None

    def ends(self) -> tuple[str, str]:
        """The values of the first and the last level in words."""
        scale = self.metric.scale
        if scale.bad == "far":
            return scale.text(self.usual), f"{scale.text(self.bad)} away"
        sign = -1 if scale.bad == "low" else 1
        return scale.text(sign * self.good), scale.text(sign * self.bad)


def state_of(code: int) -> int | None:
    """The state's code of a rank with a mark; None: the code is a level."""
    return None if code <= LEVELS else code if code >= AT_FAULT else code - MARKS


class Levelled:
    """Levels that do not flicker: the range stays while the values use it, and a rank's level stays
    while its value is near."""

    def __init__(self) -> None:
        self._last: Levels | None = None
        self._snapshot: Snapshot | None = None

    def take(self, metric: Number, snapshot: Snapshot, states: bytes) -> Levels:
        """The levels after this look. `states`: the codes of the ranks' states."""
        last = self._last if self._last is not None and self._last.metric is metric else None
        if last is not None and snapshot is self._snapshot:
            return last
        values = [scaled(metric, rank, snapshot.time_unix_ns) for rank in snapshot.ranks]
        known = sorted(value for value in values if value is not None)
        usual = known[len(known) // 2] if known else 0.0
        badness, ordered = _badness(metric.scale.bad, values, known, usual)
        spread = max(metric.scale.least, SPREAD * max(map(abs, known[:1] + known[-1:]), default=0))
        good, bad = _range(ordered, spread, last)
        same = last is not None and (last.good, last.bad) == (good, bad)
        codes = _codes(good, bad, badness, last.codes if last is not None and same else b"")
        if max(states, default=0) >= STRAGGLER:
            for number, state in enumerate(states[: len(codes)]):
                if state >= STRAGGLER:
                    codes[number] = state if state >= AT_FAULT else state + MARKS
        worst = badness.index(ordered[-1]) if _stands_out(ordered, spread) else None
        self._snapshot = snapshot
        self._last = Levels(metric, bytes(codes), values, good, bad, usual, worst)
        return self._last


def _badness(
    bad: Bad, values: Sequence[float | None], known: Sequence[float], usual: float
) -> tuple[Sequence[float | None], Sequence[float]]:
    """The values so that the largest is the worst, and those that are known in their order."""
    if bad == "high":
        return values, known
    if bad == "low":
        return [None if value is None else -value for value in values], [
            -value for value in reversed(known)
        ]
    away = [None if value is None else abs(value - usual) for value in values]
    return away, sorted(one for one in away if one is not None)


def _stands_out(ordered: Sequence[float], spread: float) -> bool:
    """Whether the worst is well beyond noise, and twice as far from the middle as all but a few
    others."""
    if len(ordered) < 2:
        return False
    middle = ordered[(len(ordered) - 1) // 2]
    others = ordered[-1 - max(len(ordered) // FEW, 1)]
    beyond = ordered[-1] - middle
    return 2 * beyond >= spread and 2 * (others - middle) <= beyond


def _codes(good: float, bad: float, badness: Sequence[float | None], before: bytes) -> bytearray:
    size = (bad - good) / LEVELS
    codes = bytearray(len(badness))
    kept = before if len(before) == len(badness) else bytes(len(badness))
    for number, (one, old) in enumerate(zip(badness, kept, strict=True)):
        if one is None:
            continue
        place = (one - good) / size
        if 0 < old <= LEVELS and old - 1 - HOLD <= place <= old + HOLD:
            codes[number] = old
        else:
            codes[number] = min(max(int(place), 0), LEVELS - 1) + 1
    return codes


def _range(ordered: Sequence[float], spread: float, last: Levels | None) -> tuple[float, float]:
    """The ends of the range: the previous ones, if the values are not far outside and use at least
    half of it; or those of the values. Where all are alike, they are at the good end."""
    if not ordered:
        return 0.0, 1.0
    # A few that are better than the others must not colour all others as bad.
    good, bad = ordered[len(ordered) // FEW], ordered[-1]
    if last is not None:
        size = last.bad - last.good
        near = last.good - size / LEVELS <= good and bad <= last.bad + size / LEVELS
        if near and max(bad - good, spread) >= size / 2:
            return last.good, last.bad
    return good, max(bad, good + spread) if spread else good + 1.0
