"""Finds the ranks that wait inside init_process_group and those that failed there. All rules about
the start use this.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ddtop.model.ending import fatal_exception, has_failed
from ddtop.model.errors import Says
from ddtop.model.facts import RankFacts, Snapshot, State
from ddtop.wire.names import INIT_CALLS, JAX_INIT
from ddtop.wire.records import Hello, store_address

INIT = "init_process_group"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "ip6-localhost"})


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
    def init(self) -> str:
        """The call in which they wait: one of INIT_CALLS."""
        if self.of_jax:
            return JAX_INIT
        calls = [
            call.name
            for rank in self.inside
            for call in rank.comm.open_calls
            if call.name in INIT_CALLS
        ]
        return calls[0] if calls else INIT

    @property
    def of_jax(self) -> bool:
        """They start JAX, not torch."""
        ranks = (*self.inside, *self.gave_up)
        return any(rank.hello is not None and rank.hello.backend == "jax" for rank in ranks)

    def waiting_without(self, ranks: Collection[int]) -> tuple[int, ...]:
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
    return Says.GAVE_UP.within(" ".join((error.type, error.text)))


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


def says(rank: RankFacts, what: Says) -> bool:
    """Whether its exception says this."""
    return rank.reported.exception is not None and what.within(rank.reported.exception.text)


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
