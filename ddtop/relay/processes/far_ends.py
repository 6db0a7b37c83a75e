"""Ranks of other jobs to which a rank that makes no progress is connected, and whether they stand
still too.

Source: the TCP table with the descriptors of both processes, and what those ranks write on their
state pages. Caveat: a rank behind a proxy or a unix socket, on another host, or of another user is
not seen. Check: `ss -tanp`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec

from ddtop import registry
from ddtop.relay.processes import sockets
from ddtop.relay.processes.sample import Watched, look, page, page_path, stands_for
from ddtop.wire.records import FarEnd, Hello, ProcessState, Whereabouts

WAITS_S = 3.0
"""A rank must make no progress for this long before its far ends are looked for."""
EVERY_S = 5.0
"""How often. The table of a busy host takes 50 ms."""
IDLE_CORES = 0.05
"""A process with less CPU does no work: the agent's thread needs a hundredth."""


class FarEnds:
    """Used by the relay's loop, once a second. `others`: the ranks of other jobs, by pid."""

    def __init__(self) -> None:
        self._due = 0.0
        self._others: dict[int, Watched] = {}
        self._ends: list[tuple[int, str, int]] = []
        self._ran: dict[int, tuple[int | None, int]] = {}

    def look(
        self, here: Sequence[Watched], looked: Sequence[ProcessState | None], now_mono_ns: int
    ) -> tuple[ProcessState, ...]:
        """The states that could be read, with their far ends. `looked`: of each of `here`."""
        waiting = [one for one in here if stands_for(one, now_mono_ns) > WAITS_S * 1e9]
        if not waiting:
            self._due, self._others, self._ends, self._ran = 0.0, {}, [], {}
        elif now_mono_ns >= self._due:
            self._due = now_mono_ns + EVERY_S * 1e9
            self._find(waiting)
        far = self._follow(now_mono_ns) if self._ends else {}
        return tuple(
            msgspec.structs.replace(state, far_ends=self._of(state, far)) if far else state
            for state in looked
            if state is not None
        )

    def _of(self, state: ProcessState, far: dict[int, FarEnd]) -> tuple[FarEnd, ...]:
        found = {
            pid: msgspec.structs.replace(far[pid], address=address)
            for own, address, pid in self._ends
            if own == state.pid and pid in far and state.remote in (None, address)
        }
        return tuple(found.values())

    def _find(self, waiting: Sequence[Watched]) -> None:
        """Who is connected to ranks of other jobs."""
        self._others = {
            pid: self._others.get(pid, watched)
            for pid, watched in _ranks(waiting[0])
            if (at := _whereabouts(watched)) is not None and at.job != waiting[0].hello.job
        }
        pids = [watched.hello.pid for watched in waiting]
        owner = {inode: pid for pid in self._others for inode in sockets.inodes(pid) or ()}
        own = {inode: pid for pid in pids for inode in (owner and sockets.inodes(pid)) or ()}
        table = sockets.table(pids[0]) or () if owner else ()
        self._ends = [
            (own[one.inode], one.far_end, owner[far])
            for one, far in sockets.both_ends(table)
            if one.inode in own and far in owner
        ]

    def _follow(self, now_mono_ns: int) -> dict[int, FarEnd]:
        """All ranks of other jobs. A job stands still if none of its ranks has made progress, none
        of their threads has run, and no process does work."""
        jobs: dict[str, list[tuple[Whereabouts, int, int]]] = {}
        for pid, watched in self._others.items():
            state, at = look(watched, now_mono_ns), _whereabouts(watched)
            if state is not None and at is not None:
                before, since = self._ran.get(pid, (None, 0))
                idle = watched.was_asleep and (watched.cpu_ratio or 0.0) < IDLE_CORES
                since = since if idle and before == state.switches else now_mono_ns
                self._ran[pid] = state.switches, since
                jobs.setdefault(at.job, []).append((at, pid, max(since, at.moved_mono_ns)))
        found: dict[int, FarEnd] = {}
        for ranks in jobs.values():
            since = max(since for _, _, since in ranks)
            still = since < now_mono_ns and all(at.world_size == len(ranks) for at, _, _ in ranks)
            since_unix_ns = since + time.time_ns() - time.monotonic_ns() if still else None
            found |= {pid: FarEnd(pid, "", at, since_unix_ns) for at, pid, _ in ranks}
        return found


def _ranks(one: Watched) -> Iterator[tuple[int, Watched]]:
    """The living ranks of this user with a state page beside that of this one."""
    path = page_path(one.hello)
    for other in path.parent.glob("*.page") if path is not None else ():
        pid, _, ticks = other.stem.partition("-")
        if pid.isdigit() and ticks.isdigit() and registry.start_ticks(int(pid)) == int(ticks):
            who = Hello("", "", 0, None, None, None, "", int(pid), int(ticks), page_path=str(other))
            yield who.pid, Watched(who, None)


def _whereabouts(watched: Watched) -> Whereabouts | None:
    view = page(watched.hello)
    return view.whereabouts if view is not None else None
