"""The filter and the order of the ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import eq, ge, gt, itemgetter, le, lt
from typing import Any

from ddtop.diagnosis.finding import CRITICAL, WARNING, Verdict
from ddtop.diagnosis.rank_state import culprits
from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.present.now import now_text
from ddtop.present.numbers import BY_KEY, NUMBERS
from ddtop.present.text import clean
from ddtop.wire.names import ORDER, short
from ddtop.words.sentences import rank_ranges

BY_VERDICT = "verdict"
_DIMENSION = re.compile(r"[a-z][a-z0-9_]*")


def by_verdict(snapshot: Snapshot, verdict: Verdict) -> list[int]:
    """Ranks at fault, then blocked ranks, then the others; in order of their numbers while there is
    no finding.

    Without a finding no rank is moved up, so that the table does not jump when a rank is blocked
    for a moment. A warning moves only few ranks up, never most of them.
    """
    numbers = [rank.rank for rank in snapshot.ranks]
    at_fault = culprits(verdict)
    if not at_fault and not any(finding.severity == CRITICAL for finding in verdict.findings):
        named = dict.fromkeys(
            rank
            for finding in verdict.findings
            if finding.severity == WARNING and 2 * len(finding.ranks) < len(numbers)
            for rank in finding.ranks
        )
        return [*named, *(number for number in numbers if number not in named)]
    first = set(at_fault)
    blocked = [r.rank for r in snapshot.ranks if r.state is State.BLOCKED and r.rank not in first]
    second = first.union(blocked)
    return [*at_fault, *blocked, *(number for number in numbers if number not in second)]


def by_column(snapshot: Snapshot, key: str, descending: bool) -> list[int]:
    """Sorted by one column, equal values by rank; ranks without a value come last either way."""
    column = BY_KEY.get(key, BY_KEY["rank"])
    value, now = column.order or column.value, snapshot.time_unix_ns
    known: list[tuple[Any, int]] = []
    unknown: list[int] = []
    for rank in snapshot.ranks:
        found = value(rank, now)
        if found is None:
            unknown.append(rank.rank)
        else:
            known.append((found, rank.rank))
    known.sort(key=itemgetter(0), reverse=descending)
    return [number for _, number in known] + unknown


class Rows:
    """The visible rows in their order, computed again only when their input has changed, not at
    each refresh.

    For 10,000 ranks this takes 5 to 40 ms, several times as long as drawing, and the screen is
    refreshed more often than there is new data. numpy would not help: reading the values from
    10,000 objects takes most of the time, and sorting takes 1 ms.
    """

    def __init__(self) -> None:
        self._of: tuple[object, ...] = ()
        self._rows: list[int] = []

    def of(
        self, snapshot: Snapshot, verdict: Verdict, key: str, descending: bool, wanted: Filter
    ) -> list[int]:
        """The ranks that pass the filter, sorted by the column `key`, or by BY_VERDICT."""
        now = (snapshot, verdict, key, descending, wanted)
        # Snapshots are compared by identity, because comparing two equal ones costs as much as
        # sorting.
        if len(self._of) == len(now) and all(a is b for a, b in zip(self._of, now, strict=True)):
            return self._rows
        order = (
            by_verdict(snapshot, verdict)
            if key == BY_VERDICT
            else by_column(snapshot, key, descending)
        )
        if not wanted.empty:
            blamed = frozenset(culprits(verdict))
            order = [
                number
                for number in order
                if wanted.passes(snapshot.rank(number), number in blamed, snapshot.time_unix_ns)
            ]
        self._of, self._rows = now, order
        return order


NUMBERED = {number.key: number for number in NUMBERS if number.per is not None}
"""What a filter can compare, as in `step>300`, in the units of the table: ms, s, %, GiB."""
_COMPARED = re.compile(r"([a-z_]+)(>=|<=|>|<|=)(\d+(?:\.\d+)?)?")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": gt, "<": lt, ">=": ge, "<=": le, "=": eq,
}  # fmt: skip
_NAMED = ("state", "host", "rank")
_KEYED = re.compile(r"[a-z_]+:(?!/)")
FIELDS = f"keys: state: host: rank: tp: pp: dp:, numbers: {' '.join(NUMBERED)} with > < ="


@dataclass(frozen=True, slots=True)
class Filter:
    """The conditions for a row: it must match every term.

    `places`: its position in parallel groups, `tp:3`. `numbers`: name, comparison and value,
    `step>300`. `problem`: a sentence about a term that could not be read; such a term is ignored.
    """

    states: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()
    ranks: tuple[range, ...] | None = None
    words: tuple[str, ...] = ()
    places: tuple[tuple[str, tuple[range, ...]], ...] = ()
    numbers: tuple[tuple[str, str, float], ...] = ()
    problem: str = ""
    text: str = field(default="", compare=False)

    @property
    def empty(self) -> bool:
        """Whether every row passes."""
        return not (
            self.states
            or self.hosts
            or self.words
            or self.places
            or self.numbers
            or self.ranks is not None
        )

    def ranks_of(self, snapshot: Snapshot) -> tuple[int, ...]:
        """The ranks of the rows that pass."""
        now = snapshot.time_unix_ns
        return tuple(one.rank for one in snapshot.ranks if self.passes(one, time_unix_ns=now))

    def passes(self, rank: RankFacts, blamed: bool = False, time_unix_ns: int = 0) -> bool:
        """Whether this row is shown. `blamed`: a critical finding blames the rank, whatever its
        state."""
        if self.ranks is not None and not any(rank.rank in part for part in self.ranks):
            return False
        words = (rank.state.value, State.CULPRIT.value) if blamed else (rank.state.value,)
        if self.states and not any(
            word.startswith(state) for state in self.states for word in words
        ):
            return False
        host = clean(rank.host or "").lower()
        if self.hosts and not any(part in host for part in self.hosts):
            return False
        there = not self.places or self._has_coordinates(rank)
        if not there or (self.numbers and not self._compares(rank, time_unix_ns)):
            return False
        if not self.words:
            return True
        row = f"{rank.rank} {rank.state.value} {host} {now_text(rank).lower()} {rank.pid or ''}"
        if rank.reported.place is not None:
            row += f" {rank.reported.place.function} {rank.reported.place.file}".lower()
        return all(word in row for word in self.words)

    def _compares(self, rank: RankFacts, time_unix_ns: int) -> bool:
        """Values that are not measured never match."""
        for name, sign, limit in self.numbers:
            number = NUMBERED[name]
            value = number.value(rank, time_unix_ns)
            if value is None or not _COMPARE[sign](value * number.per, limit):
                return False
        return True

    def _has_coordinates(self, rank: RankFacts) -> bool:
        known = {name: place for name, place, _ in rank.comm.coordinates}
        return all(
            name in known and any(known[name] in part for part in parts)
            for name, parts in self.places
        )


def parse_filter(text: str) -> Filter:
    """What was typed after `/`: `state:blocked host:node3 rank:0-7,12 tp:3 pp:1 step>300`; every
    other word is searched in the row."""
    states: set[str] = set()
    hosts: list[str] = []
    words: list[str] = []
    ranks: tuple[range, ...] | None = None
    places: list[tuple[str, tuple[range, ...]]] = []
    numbers: list[tuple[str, str, float]] = []
    problem = ""
    for term in text.lower().split():
        name, colon, value = term.partition(":")
        compared = _COMPARED.fullmatch(term)
        if compared is not None:
            if compared[1] not in NUMBERED:
                problem = f"unknown number {compared[1]!r}; {FIELDS}"
            elif compared[3] is not None:
                numbers.append((compared[1], compared[2], float(compared[3])))
        elif colon and (place := _place(name, value)) is not None:
            places += place
        elif _KEYED.match(term) and name not in (*_NAMED, *ORDER):
            problem = f"unknown key {name!r}; {FIELDS}"
        elif not colon or name not in _NAMED:
            words.append(term)
        elif not value:
            continue
        elif name == "state":
            wanted = {part for part in value.split(",") if part}
            unknown = sorted(
                w for w in wanted if not any(state.value.startswith(w) for state in State)
            )
            every = " ".join(state.value for state in State)
            problem = f"unknown state {unknown[0]!r}; states: {every}" if unknown else problem
            states |= wanted
        elif name == "host":
            hosts += [part for part in value.split(",") if part]
        else:
            ranges = rank_ranges(value, unfinished=True)
            problem = problem if ranges is not None else f"not a list of ranks: {value!r}"
            ranks = ranges if ranges is not None else ranks
    return Filter(
        frozenset(states),
        tuple(hosts),
        ranks,
        tuple(words),
        tuple(places),
        tuple(numbers),
        problem,
        text.strip(),
    )


def _place(name: str, value: str) -> list[tuple[str, tuple[range, ...]]] | None:
    """A position in a parallel group; empty while its number is still being typed; None if it is
    something else."""
    if name in _NAMED or not _DIMENSION.fullmatch(name):
        return None
    if not value:
        return [] if name in ORDER else None
    ranges = rank_ranges(value, unfinished=True)
    return None if ranges is None else [(short(name), ranges)]


def describe_filter(found: Filter, shown: int, total: int) -> str:
    """`filter state:blocked, 7 of 8 ranks`."""
    note = f" ({found.problem})" if found.problem else ""
    return f"filter {clean(found.text)}{note}, {shown:,} of {total:,} ranks"
