"""Parses the text of NCCL's status service, 2.24 to 2.28.3.

It is a table of groups of equal communicators, followed by the ranks that differ. For a
communicator in which all ranks agree it has only the size. It names ranks if only a few differ from
the others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from ddtop.wire.gpu import Communicator, RasAnswer, RasRank

LINES_MAX, COMMUNICATORS_MAX, RANKS_MAX, PROBLEMS_MAX, TEXT_MAX = 20_000, 64, 4096, 16, 200
_ROW = re.compile(
    r"^\s*(\d{1,9})\s+(\d{1,9})\s+\d{1,9}\s+[\d-]{1,20}\s+(\d{1,9})\s+\d{1,9}\s+([A-Z]+)"
    r"\s+([A-Z,]+)\s*$"
)
"""Group, communicators in it, nodes, ranks per node, ranks per communicator, ranks in the group,
status, errors."""
_ENTRY = re.compile(
    r"^(?:#(\d{1,9})-(\d{1,9}) \(([0-9a-f]{1,16})\) )?(INCOMPLETE|DEAD|TIMEOUT|ERROR|MISMATCH)$"
)
_PROCESS = re.compile(r"^  Process (\d{1,9}) on node (\S{1,80}) managing GPU")
_RANK = re.compile(
    r"^  Rank (\d{1,9})(| has .{1,80}?| reported .{1,80}?)"
    r"(?: -- (?:GPU (\d{1,4})(?: \(NVML \d{1,4}\))? managed by process (\d{1,9}) on node"
    r" (\S{1,80})|\[.*\]))?$"
)
_MANY = re.compile(r"^  (\d{1,9}) ranks( have .{1,80}| reported .{1,80})$")
_MISSING = re.compile(r"^  The missing ranks?: ([\d, ]{1,200})$")
_COUNTS = re.compile(r"^  Communicator ranks have different (\w{1,20}) operation counts$")
_LAUNCHED = re.compile(r" launched (?:up to operation (\d{1,18})|any operations)$")
_VERSION = re.compile(r"NCCL version (\d[\d.]{0,19})", re.IGNORECASE)
_STATUS = {
    "RUNNING": "ok",
    "INIT": "init",
    "FINALIZE": "finalize",
    "ABORT": "abort",
    "NOCOMM": "left",
    "UNKNOWN": "left",
}


@dataclass
class _Rank:
    number: int
    gpu: int | None
    pid: int
    host: str
    state: str = "ok"
    counts: dict[str, int] = field(default_factory=dict)


@dataclass
class _Entry:
    """A communicator that the text describes.

    `values`: (launches, by how many ranks) of each operation.
    """

    name: str
    ranks: dict[int, _Rank] = field(default_factory=dict)
    values: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class _Reader:
    """Reads line by line; the meaning of a line depends on its entry."""

    def __init__(self) -> None:
        self.groups: dict[int, tuple[int, int, str]] = {}
        self.entries: dict[tuple[int, int], _Entry] = {}
        self.lost: dict[tuple[str, int], str] = {}
        self._word = self._op = self._many = ""
        self._entry: _Entry | None = None
        self._named = 0

    def line(self, text: str) -> None:
        if row := _ROW.match(text):
            status, fine = _STATUS.get(row[4], "ok"), row[5] == "OK"
            self.groups[int(row[1])] = (
                int(row[2]),
                int(row[3]),
                status if fine and status in ("ok", "init") else "bad",
            )
        elif entry := _ENTRY.match(text):
            self._begin(entry)
        elif (process := _PROCESS.match(text)) and self._entry is None:
            self.lost[process[2], int(process[1])] = (
                "dead" if self._word == "DEAD" else "unresponsive"
            )
        elif self._entry is not None:
            self._in_entry(self._entry, text)

    def _begin(self, found: re.Match[str]) -> None:
        self._word, self._op, self._many, self._entry = found[4], "", "", None
        if found[3] is not None and len(self.entries) < COMMUNICATORS_MAX:
            self._entry = self.entries.setdefault((int(found[1]), int(found[2])), _Entry(found[3]))

    def _in_entry(self, entry: _Entry, text: str) -> None:
        if different := _COUNTS.match(text):
            # 2.24 counts all kinds of operations together.
            self._op, self._many = different[1].replace("collective", "collectives"), ""
        elif many := _MANY.match(text):
            self._many = many[2]
            if launched := _LAUNCHED.search(many[2]):
                entry.values.setdefault(self._op, []).append((int(launched[1] or 0), int(many[1])))
            if len(entry.problems) < PROBLEMS_MAX:
                entry.problems.append(
                    f"{many[1]} ranks{many[2]}" + (f" ({self._op})" if launched else "")
                )
        elif missing := _MISSING.match(text):
            for number in missing[1].replace(",", " ").split()[:RANKS_MAX]:
                self._name(entry, _Rank(int(number[:9]), None, 0, ""), "")
        elif rank := _RANK.match(text):
            gpu, pid, host = rank[3], int(rank[4] or 0), (rank[5] or "")
            self._name(entry, _Rank(int(rank[1]), int(gpu) if gpu else None, pid, host), rank[2])

    def _name(self, entry: _Entry, named: _Rank, what: str) -> None:
        """Note a rank with its own state, or (`what` empty) with the state of the ranks that were
        just counted.
        """
        self._named += 1
        if self._named > RANKS_MAX:
            return
        rank = entry.ranks.setdefault(named.number, named)
        words = what or self._many
        if self._word == "INCOMPLETE":
            rank.state = self.lost.get((rank.host, rank.pid), "unresponsive")
        elif self._word == "ERROR":
            rank.state = "error"
        elif launched := _LAUNCHED.search(words):
            rank.counts[self._op] = int(launched[1] or 0)
            if what:
                entry.values.setdefault(self._op, []).append((rank.counts[self._op], 1))
        elif rank.state == "ok":
            rank.state = _STATUS.get(words.rpartition(" status ")[2], "ok")

    def communicators(self) -> Iterator[Communicator]:
        for group, (count, size, state) in self.groups.items():
            for index in range(min(count, COMMUNICATORS_MAX) if size else 0):
                entry = self.entries.get((group, index))
                yield (
                    _communicator(entry, size, state)
                    if entry
                    else Communicator(f"group {group}", size, state=state)
                )


def _communicator(entry: _Entry, size: int, state: str) -> Communicator:
    usual = {op: usual_of(values) for op, values in entry.values.items()}
    ranks = []
    for one in entry.ranks.values():
        late = any(count < usual[op] for op, count in one.counts.items())
        if one.number < size:
            words = "behind" if late and one.state == "ok" else one.state
            ranks.append(RasRank(one.number, one.host, one.pid, words, one.gpu, one.counts))
    missing = sum(one.state in ("dead", "unresponsive", "left") for one in ranks)
    problems = () if ranks else tuple(text[:TEXT_MAX] for text in entry.problems)
    ranks.sort(key=lambda one: one.number)
    return Communicator(entry.name, size, tuple(ranks), missing, state, problems, usual)


def usual_of(values: list[tuple[int, int]]) -> int:
    """The number of launches that most ranks have. `values`: (launches, ranks).

    If two are equally common, it is the larger one.
    """
    ranks: Counter[int] = Counter()
    for launches, count in values:
        ranks[launches] += count
    return max(ranks, key=lambda launches: (ranks[launches], launches))


def parse_text(text: str) -> RasAnswer:
    """The answer; with `why` if the text does not come from NCCL."""
    version = _VERSION.search(text)
    reader = _Reader()
    for line in text.splitlines()[:LINES_MAX]:
        reader.line(line[:1000])
    if version is None:
        return RasAnswer(why="its answer was not understood", text=True)
    found = list(islice(reader.communicators(), COMMUNICATORS_MAX))
    named = {(rank.host, rank.pid) for one in found for rank in one.ranks}
    # 2.24 lists the missing processes and the missing ranks separately, without saying which belong
    # together.
    lost = [
        RasRank(-1, host, pid, state)
        for (host, pid), state in list(reader.lost.items())[:RANKS_MAX]
        if (host, pid) not in named
    ]
    if lost:
        found.append(Communicator("", 0, tuple(lost), len(lost), "bad"))
    return RasAnswer(tuple(found), version[1], text=True)
