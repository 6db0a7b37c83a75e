"""Finds the ranks that wait inside init_process_group and those that failed there. All rules about
the start use this.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from ddtop.model.ending import fatal_exception, has_failed
from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.wire.names import INIT_CALLS, JAX_INIT
from ddtop.wire.records import Hello, store_address
from ddtop.words.sentences import ranks_text, verb

INIT = "init_process_group"
_GAVE_UP = re.compile(
    r"connectfullmesh|timed out|timeout|failed to (connect|listen)|client socket|EADDRINUSE|address"
    r" already in use|"
    r"name or service|name resolution|getaddrinfo|gai error|hostname|connection"
    r" (refused|reset|closed)|clients joined|"
    r"permission denied|no such file|broken pipe|socket",
    re.IGNORECASE,
)
_NO_STORE = re.compile(
    r"client socket|failed to connect|name or service|name resolution|getaddrinfo|gai"
    r" error|hostname",
    re.IGNORECASE,
)
_PORT_TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "ip6-localhost"})
WHY_NOT = {
    "open": "whatever answers there closes the connection",
    "refused": "connection refused, nothing listens there",
    "timed out": "no answer: packets are dropped, or no host has the address",
    "name not found": "no such host name",
    "unreachable": "no route to that host",
}
"""Why a store cannot be reached, by the result of a connection to it."""


class Words(NamedTuple):
    """What the call and the things around it are called where the ranks start."""

    size: str = "WORLD_SIZE"
    number: str = "RANK"
    address: str = "MASTER_ADDR:MASTER_PORT (or init_method)"
    store: str = "store"


_OF_JAX = Words("num_processes", "process_id", "coordinator_address", "coordinator")


@dataclass(frozen=True, slots=True)
class Joining:
    """The ranks that have called init_process_group.

    `inside`: those that wait there. `gave_up`: those that failed there. `since_unix_ns`: when the
    first of them entered. `waited_s`: how long ago that is.
    """

    inside: tuple[RankFacts, ...]
    gave_up: tuple[RankFacts, ...]
    since_unix_ns: int
    waited_s: float

    @property
    def victims(self) -> tuple[int, ...]:
        """All of them."""
        return tuple(sorted(rank.rank for rank in (*self.inside, *self.gave_up)))

    @property
    def wait_text(self) -> str:
        """`ranks 0-2 wait in init_process_group (store node0:29500)`."""
        inside = tuple(rank.rank for rank in self.inside) or self.victims
        verbs = ("waits", "wait") if self.inside else ("gave up", "gave up")
        store = next(
            (text for rank in (*self.inside, *self.gave_up) if (text := store_text(rank))), None
        )
        where = f" ({self.words.store} {store})" if store else ""
        return f"{ranks_text(inside)} {verb(inside, *verbs)} in {self.init}{where}"

    @property
    def init(self) -> str:
        """The call in which they wait: one of INIT_CALLS."""
        if self.words is _OF_JAX:
            return JAX_INIT
        calls = [
            call.name
            for rank in self.inside
            for call in rank.comm.open_calls
            if call.name in INIT_CALLS
        ]
        return calls[0] if calls else INIT

    @property
    def words(self) -> Words:
        """Those of JAX, or of torch."""
        ranks = (*self.inside, *self.gave_up)
        jax = any(rank.hello is not None and rank.hello.backend == "jax" for rank in ranks)
        return _OF_JAX if jax else Words()

    def waiting_without(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """All ranks that wait, except these."""
        return tuple(sorted(set(self.victims) - set(ranks)))


def joining_of(snapshot: Snapshot) -> Joining | None:
    """None if a rank has communicated, if no rank is inside, or if a rank failed for its own
    reason."""
    if any(_has_communicated(rank) for rank in snapshot.ranks):
        return None
    gave_up = tuple(
        rank for rank in snapshot.ranks if has_failed(rank) and _rendezvous_failed(rank)
    )
    thrown_out = {rank.rank for rank in gave_up}
    if any(
        rank.rank not in thrown_out and not rank.claimants.hellos and has_failed(rank)
        for rank in snapshot.ranks
    ):
        return None
    inside = tuple(rank for rank in snapshot.ranks if _is_inside(rank))
    entered = [since for rank in inside if (since := entered_unix_ns(rank)) is not None]
    entered += [at for rank in gave_up if (at := _failed_init_unix_ns(rank)) is not None]
    entered += [
        hello.init_unix_ns
        for rank in snapshot.ranks
        for hello in rank.claimants.hellos
        if hello.init_unix_ns
    ]
    if not entered:
        return None
    return Joining(inside, gave_up, min(entered), (snapshot.time_unix_ns - min(entered)) / 1e9)


def _is_inside(rank: RankFacts) -> bool:
    # Its agent is silent while torch opens a file again and again with the GIL held.
    silent = (
        rank.state is State.SILENT
        and rank.process.report is not None
        and rank.process.report.init_since_unix_ns is not None
    )
    return silent or rank.state is State.JOINING


def _has_communicated(rank: RankFacts) -> bool:
    if rank.progress.iteration or (rank.comm.outside is not None and rank.comm.outside.waits):
        return True
    return any(
        group.completed > 0 if group.completed is not None else group.enqueued > 1
        for group in rank.comm.groups
    )


def _rendezvous_failed(rank: RankFacts) -> bool:
    """Whether an error of the network or the store ended its init_process_group."""
    error = rank.reported.exception
    if error is None or _failed_init_unix_ns(rank) is None or not fatal_exception(rank):
        return False
    return bool(_GAVE_UP.search(f"{error.type} {error.text}"))


def _failed_init_unix_ns(rank: RankFacts) -> int | None:
    """When a rank entered the init_process_group that failed.

    A port that is taken ends the call within milliseconds, before the agent has reported that it
    began. Then the traceback shows the call, and the time is that of the exception.
    """
    if rank.hello is not None and rank.hello.init_unix_ns is not None:
        return rank.hello.init_unix_ns
    error = rank.reported.exception
    if error is None or not any(frame.function in INIT_CALLS for frame in error.frames):
        return None
    return error.unix_ns


def port_was_taken(rank: RankFacts) -> bool:
    """Whether it could not listen because another process has its port."""
    return rank.reported.exception is not None and bool(
        _PORT_TAKEN.search(rank.reported.exception.text)
    )


def could_not_connect(rank: RankFacts) -> bool:
    """Whether it never had a connection to the store. The error about missing peers is a different
    one.
    """
    return rank.reported.exception is not None and bool(
        _NO_STORE.search(rank.reported.exception.text)
    )


def entered_unix_ns(rank: RankFacts) -> int | None:
    """When it entered init_process_group; it is still inside."""
    since = rank.process.report.init_since_unix_ns if rank.process.report is not None else None
    return next(
        (call.since_unix_ns for call in rank.comm.open_calls if call.name in INIT_CALLS), since
    )


def has_entered(rank: RankFacts) -> bool:
    """Whether it is or was inside init_process_group."""
    inside = rank.process.report is not None and rank.process.report.init_since_unix_ns is not None
    return inside or (rank.hello is not None and rank.hello.init_unix_ns is not None)


def store_of(rank: RankFacts) -> tuple[str, int] | None:
    """(address, port) of the store that it connects to."""
    return _store_of(rank.hello) if rank.hello is not None else None


def _store_of(hello: Hello) -> tuple[str, int] | None:
    return store_address(hello.init_method, hello.environment)


def place_of(hello: Hello) -> tuple[str, int] | str | None:
    """Where a process meets the others: (address, port), or the path of a file."""
    return _store_of(hello) or (hello.store_file.path if hello.store_file is not None else None)


def store_text(rank: RankFacts) -> str | None:
    """`node0:29500`, or the path of a file."""
    found = store_of(rank)
    if found is not None:
        return f"{found[0]}:{found[1]}"
    return (
        rank.hello.store_file.path
        if rank.hello is not None and rank.hello.store_file is not None
        else None
    )


def path_line(rank: RankFacts) -> str | None:
    """`rank 1 (pid 4801) → 127.0.0.1:29500: no connection, refused; nothing listens there`."""
    way = rank.comm.rendezvous
    if way is None:
        return None
    held = "unknown" if way.sockets is None else ", ".join(way.sockets) or "no connection"
    text = f"rank {rank.rank} (pid {way.pid}) → {way.address}:{way.port}: {held}"
    if way.probe is not None:
        text += f", the relay tried: {way.probe}"
    if way.listener_pid is not None:
        text += f"; pid {way.listener_pid} ({way.listener_command or '?'}) listens there"
    elif way.listener_user is not None:
        text += f"; a process of {way.listener_user} listens there"
    elif way.local:
        text += "; nothing listens there"
    return text
