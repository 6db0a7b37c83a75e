"""The DataLoader workers of a rank that waits for a batch, seen from outside.

Which of them must deliver the next batch is known only inside the rank. From outside, it is taken
to be the one that has ended or stopped, else the one that has been fetching a sample longest; the
others wait for orders.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ddtop.procfs import children, io_bytes, stat_fields, wchan
from ddtop.viewer.routes.outside_rank import Track
from ddtop.wire.loader import Loader
from ddtop.wire.stacks import StackFrame

WORKERS_MAX = 8
"""Workers of one rank whose stacks are read: a look at each costs some milliseconds."""
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_HELPLESS = "ZXTt"
_FETCH = "torch/utils/data/_utils/fetch.py"
_WORKER = "torch/utils/data/_utils/worker.py"


@dataclass
class Workers:
    """The workers of one rank; `tracks`: by pid, of those whose stack was read."""

    pids: tuple[int, ...] = ()
    tracks: dict[int, Track] = field(default_factory=dict)

    def find(self, rank_pid: int) -> tuple[int, ...]:
        """The present children of that rank. A child is known to be a worker only after its stack
        was read."""
        self.pids = children(rank_pid)
        self.tracks = {pid: one for pid, one in self.tracks.items() if pid in self.pids}
        return self.pids[:WORKERS_MAX]


def loader_of(workers: Workers, since_unix_ns: int) -> Loader | None:
    """The record of a rank that has waited for a batch since then; None where no worker explains
    it."""
    states = {pid: _state(pid) for pid in workers.pids}
    known = [pid for pid in workers.pids if pid in workers.tracks]
    known = [pid for pid in known if is_worker(workers.tracks[pid].frames)]
    helpless = [pid for pid in workers.pids if (states[pid] or "Z") in _HELPLESS]
    fetching = [pid for pid in known if _fetches(workers.tracks[pid].frames)]
    fetching.sort(key=lambda pid: workers.tracks[pid].since_unix_ns)
    if not (known or helpless) or not (helpless or fetching):
        return None
    owing = (helpless or fetching)[0]
    fields = stat_fields(owing)
    track = workers.tracks.get(owing)
    return Loader(
        workers=len(set(known) | set(helpless)),
        workers_alive=len([pid for pid in workers.pids if (states[pid] or "Z") not in "ZX"]),
        owing_pid=owing,
        owing_state=states[owing],
        waiting_since_unix_ns=since_unix_ns,
        owing_wchan=wchan(owing),
        workers_cpu_ns=_cpu_ns(workers.pids),
        owing_io_bytes=io_bytes(owing),
        owing_switches=track.switches if track is not None else None,
        locked=_locked(known) if fields is not None else None,
    )


def is_worker(frames: Iterable[StackFrame]) -> bool:
    """Whether torch's loop of a worker is on the stack."""
    return any(one.file.endswith(_WORKER) for one in frames)


def _fetches(frames: Iterable[StackFrame]) -> bool:
    return any(one.file.endswith(_FETCH) for one in frames)


def _state(pid: int) -> str | None:
    fields = stat_fields(pid)
    return fields[0] if fields is not None else None


def _cpu_ns(pids: Iterable[int]) -> int:
    found: Mapping[int, list[str] | None] = {pid: stat_fields(pid) for pid in pids}
    return sum((int(one[11]) + int(one[12])) * _TICK_NS for one in found.values() if one)


def _locked(pids: Iterable[int]) -> int:
    return sum("futex" in (wchan(pid) or "") for pid in pids)
