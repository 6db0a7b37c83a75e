"""NCCL's status service (RAS): one thread in each process of a job listens on localhost and answers for the whole job.

Asked only while something stands, at most every ten seconds, in a thread of its own: an answer takes up to ten seconds where a peer
is dead, because NCCL asks all of them. Whoever listens on that port may be another job, or a stranger: what comes is bounded, and
communicators without a process of this job are left out.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ddtop.wire.gpu import Communicator, RasAnswer, RasRank
from ddtop.wire.records import Hello

ADDRESS = "localhost:28028"
DEADLINE_S = 11.0
"""NCCL gives up on silent peers after five seconds a leg, ten in all."""
EVERY_S = 10.0
STANDS_S = 2.0
FRESH_S = 2.0
ANSWER_BYTES_MAX = 4 << 20
COMMUNICATORS_MAX, RANKS_MAX, PROBLEMS_MAX, TEXT_MAX = 64, 4096, 16, 200
TOLD_MAX = 2048
_STATES = ((0, "ok"), (7, "init"))
_BAD_COMMA = re.compile(r",(\s*[\]}])")
_MISSING_COMMA = re.compile(r'([\]}"0-9el])(\s*\n\s*)(?=["{])')
_ROW = re.compile(r"^\s*(\d{1,9})((?:\s+[\d-]{1,20}){4,7})\s+([A-Z]+)\s+([A-Z]+)\s*$")
"""Group, numbers of which the last but one are the ranks of a communicator, status, errors."""
_OUTLIER = re.compile(r"Rank (\d+)\s*(?:--|-)?\s*GPU (\d+) managed by process (\d+) on node (\S+)", re.IGNORECASE)
_PROBLEM = re.compile(r"\b(INCOMPLETE|DEAD|TIMEOUT|MISMATCH|NOCOMM|UNKNOWN|ABORT|FINALIZE|ERROR)\b")
_VERSION = re.compile(r"NCCL version (\d[\d.]*)", re.IGNORECASE)


def ask(address: str, deadline_s: float = DEADLINE_S) -> RasAnswer:
    """What the service says; JSON where it knows that and it can be read, else its text. Never raises: `why` tells what failed."""
    began = time.monotonic()
    try:
        text, as_json = _asked(address, began + deadline_s, True)
        found = parse_json(text) if as_json else parse_text(text)
        if as_json and found.why is not None:
            found = parse_text(_asked(address, began + deadline_s, False)[0])
    except (OSError, ValueError, OverflowError) as error:
        return RasAnswer(why=f"{type(error).__name__}: {error}"[:TEXT_MAX], took_ms=_ms(began))
    return RasAnswer(found.communicators, found.nccl, found.why, _ms(began), found.text)


def _asked(address: str, until: float, wants_json: bool) -> tuple[str, bool]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]") or "localhost", int(port)), timeout=2.0) as link:
        data, as_json = _talk(link, until, wants_json)
    return data.decode(errors="replace"), as_json


def _ms(began: float) -> int:
    return int((time.monotonic() - began) * 1000)


def _talk(link: socket.socket, until: float, wants_json: bool) -> tuple[bytes, bool]:
    """(the answer to STATUS, whether it is JSON)."""
    lines = _Lines(link, until)
    lines.say("CLIENT PROTOCOL 2")
    greeting = lines.read_line()
    if not greeting.upper().startswith(b"SERVER PROTOCOL"):
        raise ValueError(f"no NCCL listens there: {greeting[:40]!r}")
    as_json = False
    if wants_json:
        lines.say("SET FORMAT json")
        as_json = lines.read_line().strip().upper() == b"OK"
    lines.say("STATUS" if as_json else "VERBOSE STATUS")
    return lines.read_all(), as_json


class _Lines:
    """Lines to and from the service, bounded in bytes and time."""

    def __init__(self, link: socket.socket, until: float) -> None:
        self._link, self._until, self._rest = link, until, b""

    def say(self, line: str) -> None:
        self._link.settimeout(self._left())
        self._link.sendall(line.encode() + b"\n")

    def read_line(self) -> bytes:
        while b"\n" not in self._rest:
            if not self._more():
                break
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def read_all(self) -> bytes:
        while self._more():
            pass
        return self._rest

    def _more(self) -> bool:
        self._link.settimeout(self._left())
        part = self._link.recv(1 << 16)
        self._rest += part
        if len(self._rest) > ANSWER_BYTES_MAX:
            raise ValueError(f"an answer of more than {ANSWER_BYTES_MAX >> 20} MiB")
        return bool(part)

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no whole answer within {DEADLINE_S:g} s")
        return left


def parse_json(text: str) -> RasAnswer:
    """The JSON of 2.28.7 and later. Where an early one has text before it, or commas too many or too few, that is mended."""
    try:
        said = _loaded(text)
    except (ValueError, RecursionError) as error:
        return RasAnswer(why=f"its JSON cannot be read: {error}"[:TEXT_MAX])
    if not isinstance(said, dict):
        return RasAnswer(why="its JSON is no object")
    found = [_communicator(one) for one in _list(said, "communicators")[:COMMUNICATORS_MAX] if isinstance(one, dict)]
    version = said.get("nccl_version")
    return RasAnswer(tuple(found), str(version)[:20] if isinstance(version, (str, int)) else None)


def _loaded(text: str) -> Any:
    text = text[max(text.find("{"), 0) : text.rfind("}") + 1]
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(_BAD_COMMA.sub(r"\1", _MISSING_COMMA.sub(r"\1,\2", text)))


def _communicator(said: Mapping[str, Any]) -> Communicator:
    ranks = [_rank(one, False) for one in _list(said, "ranks")[:RANKS_MAX] if isinstance(one, dict)]
    gone = [_rank(one, True) for one in _list(said, "missing_ranks")[:RANKS_MAX] if isinstance(one, dict)]
    missing = _number(said, "missing_ranks_count")
    bad = [one for one in (*ranks, *gone) if one.state not in ("ok", "init")]
    state = "bad" if bad or missing else "init" if any(one.state == "init" for one in ranks) else "ok"
    name = str(said.get("hash") or "")[:40]
    return Communicator(name, _number(said, "size") or len(ranks) + len(gone), (*ranks, *gone), missing, state)


def _rank(said: Mapping[str, Any], missing: bool) -> RasRank:
    status = said.get("status")
    status = status if isinstance(status, dict) else {}
    counts = said.get("collective_counts")
    counts = counts if isinstance(counts, dict) else {}
    return RasRank(
        _number(said, "rank") or 0,
        str(said.get("host") or "")[:80],
        _number(said, "pid") or 0,
        _gone(status) if missing else _state(status),
        _number(said, "cuda_dev"),
        {str(name)[:20]: count for name in list(counts)[:16] if (count := _number(counts, name)) is not None},
    )


def _gone(status: Mapping[str, Any]) -> str:
    if status.get("considered_dead"):
        return "dead"
    return "unresponsive" if status.get("unresponsive") else "missing"


def _state(status: Mapping[str, Any]) -> str:
    if status.get("abort_flag"):
        return "abort"
    if status.get("finalize_called") or status.get("destroy_flag"):
        return "finalize"
    codes = (_number(status, "init_state"), _number(status, "async_error"))
    known = dict(_STATES)
    words = [known.get(code, "error") for code in codes if code is not None]
    return "error" if "error" in words else "init" if "init" in words else "ok"


def _list(said: Mapping[str, Any], key: str) -> list[Any]:
    value = said.get(key)
    return value if isinstance(value, list) else []


def _number(said: Mapping[str, Any], key: str) -> int | None:
    value = said.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def parse_text(text: str) -> RasAnswer:
    """The text of older releases: status words, error words and the lines about single ranks; its layout varies."""
    found: list[Communicator] = []
    problems: list[str] = []
    ranks: list[RasRank] = []
    word = ""
    for line in text.splitlines()[:20_000]:
        row = _ROW.match(line)
        if row is not None and len(found) < COMMUNICATORS_MAX:
            size = row[2].split()[-2].rpartition("-")[2]
            state = {"RUNNING": "ok", "INIT": "init"}.get(row[3], row[3].lower()) if row[4] == "OK" else "bad"
            found.append(Communicator(f"group {row[1]}", int(size or 0), state=state))
            continue
        if (match := _PROBLEM.search(line)) is not None:
            word = match[1]
            if len(problems) < PROBLEMS_MAX:
                problems.append(" ".join(line.split())[:TEXT_MAX])
        if (outlier := _OUTLIER.search(line)) is not None and len(ranks) < RANKS_MAX:
            state = {"DEAD": "dead", "INCOMPLETE": "missing", "TIMEOUT": "unresponsive"}.get(word, "behind")
            number, gpu, pid = (int(part[:9]) for part in outlier.group(1, 2, 3))
            ranks.append(RasRank(number, outlier[4].rstrip(".,:")[:80], pid, state, gpu))
    version = _VERSION.search(text)
    if not found and not problems and version is None:
        return RasAnswer(why="its answer was not understood", text=True)
    if problems or ranks:
        size = found[0].size if len(found) == 1 else 0
        found.append(Communicator("", size, tuple(ranks), None, "bad", tuple(problems)))
    return RasAnswer(tuple(found), version[1][:20] if version else None, text=True)


def of_job(answer: RasAnswer, pids: Collection[int]) -> RasAnswer:
    """Without the communicators of other jobs of this user: those that share no process with one of these, by whatever others.

    The text names few ranks: it counts where one of them is ours, or none is named at all.
    """
    known: set[tuple[str, int]] = set()
    kept: list[Communicator] = []
    left = list(answer.communicators)
    while True:
        fitting = [one for one in left if not one.ranks or _shares(one, pids, known)]
        if not fitting:
            return RasAnswer(_bounded(kept), answer.nccl, answer.why, answer.took_ms, answer.text)
        kept += fitting
        known |= {(rank.host, rank.pid) for one in fitting for rank in one.ranks}
        left = [one for one in left if one not in fitting]


def _bounded(found: list[Communicator]) -> tuple[Communicator, ...]:
    """At most TOLD_MAX ranks in all, those that stand out first: a frame has a largest size."""
    room, told = TOLD_MAX, []
    for one in found:
        ranks = sorted(one.ranks, key=lambda rank: (rank.state == "ok", sum(rank.counts.values()), rank.number))
        kept = tuple(sorted(ranks[:room], key=lambda rank: rank.number))
        room -= len(kept)
        told.append(Communicator(one.name, one.size, kept, one.missing, one.state, one.problems))
    return tuple(told)


def _shares(one: Communicator, pids: Collection[int], known: Collection[tuple[str, int]]) -> bool:
    return any(rank.pid in pids or (rank.host, rank.pid) in known for rank in one.ranks)


class Ras:
    """When the service is asked, and its last answer; the relay's thread only, but for the asking. Times are monotonic s."""

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s
        self._since: float | None = None
        self._last = self._asked = float("-inf")
        self._thread: threading.Thread | None = None
        self._answer: RasAnswer | None = None

    def saw(self, now: float) -> None:
        """An agent says that something stands."""
        self._since = now if self._since is None or now - self._last > FRESH_S else self._since
        self._last = now

    def look(self, now: float, hellos: Iterable[Hello]) -> RasAnswer | None:
        """An answer that has just come, once. Asks where something has stood for two seconds; never waits.

        `hellos`: of the ranks here. One relay asks for all hosts: that of rank 0.
        """
        answer, self._answer = self._answer, None
        if self._since is not None and now - self._last > FRESH_S:
            self._since = None
        if self._since is None and answer is None:
            return None
        ranks = [hello for hello in hellos if "nccl" in (hello.backend or "")]
        stands = self._since is not None and now - self._since >= STANDS_S
        busy = self._thread is not None and self._thread.is_alive()
        if stands and not busy and now - self._asked >= EVERY_S and any(hello.rank == 0 for hello in ranks):
            address = address_of([hello.environment for hello in ranks])
            if address is not None:
                self._asked = now
                self._thread = threading.Thread(target=self._run, args=(address,), name="ddtop-ras", daemon=True)
                self._thread.start()
        return of_job(answer, {hello.pid for hello in ranks}) if answer is not None else None

    def _run(self, address: str) -> None:
        self._answer = ask(address, self._deadline_s)


def address_of(environments: Collection[Mapping[str, str]]) -> str | None:
    """Where the service of these ranks listens; None where it is switched off."""
    for one in environments:
        if one.get("NCCL_RAS_ENABLE", "1") == "0":
            return None
        address = one.get("NCCL_RAS_ADDR")
        if address:
            return address
    return ADDRESS if environments else None
