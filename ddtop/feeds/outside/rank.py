"""One rank that is read from outside: what is remembered between two samples of its main thread,
and what is read of its process besides the stack.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from ddtop.feeds.outside.stacks import StackReading, ThreadSeen, user_frame
from ddtop.patience import at_most
from ddtop.procfs import (
    CLOCK_TICK_NS,
    children,
    command_name,
    io_bytes,
    program_lines,
    read,
    stat_fields,
    switches,
    tasks,
    wchan,
)
from ddtop.program_text import condition_of, is_timed, key_at
from ddtop.redaction import redact
from ddtop.wire.names import is_from_root
from ddtop.wire.records import (
    COLLECTIVE,
    INIT,
    KEY,
    LOOP,
    P2P,
    TAKES,
    TIMED,
    Link,
    Loader,
    OutsideLook,
    Place,
    StackFrame,
)

# -- Since when a thread sleeps: the kernel's scheduler remembers when it last ran
#
# A hang is minutes old when somebody looks at it from outside, and a look of seconds cannot tell
# that from a slow step. The scheduler can.


_PROCESSOR = 36
"""Field 39 of /proc/PID/stat, counted from the third: the CPU on which the thread ran last."""
_SLEEPS = "SD"
_LEAST_S = 0.05


def asleep_since_unix_ns(pid: int, tid: int | None = None) -> int | None:
    """When the thread of `pid` last ran, unix ns; None where it runs, or the kernel does not say.

    Source: `se.exec_start` of /proc/PID/task/TID/sched (ms on the clock of the CPU that it ran on;
    kernels with CONFIG_SCHED_DEBUG). That clock stops while the host of a virtual machine runs
    something else, so it is read on the same CPU: a thread of this process moves there for a
    moment. Caveat: the result may be late, by that lost time, and is never early. While the kernel
    moves a thread to another CPU, the value is 0. Check: `grep exec_start /proc/PID/sched`.
    """
    task = f"{pid}/task/{tid or pid}"
    before = _ran_at(task)
    fields = stat_fields(task)
    if not before or fields is None or fields[0] not in _SLEEPS:
        return None
    here = _clock_of(int(fields[_PROCESSOR]))
    # In this order: if the thread had run in between, its time would differ now.
    if here is None or _ran_at(task) != before:
        return None
    seconds = (here - before) / 1000
    return time.time_ns() - int(seconds * 1e9) if seconds >= _LEAST_S else None


def _clock_of(cpu: int) -> float | None:
    """The clock of that CPU now, ms; None where this process may not run on it."""

    def read_there() -> float | None:
        try:
            os.sched_setaffinity(0, {cpu})
        except OSError:
            return None
        return _ran_at(f"self/task/{threading.get_native_id()}")

    # On a separate thread, so that the CPU affinity of the others does not change.
    return at_most(1.0, read_there)


def _ran_at(task: str) -> float | None:
    text = read(task, "sched") or b""
    try:
        line = text[text.index(b"se.exec_start") :].partition(b"\n")[0]
        return float(line.rpartition(b":")[2])
    except ValueError:
        return None


# -- What is remembered of one rank between two samples


POLLS_MAX = 1
"""A DataLoader waits for a batch for five seconds, looks at its workers and waits again. One that
gets a batch sleeps more often until it waits for the next."""
_TORCH, _MPI, _CUDA = b"libtorch", b"mpi4py", b"libcuda.so"
_NCCL = b"libnccl.so"
_ASLEEP = "SD"
_RUNS_WORKS = "pt_gloo_runloop"
"""Name of the threads of torch's ProcessGroupGloo that run collectives."""


@dataclass(frozen=True, slots=True)
class ThreadMoment:
    """The state of a main thread in /proc at one moment. `switches`: its voluntary context
    switches. `asleep_since_unix_ns`: None if it runs, or if the kernel does not report it. `works`:
    how often the threads that run gloo's collectives have gone to sleep; None without such
    threads."""

    unix_ns: int
    state: str
    wchan: str | None
    switches: int | None
    asleep_since_unix_ns: int | None
    works: int | None = None


def moment_of(pid: int, unix_ns: int, tid: int | None = None) -> ThreadMoment | None:
    """The thread `tid` now, or the main thread; None where it is gone."""
    task = f"{pid}/task/{tid or pid}"
    fields = stat_fields(task)
    if fields is None:
        return None
    return ThreadMoment(
        unix_ns,
        fields[0],
        wchan(task),
        switches_of(pid, tid),
        asleep_since_unix_ns(pid, tid),
        _works(pid),
    )


def switches_of(pid: int, tid: int | None = None) -> int | None:
    """Voluntary context switches of the thread `tid`, or of the main thread."""
    return switches(f"{pid}/task/{tid or pid}")


def _works(pid: int) -> int | None:
    """How often the threads that run gloo's collectives have slept: once for each collective.

    Source: `comm` and `voluntary_ctxt_switches` of /proc/PID/task. Caveat: send and recv run on the
    thread that calls them. Check: `grep -H . /proc/PID/task/*/comm`.
    """
    runs = [task for task in tasks(pid) if command_name(task) == _RUNS_WORKS]
    found = [count for task in runs if (count := switches(task)) is not None]
    return sum(found) if found else None


LOOKS_KEPT, LOOKS_S, APART_S = 64, 60.0, 0.1
"""Samples that are counted together: their maximum number, their maximum age, and the least time
between two."""


@dataclass
class Counted:
    """The last looks at one rank, as (unix ns, kind of its call, since when it is in it)."""

    looks: deque[tuple[int, str | None, int]] = field(
        default_factory=lambda: deque(maxlen=LOOKS_KEPT)
    )

    def take(self, unix_ns: int, kind: str | None, since_unix_ns: int) -> None:
        """Count one sample. The start of a job is not counted, because all ranks wait there."""
        if kind == INIT:
            self.looks.clear()
            return
        if self.looks and unix_ns - self.looks[-1][0] < APART_S * 1e9:
            return
        self.looks.append((unix_ns, kind, since_unix_ns))
        while unix_ns - self.looks[0][0] > LOOKS_S * 1e9:
            self.looks.popleft()

    def counts_into(self, look: OutsideLook) -> OutsideLook:
        """The look with the numbers of all that are counted."""
        if not self.looks:
            return look
        waits = Counter(since for _, kind, since in self.looks if kind == COLLECTIVE)
        return msgspec.structs.replace(
            look,
            looks=len(self.looks),
            looks_s=(self.looks[-1][0] - self.looks[0][0]) / 1e9,
            call_looks=sum(kind is not None for _, kind, _ in self.looks),
            wait_looks=waits.total(),
            one_wait_looks=max(waits.values(), default=0),
        )


@dataclass
class Track:
    """Whether a main thread makes progress, over all samples.

    Pure: the samples are arguments. `progress_unix_ns`: when it was last known to be at another
    place. `there_since_unix_ns`: like `since_unix_ns`, but a thread that went to sleep again
    between two samples counts as unchanged, because a wait with a timeout does that.
    `same_since_unix_ns`: since when all samples found the same frames, whether it slept or not.
    """

    frames: tuple[StackFrame, ...] = ()
    reading: StackReading | None = None
    switches: int | None = None
    since_unix_ns: int = 0
    asleep: bool = False
    communicated_unix_ns: int | None = None
    looked_unix_ns: int = 0
    progress_unix_ns: int = 0
    apart_looks: int = 0
    works: int | None = None
    quiet_since_unix_ns: int | None = None
    there_since_unix_ns: int = 0
    same_since_unix_ns: int = 0
    counted: Counted = field(default_factory=Counted)
    arguments: str | None = None

    def take(
        self,
        frames: tuple[StackFrame, ...],
        reading: StackReading,
        before: int | None,
        now: ThreadMoment,
    ) -> None:
        """Take in one look. `before`: its switches when the look at the frames began."""
        first, at_rest = self.reading is None, now.state in _ASLEEP
        slept = at_rest and now.switches is not None and now.switches == before
        same = not first and frames == self.frames
        ran = now.switches is None or now.switches != self.switches or before != now.switches
        since = (now.asleep_since_unix_ns or now.unix_ns) if slept else now.unix_ns
        worked = self._count_works(now)
        if same and not ran:
            # It is in the same sleep, or runs at one line without sleeping.
            since = min(self.since_unix_ns, since)
        elif not first and reading.kind is not None:
            self.communicated_unix_ns = since if slept else now.unix_ns
        elif worked or (self.reading is not None and self.reading.kind is not None):
            # It left that call at an unknown time after the last sample.
            self.communicated_unix_ns = self.looked_unix_ns
        if worked:
            self.progress_unix_ns = now.unix_ns
        elif first or not same or (ran and reading.kind is not None):
            self.progress_unix_ns = since
        elif not ran:
            self.progress_unix_ns = min(self.progress_unix_ns, since)
        stayed = same and not worked and (now.switches or 0) - (self.switches or 0) <= POLLS_MAX
        self.there_since_unix_ns = min(self.there_since_unix_ns, since) if stayed else since
        self.same_since_unix_ns = self.same_since_unix_ns if same else now.unix_ns
        self.looked_unix_ns = now.unix_ns
        self.frames, self.reading, self.switches = frames, reading, now.switches
        self.since_unix_ns, self.asleep = since, slept
        # The others wait for data that one rank prepares for them. That rank is not late.
        given = reading.call is not None and is_from_root(reading.call)
        self.counted.take(now.unix_ns, P2P if given else reading.kind, since)
        self.apart_looks = self.apart_looks + 1 if reading.kind is None and not worked else 0

    def _count_works(self, now: ThreadMoment) -> bool:
        """Whether gloo has run a collective in it since the last look."""
        grown = None not in (self.works, now.works) and self.works != now.works
        if now.works is None:
            self.quiet_since_unix_ns = None
        elif grown or self.quiet_since_unix_ns is None:
            self.quiet_since_unix_ns = now.unix_ns
        self.works = now.works
        return grown

    def look(self) -> OutsideLook | None:
        """As a record; None before the first look."""
        if self.reading is None:
            return None
        found = OutsideLook(
            self.reading.kind,
            self.reading.call,
            self.since_unix_ns,
            self.asleep,
            self.communicated_unix_ns,
            self.apart_looks,
            self.quiet_since_unix_ns,
            arguments=self.arguments if self.reading.kind is not None else None,
        )
        return self.counted.counts_into(found)


@dataclass
class Surroundings:
    """The libraries of one process, and the lines of its program. Read when they are asked for."""

    pid: int
    libraries: frozenset[bytes] = frozenset()
    _lines: dict[str, list[str] | None] = field(default_factory=dict)

    def thread(
        self, frames: tuple[StackFrame, ...], now: ThreadMoment, asleep: bool | None = None
    ) -> ThreadSeen:
        """The main thread with all that is known around it.

        `asleep`: whether it slept when its frames were read, some ms before `now`; None: unknown.
        """
        if _TORCH not in self.libraries:
            self.libraries = _libraries(self.pid)
        innermost = user_frame(frames)
        line = self._line(innermost) if innermost is not None else None
        return ThreadSeen(
            frames,
            line,
            _state_then(now, asleep),
            now.wchan if now.state in _ASLEEP else None,
            _TORCH in self.libraries,
            _MPI in self.libraries,
            _CUDA in self.libraries,
        )

    @property
    def may_use_nccl(self) -> bool:
        """NCCL is in the process, or a torch for GPUs, which may have it inside."""
        return _NCCL in self.libraries or {_TORCH, _CUDA} <= self.libraries

    def loop(self, frames: tuple[StackFrame, ...]) -> tuple[Link, ...]:
        """The key of a store for which the thread waits, or the loop in which it polls, by the text
        of its program; empty if there is neither."""
        at = frames[0] if frames and user_frame(frames) is frames[0] else None
        if at is None:
            return ()
        lines, place = self._lines_of(at), Place(at.function, at.file, at.line)
        if (key := key_at(lines, at.line)) is not None:
            return (Link(KEY, redact(key.named), place=place, does=TAKES if key.taken else ""),)
        condition = condition_of(lines, at.line)
        does = f"that {TIMED}" if is_timed(lines, at.line) else ""
        return (Link(LOOP, redact(condition), place=place, does=does),) if condition else ()

    def _line(self, frame: StackFrame) -> str | None:
        lines = self._lines_of(frame)
        return lines[frame.line - 1] if 0 < frame.line <= len(lines) else None

    def _lines_of(self, frame: StackFrame) -> list[str]:
        if frame.file not in self._lines:
            self._lines[frame.file] = program_lines(self.pid, frame.file)
        return self._lines[frame.file] or []


def _state_then(now: ThreadMoment, asleep: bool | None) -> str:
    """The state of the thread when its frames were read."""
    if asleep is None or asleep is (now.state in _ASLEEP):
        return now.state
    return "S" if asleep else "R"


def _libraries(pid: int) -> frozenset[bytes]:
    """Which of the libraries that decide are mapped. Check: /proc/PID/maps."""
    text = read(pid, "maps") or b""
    return frozenset(name for name in (_TORCH, _MPI, _CUDA, _NCCL) if name in text)


# -- The DataLoader workers of a rank that waits for a batch, seen from outside
#
# Which of them must deliver the next batch is known only inside the rank. From outside, it is taken
# to be the one that has ended or stopped, else the one that has been fetching a sample longest; the
# others wait for orders.


WORKERS_MAX = 8
"""Workers of one rank whose stacks are read: a look at each costs some milliseconds."""
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
        self.tracks = {pid: track for pid, track in self.tracks.items() if pid in self.pids}
        return self.pids[:WORKERS_MAX]


def loader_of(workers: Workers, since_unix_ns: int) -> Loader | None:
    """The record of a rank that has waited for a batch since then; None where no worker explains
    it."""
    states = {pid: _state(pid) for pid in workers.pids}
    known = [pid for pid in workers.pids if pid in workers.tracks]
    known = [pid for pid in known if is_worker(workers.tracks[pid].frames)]
    helpless = [pid for pid in workers.pids if (states[pid] or "Z") in _HELPLESS]
    fetching = [
        pid
        for pid in known
        if any(frame.file.endswith(_FETCH) for frame in workers.tracks[pid].frames)
    ]
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
        locked=sum("futex" in (wchan(pid) or "") for pid in known) if fields is not None else None,
    )


def is_worker(frames: Iterable[StackFrame]) -> bool:
    """Whether torch's loop of a worker is on the stack."""
    return any(frame.file.endswith(_WORKER) for frame in frames)


def _state(pid: int) -> str | None:
    fields = stat_fields(pid)
    return fields[0] if fields is not None else None


def _cpu_ns(pids: Iterable[int]) -> int:
    found: Mapping[int, list[str] | None] = {pid: stat_fields(pid) for pid in pids}
    return sum(
        (int(value[11]) + int(value[12])) * CLOCK_TICK_NS for value in found.values() if value
    )
