"""NCCL's status service (RAS): a thread in each process of a job answers for the whole job.

It listens on localhost. The relay asks only while something is stuck, at most every ten seconds, on
a separate thread. An answer takes milliseconds, or five to ten seconds if a peer is silent, because
NCCL waits for it. Another job or another program may listen on that port. So the answer is bounded,
and communicators without a process of this job are left out.

Before 2.29, an answer about several communicators with a missing rank makes the answering process
read beyond its buffer; over IPv6 that process allocates gigabytes. Such a release is asked only
while all ranks exist and run.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from ddtop.policy import Policy
from ddtop.relay.processes import cgroup
from ddtop.relay.processes.sample import Watched
from ddtop.wire.records import Communicator, RasAnswer, RasRank

# -- Parses the text of NCCL's status service, 2.24 to 2.28.3
#
# It is a table of groups of equal communicators, followed by the ranks that differ. For a
# communicator in which all ranks agree it has only the size. It names ranks if only a few differ
# from the others.


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
RAS_STUCK_FRESH_S = 2.0
"""... and for this time after the last agent has said so."""
RAS_SILENT_S = 3.0
"""A rank on NCCL that has not reported for this time counts as stuck. Agents report twice a
second: its interpreter does not run."""


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

    def _begin(self, match: re.Match[str]) -> None:
        self._word, self._op, self._many, self._entry = match[4], "", "", None
        if match[3] is not None and len(self.entries) < COMMUNICATORS_MAX:
            self._entry = self.entries.setdefault((int(match[1]), int(match[2])), _Entry(match[3]))

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
                    _communicator_of_text(entry, size, state)
                    if entry
                    else Communicator(f"group {group}", size, state=state)
                )


def _communicator_of_text(entry: _Entry, size: int, state: str) -> Communicator:
    usual = {op: usual_of(values) for op, values in entry.values.items()}
    ranks = []
    for rank in entry.ranks.values():
        late = any(count < usual[op] for op, count in rank.counts.items())
        if rank.number < size:
            words = "behind" if late and rank.state == "ok" else rank.state
            ranks.append(RasRank(rank.number, rank.host, rank.pid, words, rank.gpu, rank.counts))
    problems = () if ranks else tuple(text[:TEXT_MAX] for text in entry.problems)
    ranks.sort(key=lambda rank: rank.number)
    return Communicator(entry.name, size, tuple(ranks), state, problems, usual)


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
    communicators = list(islice(reader.communicators(), COMMUNICATORS_MAX))
    named = {(rank.host, rank.pid) for communicator in communicators for rank in communicator.ranks}
    # 2.24 lists the missing processes and the missing ranks separately, without saying which belong
    # together.
    lost = [
        RasRank(-1, host, pid, state)
        for (host, pid), state in list(reader.lost.items())[:RANKS_MAX]
        if (host, pid) not in named
    ]
    if lost:
        communicators.append(Communicator("", 0, tuple(lost), "bad"))
    return RasAnswer(tuple(communicators), version[1], text=True)


# -- The question to NCCL's status service, and its answer


ADDRESS = "localhost:28028"
DEADLINE_S = 11.0
"""NCCL stops waiting for silent peers after five seconds in each direction, ten in all."""
GREETING_S, TRIES = 1.0, 5
"""All processes of a node share the port, and the kernel picks one by the source port of the
connection. A stopped process accepts the connection but never answers; a running one sends its
greeting at once."""
EVERY_S = 10.0
ANSWER_BYTES_MAX = 4 << 20
OPS_MAX = 16
REPORTED_RANKS_MAX = 2048
NOT_ASKED = "before NCCL 2.29 it is not asked while a rank is gone or stopped"
_NO_COMMA = re.compile(r'("nvml_dev": -?\d+)(\s+"status")')
"""For missing ranks, 2.28.7 and 2.28.9 write no comma there."""


class _NotAskedError(Exception):
    """This release must not be asked now."""


def ask(address: str, deadline_s: float = DEADLINE_S, whole: bool = True) -> RasAnswer:
    """The answer of the service: JSON if it supports it, else its text.

    It never raises: `why` of the answer says what failed. `whole`: all ranks of the job live and
    none of them is stopped.
    """
    try:
        text, as_json = _ask(address, time.monotonic() + deadline_s, whole)
        return parse_json(text) if as_json else parse_text(text)
    except _NotAskedError:
        return RasAnswer(why=NOT_ASKED)
    except (OSError, ValueError, OverflowError) as error:
        return RasAnswer(why=f"{type(error).__name__}: {error}"[:TEXT_MAX])


def _ask(address: str, until: float, whole: bool) -> tuple[str, bool]:
    host, _, port = address.rpartition(":")
    for _ in range(TRIES):
        with socket.create_connection(
            (host.strip("[]") or "localhost", int(port)), timeout=2.0
        ) as link:
            lines = _Lines(link, min(until, time.monotonic() + GREETING_S))
            try:
                lines.say("CLIENT PROTOCOL 2")
                greeting = lines.read_line()
            except TimeoutError:
                continue
            if not greeting.upper().startswith(b"SERVER PROTOCOL"):
                raise ValueError(f"no NCCL listens there: {greeting[:40]!r}")
            lines.until = until
            data, as_json = _talk(lines, whole)
            return data.decode(errors="replace"), as_json
    raise TimeoutError("the process that listens there does not answer")


def _talk(lines: _Lines, whole: bool) -> tuple[bytes, bool]:
    """(the answer to STATUS, whether it is JSON)."""
    lines.say("SET FORMAT json")
    as_json = lines.read_line().strip().upper() == b"OK"
    if not whole:
        # There are no such events: 2.29 and later report that and change nothing; older releases do
        # not know the command.
        lines.say("MONITOR ?")
        if b"UNKNOWN COMMAND" in lines.read_line().upper():
            raise _NotAskedError
    lines.say("STATUS" if as_json else "VERBOSE STATUS")
    return lines.read_all(), as_json


class _Lines:
    """Lines to and from the service, bounded in bytes and time (`until`, monotonic s)."""

    def __init__(self, link: socket.socket, until: float) -> None:
        self._link, self.until, self._rest = link, until, b""

    def say(self, line: str) -> None:
        self._link.settimeout(self._remaining_s())
        self._link.sendall(line.encode() + b"\n")

    def read_line(self) -> bytes:
        while b"\n" not in self._rest:
            if not self._read_more():
                break
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def read_all(self) -> bytes:
        while self._read_more():
            pass
        return self._rest

    def _read_more(self) -> bool:
        self._link.settimeout(self._remaining_s())
        part = self._link.recv(1 << 16)
        self._rest += part
        if len(self._rest) > ANSWER_BYTES_MAX:
            raise ValueError(f"an answer of more than {ANSWER_BYTES_MAX >> 20} MiB")
        return bool(part)

    def _remaining_s(self) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no complete answer within {DEADLINE_S:g} s")
        return left


def parse_json(text: str) -> RasAnswer:
    """The JSON of 2.28.7 and later."""
    try:
        reported = json.loads(_NO_COMMA.sub(r"\1,\2", text))
    except (ValueError, RecursionError) as error:
        return RasAnswer(why=f"its JSON cannot be read: {error}"[:TEXT_MAX])
    if not isinstance(reported, dict):
        return RasAnswer(why="its JSON is not an object")
    communicators = [
        _communicator(communicator)
        for communicator in _list(reported, "communicators")[:COMMUNICATORS_MAX]
        if isinstance(communicator, dict)
    ]
    version = reported.get("nccl_version")
    return RasAnswer(
        tuple(communicators), str(version)[:20] if isinstance(version, (str, int)) else None
    )


def _communicator(reported: Mapping[str, Any]) -> Communicator:
    listed = _list(reported, "ranks")[:RANKS_MAX]
    ranks = [_rank(entry, False) for entry in listed if isinstance(entry, dict)]
    gone = [
        _rank(entry, True)
        for entry in _list(reported, "missing_ranks")[:RANKS_MAX]
        if isinstance(entry, dict)
    ]
    missing = _number(reported, "missing_ranks_count")
    bad = [one for one in (*ranks, *gone) if one.state not in ("ok", "init")]
    state = (
        "bad" if bad or missing else "init" if any(one.state == "init" for one in ranks) else "ok"
    )
    name = str(reported.get("hash") or "")[:40]
    counts: dict[str, list[tuple[int, int]]] = {}
    for rank in ranks:
        for op, count in rank.counts.items():
            counts.setdefault(op, []).append((count, 1))
    usual = {op: usual_of(values) for op, values in list(counts.items())[:OPS_MAX]}
    size = _number(reported, "size") or len(ranks) + len(gone)
    return Communicator(name, size, (*ranks, *gone), state, usual=usual)


def _rank(reported: Mapping[str, Any], missing: bool) -> RasRank:
    status = reported.get("status")
    status = status if isinstance(status, dict) else {}
    counts = reported.get("collective_counts")
    counts = counts if isinstance(counts, dict) else {}
    return RasRank(
        _number(reported, "rank") or 0,
        str(reported.get("host") or "")[:80],
        _number(reported, "pid") or 0,
        _state_word(status) if missing else _state(status),
        _number(reported, "cuda_dev"),
        {
            str(name)[:20]: count
            for name in list(counts)[:OPS_MAX]
            if (count := _number(counts, name)) is not None
        },
    )


def _state_word(status: Mapping[str, Any]) -> str:
    if status.get("considered_dead"):
        return "dead"
    return "unresponsive" if status.get("unresponsive") else "left"


def _state(status: Mapping[str, Any]) -> str:
    """The state of a rank, as NCCL's own text sums it up.

    NCCL shows an operation in progress (7) as a state only during initialization.
    """
    if status.get("abort_flag"):
        return "abort"
    if status.get("finalize_called") or status.get("destroy_flag"):
        return "finalize"
    init, error = _number(status, "init_state") or 0, _number(status, "async_error") or 0
    return "error" if init not in (0, 7) or error not in (0, 7) else "init" if init else "ok"


def _list(reported: Mapping[str, Any], key: str) -> list[Any]:
    value = reported.get(key)
    return value if isinstance(value, list) else []


def _number(reported: Mapping[str, Any], key: str) -> int | None:
    value = reported.get(key)
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
        else None
    )


def of_job(answer: RasAnswer, pids: Collection[int]) -> RasAnswer:
    """The answer without the communicators of other jobs of this user.

    A communicator belongs to another job if it shares no process with ours, neither directly nor
    through further communicators. The text names only few ranks, so there a communicator is left
    out only if it names a process of this host that is not ours.
    """
    if answer.text:
        kept = [
            communicator
            for communicator in answer.communicators
            if not _has_stranger(communicator, pids)
        ]
        return msgspec.structs.replace(answer, communicators=_bounded(kept))
    known: set[tuple[str, int]] = set()
    kept = []
    left = list(answer.communicators)
    while True:
        fitting = [
            communicator
            for communicator in left
            if not communicator.ranks or _shares(communicator, pids, known)
        ]
        if not fitting:
            return msgspec.structs.replace(answer, communicators=_bounded(kept))
        kept += fitting
        known |= {(rank.host, rank.pid) for communicator in fitting for rank in communicator.ranks}
        left = [communicator for communicator in left if communicator not in fitting]


def _bounded(communicators: list[Communicator]) -> tuple[Communicator, ...]:
    """At most REPORTED_RANKS_MAX ranks in all, those that differ first, because the size of a frame
    is limited."""
    room, reported = REPORTED_RANKS_MAX, []
    for communicator in communicators:
        ranks = sorted(
            communicator.ranks,
            key=lambda rank: (rank.state == "ok", sum(rank.counts.values()), rank.number),
        )
        kept = tuple(sorted(ranks[:room], key=lambda rank: rank.number))
        room -= len(kept)
        reported.append(msgspec.structs.replace(communicator, ranks=kept))
    return tuple(reported)


def _shares(
    communicator: Communicator, pids: Collection[int], known: Collection[tuple[str, int]]
) -> bool:
    return any(rank.pid in pids or (rank.host, rank.pid) in known for rank in communicator.ranks)


def _has_stranger(communicator: Communicator, pids: Collection[int]) -> bool:
    return any(
        _is_here(host)
        for host in {rank.host for rank in communicator.ranks if rank.pid and rank.pid not in pids}
    )


def _is_here(address: str) -> bool:
    """Whether this address belongs to this host: only such an address can be bound.

    NCCL never gives a name, and a name server could take long.
    """
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except (OSError, ValueError):
        return False
    return True


class Ras:
    """Decides when to ask the service, and keeps its last answer. Times are monotonic s.

    Used by the relay's thread. Only the request itself runs on a separate thread.
    """

    def __init__(
        self, policy: Policy, deadline_s: float = DEADLINE_S, every_s: float = EVERY_S
    ) -> None:
        self._policy, self._every_s = policy, every_s
        self._deadline_s = deadline_s
        self._since: float | None = None
        self._last = self._asked = float("-inf")
        self._thread: threading.Thread | None = None
        self._answer: RasAnswer | None = None
        self._reported: list[Communicator] = []
        self._reported_at = 0.0

    def note_stuck(self, now: float) -> None:
        """An agent reports that something is stuck."""
        passed = now - self._last > RAS_STUCK_FRESH_S
        self._since = now if self._since is None or passed else self._since
        self._last = now

    def is_stuck(self, now: float) -> bool:
        """Whether something has been stuck for long enough to ask."""
        return self._since is not None and now - self._since >= self._policy.ras_stuck_s

    def look(self, now: float, here: Iterable[Watched], elsewhere: int = 0) -> RasAnswer | None:
        """A new answer, returned once.

        Asks if something has been stuck for two seconds; never waits.

        `here`: the living ranks of this host, `elsewhere`: how many live on other hosts. Only the
        relay of rank 0's host asks, for all hosts. If C code holds the GIL of every rank, none can
        report that something is stuck; then their silence is the reason to ask.
        """
        answer, self._answer = self._answer, None
        ranks = [watched for watched in here if "nccl" in (watched.hello.backend or "")]
        if any(now - watched.heard_mono_ns / 1e9 > RAS_SILENT_S for watched in ranks):
            self.note_stuck(now)
        if self._since is not None and now - self._last > RAS_STUCK_FRESH_S:
            self._since = None
        busy = self._thread is not None and self._thread.is_alive()
        if (
            self.is_stuck(now)
            and not busy
            and now - self._asked >= self._every_s
            and any(watched.hello.rank == 0 for watched in ranks)
        ):
            address = address_of([watched.hello.environment for watched in ranks])
            if address is not None:
                self._asked = now
                arguments = (address, is_whole(ranks, elsewhere))
                self._thread = threading.Thread(
                    target=self._run, args=arguments, name="ddtop-ras", daemon=True
                )
                self._thread.start()
        return (
            self._date(of_job(answer, {watched.hello.pid for watched in ranks}), now)
            if answer is not None
            else None
        )

    def _date(self, answer: RasAnswer, now: float) -> RasAnswer:
        """The same answer from two processes may have its communicators in another order."""
        reported = sorted(answer.communicators, key=lambda communicator: communicator.name)
        if reported != self._reported:
            self._reported, self._reported_at = reported, now
        return msgspec.structs.replace(
            answer, same_ms=int((now - self._reported_at) * 1000) if reported else None
        )

    def _run(self, address: str, whole: bool) -> None:
        answer = ask(address, self._deadline_s, whole)
        self._answer = answer if answer.why != NOT_ASKED else None


def is_whole(here: Collection[Watched], elsewhere: int) -> bool:
    """Whether all ranks of the job live and none of this host is stopped or frozen."""
    size = max((watched.hello.world_size or 0 for watched in here), default=0)
    if not size or len(here) + elsewhere < size:
        return False
    return not any(
        (watched.last_state or "?") in "Tt" or cgroup.is_frozen(watched.freezer) for watched in here
    )


def address_of(environments: Collection[Mapping[str, str]]) -> str | None:
    """The address of the service of these ranks; None if it is switched off."""
    for environment in environments:
        if environment.get("NCCL_RAS_ENABLE", "1") == "0":
            return None
        address = environment.get("NCCL_RAS_ADDR")
        if address:
            return address
    return ADDRESS if environments else None
