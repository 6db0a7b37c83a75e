"""Which ranks joined a job, and when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ddtop.model.facts import Snapshot
from ddtop.present.events.event import JOIN, JOINED, Event
from ddtop.words.sentences import ranks_text

TOGETHER_NS = 10_000_000_000
"""Ranks that join within this time have joined together."""
_Joined = dict[tuple[int, int, int], int]
"""(attempt, rank, pid) -> when it joined (unix ns)."""


class Joins:
    """The processes that have joined as a rank."""

    def __init__(self) -> None:
        self._joined: _Joined = {}
        self._world_sizes: dict[int, int] = {}
        self._searched_for: tuple[object, ...] = ()
        self._last: Snapshot | None = None
        self._together: tuple[Event, ...] | None = None

    @property
    def events(self) -> tuple[Event, ...]:
        """One event for ranks that joined together."""
        if self._together is None:
            self._together = tuple(self._events())
        return self._together

    def take(self, snapshot: Snapshot, first_unix_ns: int) -> Iterator[Event]:
        """The ranks that are new since the last look, as one event. `first_unix_ns`: the time of
        the first look. It searches only if the counts have changed: there may be 10,000."""
        subject = (snapshot.run, snapshot.attempt, snapshot.world_size, snapshot.reporting)
        new = self._search(snapshot, first_unix_ns) if subject != self._searched_for else {}
        self._searched_for, self._last = subject, snapshot
        if new:
            self._world_sizes[snapshot.attempt] = snapshot.world_size
            self._joined.update(new)
            self._together = None
            ranks = (rank for _, rank, _ in new)
            event = self._event(snapshot.attempt, min(new.values()), ranks)
            # Nobody comes to a job that has ended.
            told = JOINED if snapshot.ended is None else ""
            yield replace(event, noticed_unix_ns=snapshot.time_unix_ns, event=told)

    def absorb(self, earlier: Joins) -> None:
        """Take over what an earlier log knows. It has seen when these ranks joined."""
        self._joined.update(earlier._joined)
        self._world_sizes = earlier._world_sizes | self._world_sizes
        self._together = None

    def _search(self, snapshot: Snapshot, first_unix_ns: int) -> _Joined:
        attempt, new = snapshot.attempt, {}
        for rank in snapshot.ranks:
            if rank.hello is None or (attempt, rank.rank, rank.hello.pid) in self._joined:
                continue
            started_unix_ns = rank.hello.started_unix_ns or snapshot.time_unix_ns
            at = self._when(attempt, started_unix_ns, first_unix_ns)
            new[attempt, rank.rank, rank.hello.pid] = at
        return new

    def _when(self, attempt: int, started_unix_ns: int, first_unix_ns: int) -> int:
        """A process that was there at the first look joined when it started, however late it is
        heard. A later one joined after the last look without it."""
        last = self._last
        if last is None or (last.attempt == attempt and started_unix_ns <= first_unix_ns):
            return started_unix_ns
        return max(started_unix_ns, last.time_unix_ns)

    def _events(self) -> Iterator[Event]:
        together: list[tuple[int, int, set[int]]] = []
        in_order = sorted((attempt, at, rank) for (attempt, rank, _), at in self._joined.items())
        for attempt, at, rank in in_order:
            last = together[-1] if together else None
            # A rank that is there already: another process has taken its place.
            if last is None or attempt != last[0] or at - last[1] > TOGETHER_NS or rank in last[2]:
                together.append((attempt, at, set()))
            together[-1][2].add(rank)
        return (self._event(*one) for one in together)

    def _event(self, attempt: int, unix_ns: int, joined: Iterable[int]) -> Event:
        ranks, world_size = tuple(sorted(joined)), self._world_sizes[attempt]
        return Event(
            JOIN,
            (JOIN, attempt, unix_ns),
            unix_ns,
            unix_ns,
            ((unix_ns, f"{ranks_text(ranks, 6)} of {world_size:,} joined"),),
            JOINED,
            ranks,
            world_size,
            attempt=attempt,
        )
