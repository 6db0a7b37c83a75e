"""Recorded jobs, and the parts that they consist of.

A recording is what the relay of one real job kept: every record, unchanged but for the paths and
the environment. `zoo.false_alarms.retelling` makes jobs of it that go on for hours.
"""

from __future__ import annotations

import itertools
import lzma
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from ddtop.journal import Reader
from ddtop.wire import frames
from ddtop.wire.records import Arrivals, Exit, Groups, Hello, HostState, RankState
from tools.recorded.neutral import Neutral

FOLDER = Path(__file__).parent / "recordings"
SECOND_NS = 1_000_000_000
HEALTHY_GAP_S = 1.2
"""A job trains at a moment if each rank ends a step within this time before and after it."""
PAUSE_S = 1.5
"""So long without the end of a step is a pause, such as an evaluation."""
SETTLES_S, ENDS_S, PART_S = 6.0, 4.0, 12.0
"""The start and the end that are left out of the parts, and the least length of a part."""


@dataclass
class Track:
    """The records of one kind that one rank sent, in order; times in seconds of the recording."""

    at_s: list[float] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)

    def index(self, at_s: float) -> int:
        """The number of the newest record at a time; 0 before the first."""
        return max(bisect_right(self.at_s, at_s) - 1, 0)


@dataclass
class Part:
    """A stretch of the recording that begins and ends while all ranks train."""

    begin_s: float
    end_s: float


class Recording:
    """One recorded job."""

    def __init__(self, path: Path) -> None:
        self.name = path.name.partition(".")[0]
        self.states: dict[int, Track] = {}
        self.processes: dict[int, Track] = {}
        self.hosts = Track()
        self.said: list[tuple[float, int, Any]] = []
        """Records of other kinds: (seconds, rank, record)."""
        self.began_unix_ns = 0
        for data in read(path):
            envelope = frames.open_envelope(data)
            self._take(envelope, frames.open_record(envelope))
        self.ranks = sorted(self.states)
        self.said.sort(key=lambda one: one[0])

    def _take(self, envelope: frames.Envelope, record: Any) -> None:
        if not self.began_unix_ns:
            self.began_unix_ns = envelope.unix_ns - SECOND_NS
        at_s = (envelope.unix_ns - self.began_unix_ns) / SECOND_NS
        rank = envelope.rank
        if isinstance(record, RankState) and rank is not None:
            track = self.states.setdefault(rank, Track())
            track.at_s.append(at_s)
            track.records.append((record, envelope.wait_ratio))
        elif isinstance(record, HostState):
            self.hosts.at_s.append(at_s)
            self.hosts.records.append(record)
            for process in record.processes:
                if process.rank is not None:
                    track = self.processes.setdefault(process.rank, Track())
                    track.at_s.append(at_s)
                    track.records.append(process)
        elif isinstance(record, (Hello, Groups, Arrivals, Exit)) and rank is not None:
            self.said.append((at_s, rank, record))

    # -- parts

    @cached_property
    def steps_s(self) -> list[float]:
        """When the slowest rank completed its steps, as far as the reports show."""
        found: list[list[float]] = []
        for track in self.states.values():
            times, last = [], None
            for at_s, (state, _) in zip(track.at_s, track.records, strict=True):
                steps = _steps(state)
                if steps is not None and steps != last:
                    times.append(at_s)
                    last = steps
            found.append(times)
        return sorted(at_s for times in found for at_s in times)

    @cached_property
    def pauses_s(self) -> list[tuple[float, float]]:
        """The times during which no rank completed a step."""
        steps = self.steps_s
        pairs = itertools.pairwise(steps)
        return [(a, b) for a, b in pairs if b - a > PAUSE_S]

    def _trains(self, at_s: float) -> bool:
        for track in self.states.values():
            number = track.index(at_s)
            near = [one for one in range(number - 2, number + 4) if 0 <= one < len(track.at_s)]
            near = [one for one in near if abs(track.at_s[one] - at_s) < HEALTHY_GAP_S]
            if len({_steps(track.records[one][0]) for one in near}) < 3:
                return False
            if any(track.records[one][0].phase != "running" for one in near):
                return False
        return True

    @cached_property
    def parts(self) -> list[Part]:
        """All parts; together they are the recording without its start and its end."""
        first, last = self.steps_s[0] + SETTLES_S, self.steps_s[-1] - ENDS_S
        cuts, at_s = [], first
        while at_s < last:
            if self._trains(at_s) and (not cuts or at_s - cuts[-1] > PART_S):
                cuts.append(at_s)
            at_s += 0.5
        return [Part(a, b) for a, b in itertools.pairwise(cuts)]


def _steps(state: RankState) -> int | None:
    """What grows with each step: iterations, or calls where nobody counts iterations."""
    if state.iteration is not None or not state.groups:
        return state.iteration
    return sum(group.enqueued + group.p2p_calls for group in state.groups)


def read(path: Path) -> Iterable[bytes]:
    """The frames of a journal, or of a recording that `pack` made."""
    if path.suffix != ".xz":
        return Reader(path)
    data, found, at = lzma.decompress(path.read_bytes()), [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def pack(journal: Path, path: Path) -> None:
    """Make a recording of a journal: without what names this machine and its user."""
    found, neutral = bytearray(), Neutral()
    for data in read(journal):
        envelope = frames.open_envelope(data)
        record = frames.open_record(envelope)
        if isinstance(record, Hello):
            record = msgspec.structs.replace(record, argv=(), page_path=None, dump_path=None)
        elif isinstance(record, HostState):
            load = record.load
            if load is not None:
                load = msgspec.structs.replace(load, disks=())
            record = msgspec.structs.replace(record, load=load)
        elif not isinstance(record, (RankState, Groups, Arrivals, Exit)):
            continue
        packed = msgspec.Raw(msgspec.msgpack.encode(record))
        sealed = neutral.frame(
            msgspec.msgpack.encode(msgspec.structs.replace(envelope, record=packed))
        )
        found += len(sealed).to_bytes(4, "little") + sealed
    path.write_bytes(lzma.compress(bytes(found), preset=9))


def all_recordings(folder: Path = FOLDER) -> list[Recording]:
    """Those in the folder, by name."""
    return [
        Recording(path) for path in sorted(folder.iterdir()) if path.suffix in (".xz", ".journal")
    ]
