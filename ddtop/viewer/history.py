"""A short memory of each rank's numbers, for the sparklines."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ddtop.model.state.facts import RankFacts, Snapshot

DEPTH = 240
"""Values kept of each series: four minutes at one a second, more than any pane is wide."""
ALL_UP_TO = 1024
"""Up to this many ranks, all are remembered; above it, only those that a user has opened (65,536
would need a quarter GB)."""
PERIOD_NS = 1_000_000_000
SERIES = ("step_ms", "wait_ratio", "loader_depth", "rss_bytes")

Series = deque[float | None]


@dataclass(frozen=True, slots=True)
class Memory:
    """The last values of one rank, oldest first; None where nothing was measured."""

    step_ms: Series
    wait_ratio: Series
    loader_depth: Series
    rss_bytes: Series


class SeriesHistory:
    """Bounded series of the ranks; at most one value a second, by the clock of the snapshots."""

    def __init__(self) -> None:
        self._memories: dict[int, Memory] = {}
        self._watched: set[int] = set()
        self._run = ""
        self._last_ns = 0

    def watch(self, rank: int) -> None:
        """Remember this rank from now on, however many there are."""
        self._watched.add(rank)

    def of(self, rank: int) -> Memory:
        """The memory of a rank; empty series if there is none."""
        return self._memories.get(rank) or empty()

    def record(self, snapshot: Snapshot) -> None:
        """Take the values of a snapshot; a new run of the job forgets the old one."""
        if snapshot.run != self._run:
            self._memories.clear()
            self._run, self._last_ns = snapshot.run, 0
        if snapshot.time_unix_ns < self._last_ns + PERIOD_NS:
            return
        self._last_ns = snapshot.time_unix_ns
        few = len(snapshot.ranks) <= ALL_UP_TO
        ranks = snapshot.ranks if few else [snapshot.rank(number) for number in self._watched]
        for rank in ranks:
            _append(self._memories.setdefault(rank.rank, empty()), rank)


def empty() -> Memory:
    """A memory with nothing in it."""
    return Memory(*(deque(maxlen=DEPTH) for _ in SERIES))


def _append(memory: Memory, rank: RankFacts) -> None:
    memory.step_ms.append(rank.progress.step_now_ms)
    memory.wait_ratio.append(rank.comm.wait_ratio)
    memory.loader_depth.append(rank.loader.report.depth if rank.loader.report else None)
    memory.rss_bytes.append(rank.process.rss_bytes)
