"""The queue of the rank's last DataLoader iterator, and the worker that must deliver the next
batch.

Reads torch's private queues by name; where a name is missing the field stays None.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress, repeat
from operator import eq, gt, itemgetter
from pathlib import Path
from typing import Any
from weakref import ref

from ddtop.agent.limits import AgentLimits
from ddtop.agent.notes import (
    GradientNotes,
    LoaderNotes,
    attribute_of,
    each_attribute,
    is_gone,
)
from ddtop.agent.plain import peek
from ddtop.agent.probe import Fields, Probe, Tick
from ddtop.agent.rank import Rank
from ddtop.procfs import (
    CLOCK_TICK_NS,
    descendants,
    io_bytes,
    own_letter,
    read_stat,
    switches,
    tasks,
    wchan,
)
from ddtop.wire import page as layout
from ddtop.wire.records import Feed, Loader, RankState, Waited, WorkerEnd

# -- DataLoader workers, read from /proc in their rank: whether they are alive and make progress
#
# Source: /proc/PID/stat of each worker; io, wchan and task/*/status only after a second of waiting,
# when the training makes no progress anyway. Caveat: another user's files cannot be read. Check:
# `ps -o stat=,cputimes=,wchan= -p PID`.


_GONE = (None, "Z", "X")
HELPLESS = (*_GONE, "T", "t")
"""State letters of a process that cannot continue by itself."""
FAMILY_MAX = 32
LOCKS = ("futex", "do_wait_intr")
"""Parts of the wchan of a lock: a semaphore, a mutex of C, a condition."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One line of /proc/PID/stat.

    `letter`: None if there is no such process. `cpu_ns`: with the children it has waited for.
    """

    pid: int
    letter: str | None
    cpu_ns: int

    @property
    def alive(self) -> bool:
        """It is neither gone nor a zombie."""
        return self.letter not in _GONE


@dataclass(frozen=True, slots=True)
class Movement:
    """Counters of the worker that only grow (`wire.records.Loader` explains the fields); None while
    nothing is late."""

    wchan: str | None = None
    cpu_ns: int | None = None
    io_bytes: int | None = None
    switches: int | None = None
    locked: int | None = None


def worker(pid: int) -> Worker:
    """The process now. Check: `ps -o stat=,cputimes= -p PID`."""
    try:
        fields = read_stat(pid)
    except (OSError, ValueError):
        return Worker(pid, None, 0)
    cpu_ns = sum(int(ticks) for ticks in fields[11:15]) * CLOCK_TICK_NS
    return Worker(pid, own_letter(pid, fields[0]), cpu_ns)


def movement(workers: list[Worker], owing: int) -> Movement:
    """The resources that the worker which must deliver, its children and the other workers have
    used so far."""
    family = (owing, *descendants(owing, FAMILY_MAX))
    cpu_ns = sum(process.cpu_ns for process in workers) + sum(
        worker(pid).cpu_ns for pid in family[1:]
    )
    io = [value for pid in family if (value := io_bytes(pid)) is not None]
    woken = [value for pid in family if (value := _switches(pid)) is not None]
    # Only of living workers: a dead one has no wait channel.
    wchans = {process.pid: wchan(process.pid) for process in workers if process.alive}
    known = [name for name in wchans.values() if name is not None]
    return Movement(
        wchans.get(owing),
        cpu_ns,
        sum(io) if io else None,
        sum(woken) if woken else None,
        sum(1 for name in known if any(part in name for part in LOCKS)) if known else None,
    )


def first_failed(notes: LoaderNotes) -> WorkerEnd | None:
    """How the first worker of the last iterator failed; None if multiprocessing knows of none.

    Reads what multiprocessing has noted: to ask the process would reap it.
    """
    for process in attribute_of(notes.iterator, "_workers", ()) if notes.iterator else ():
        started = peek(process, "_popen")
        code, method = getattr(started, "returncode", None), getattr(started, "method", "fork")
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        if code:
            runs = script if code > 0 and method != "fork" else None
            reruns = bool(runs) and "__main__" not in Path(runs or "").read_text(errors="replace")
            return WorkerEnd(started.pid, code, method, reruns)
    return None


def _switches(pid: int) -> int | None:
    """Voluntary context switches of all threads of a process.

    Check: `grep -h ^vol /proc/PID/task/*/status`.
    """
    found = [value for thread in tasks(pid) if (value := switches(thread)) is not None]
    return sum(found) if found else None


# -- The queue of the last iterator, and the worker that must deliver


WAITED_KEPT = 40
"""Samples (20 to 40 s) whose waits are added up for each loader."""
OWED_KEPT, OWED_LEAST = 20, 8
"""Samples (10 s of waiting) of which worker must deliver, and how many of them are enough."""


@dataclass(slots=True)
class _Queue:
    """The iterator's own numbers. `owing`: pid of the worker that must deliver the next batch.

    It is never changed. It is not frozen, because that would cost 1 us per report.
    """

    workers: int = 0
    depth: int | None = None
    capacity: int | None = None
    pids: tuple[int, ...] = ()
    owing: int | None = None
    closing: bool = False
    pin_memory: bool | None = None
    prefetch_factor: int | None = None


class LoaderHistory:
    """What is remembered about the loaders between reports."""

    def __init__(self, limits: AgentLimits) -> None:
        self.limits = limits
        self.feed: Feed | None = None
        self.owed: deque[int] = deque(maxlen=OWED_KEPT)
        self._last = _Queue()
        self._waited: deque[tuple[Waited, int]] = deque(maxlen=WAITED_KEPT)
        # (ns waited, samples) of each loader in `_waited`.
        self._totals: dict[Waited, list[int]] = {}
        self._wait_total_ns = 0

    def look_at(self, notes: LoaderNotes, words: memoryview, group: str | None) -> Feed | None:
        """The source of the data; None before the first batch."""
        if notes.samplers is None:
            return None
        optimized = words[layout.ITERATION_SOURCE_AT] == layout.SOURCE_OPTIMIZER
        steps = words[layout.ITERATION_AT] if optimized else 0
        batches = words[layout.BATCHES_AT]
        feed: Feed | None = notes.samplers.look(steps, batches, group)
        self.note_feed(feed)
        return feed

    def note_feed(self, feed: Feed | None) -> None:
        """Remember the source of the data. The loader of a validation does not replace that of the
        training."""
        known = self.feed.steps if self.feed is not None else 0
        if feed is not None and feed.steps >= min(known, self.limits.feed_steps):
            self.feed = feed

    def note_wait(self, feed: Feed | None, queue: _Queue, total_ns: int) -> Waited | None:
        """Add the wait since the last sample. Returns the loader with the most waiting."""
        grown_ns, self._wait_total_ns = max(0, total_ns - self._wait_total_ns), total_ns
        if feed is not None:
            feeds = feed.steps >= self.limits.feed_steps
            now = Waited(
                feed.dataset, queue.workers, queue.prefetch_factor, queue.pin_memory, feeds
            )
            self._remember(now, grown_ns)
        return max(self._totals, key=lambda waited: self._totals[waited][0], default=None)

    def _remember(self, waited: Waited, grown_ns: int) -> None:
        # The sum is updated with each sample: to add up all samples would cost 10 us per report.
        if len(self._waited) == WAITED_KEPT:
            old, old_ns = self._waited[0]
            total = self._totals[old]
            total[0], total[1] = total[0] - old_ns, total[1] - 1
            if not total[1]:
                del self._totals[old]
        self._waited.append((waited, grown_ns))
        total = self._totals.setdefault(waited, [0, 0])
        total[0], total[1] = total[0] + grown_ns, total[1] + 1

    def queue_of(self, iterator: ref[Any] | None, waits: bool) -> _Queue:
        """The iterator's numbers. Between two epochs, without an iterator, the settings of the last
        one.
        """
        if iterator is not None:
            self._last = _queue(iterator, waits)
            return self._last
        last = self._last
        return _Queue(
            last.workers, pin_memory=last.pin_memory, prefetch_factor=last.prefetch_factor
        )

    def owed_most(self) -> tuple[int | None, float | None]:
        """(worker, its share) of the samples in which a batch was late; None while there are
        few."""
        if len(self.owed) < OWED_LEAST:
            return None, None
        counts = {pid: self.owed.count(pid) for pid in set(self.owed)}
        most = max(counts, key=lambda pid: (counts[pid], pid))
        return most, counts[most] / len(self.owed)


class LoaderProbe(Probe):
    """The loader that the rank used last, looked at in each report."""

    name = "loader"

    def __init__(self, rank: Rank) -> None:
        self._rank, self._history = rank, LoaderHistory(rank.limits)

    def fields(self, tick: Tick) -> Fields:
        """The loader's record."""
        rank = self._rank
        loader, gradients = rank.notes[LoaderNotes], rank.notes[GradientNotes]
        words, umm = rank.page.words, tick.unix_minus_mono
        return partial(RankState, loader=read(words, loader, gradients.group, umm, self._history))


def read(
    words: memoryview,
    notes: LoaderNotes,
    group: str | None,
    unix_minus_mono_ns: int,
    history: LoaderHistory,
) -> Loader | None:
    """The loader's record; None while no DataLoader was used.

    `words`: of the state page. `group`: where gradients are averaged.
    """
    # If the agent held the iterator, and held it last, it would shut down the workers.
    iterator = notes.iterator
    iterator = None if iterator is None or is_gone(iterator) else iterator
    if iterator is None and not words[layout.BATCHES_AT] and not words[layout.LOADER_WAIT_SINCE_AT]:
        return None
    since = words[layout.LOADER_WAIT_SINCE_AT]
    queue = history.queue_of(iterator, bool(since))
    feed = history.look_at(notes, words, group) if iterator is not None else None
    exhausted_mono = words[layout.EXHAUSTED_MONO_AT]
    now = time.monotonic_ns()
    # Not Process.is_alive(): it reaps, and the program would lose the exit code.
    seen = [worker(pid) for pid in queue.pids]
    late = bool(since) and now - since > history.limits.batch_late_ns
    owing, looked = _owing_worker(queue, seen, late)
    if since and owing is not None:
        history.owed.append(owing)
    # The relay reads the stack of this worker by itself, and of no other.
    words[layout.OWING_PID_AT] = owing if looked and owing is not None else 0
    most_pid, most_ratio = history.owed_most() if queue.workers > 1 else (None, None)
    moved = movement(seen, owing) if looked and owing is not None else Movement()
    total_ns = words[layout.LOADER_WAIT_TOTAL_AT] + (now - since if since else 0)
    return Loader(
        workers=queue.workers,
        depth=queue.depth,
        capacity=queue.capacity,
        workers_alive=sum(process.alive for process in seen) if queue.pids else None,
        owing_pid=owing,
        owing_state=next((process.letter for process in seen if process.pid == owing), None),
        waiting_since_unix_ns=since + unix_minus_mono_ns if since else None,
        wait_total_ns=total_ns,
        batches=words[layout.BATCHES_AT],
        exhausted=words[layout.EXHAUSTED_AT],
        exhausted_unix_ns=exhausted_mono + unix_minus_mono_ns if exhausted_mono else None,
        pin_memory=queue.pin_memory,
        prefetch_factor=queue.prefetch_factor,
        owing_wchan=moved.wchan,
        workers_cpu_ns=moved.cpu_ns,
        owing_io_bytes=moved.io_bytes,
        owing_switches=moved.switches,
        locked=moved.locked,
        closing=queue.closing,
        feed=history.feed,
        owed_most_pid=most_pid,
        owed_most_ratio=most_ratio,
        waited=history.note_wait(feed, queue, total_ns),
    )


def _owing_worker(queue: _Queue, seen: list[Worker], late: bool) -> tuple[int | None, bool]:
    """(pid of the worker that must deliver the next batch, whether it has been due for long)."""
    if queue.closing and queue.owing is None:
        pid = next((process.pid for process in seen if process.alive), None)
        return pid, pid is not None
    return queue.owing, late


def _queue(iterator: ref[Any], waits: bool = False) -> _Queue:
    number = attribute_of(iterator, "_num_workers", 0) or 0
    processes = attribute_of(iterator, "_workers")
    pin_memory = attribute_of(iterator, "_pin_memory")
    prefetch = attribute_of(iterator, "_prefetch_factor")
    if not number or processes is None:
        return _Queue(number, pin_memory=pin_memory, prefetch_factor=prefetch)
    # What a worker has sent out of turn is with its number. Only numbers leave these calls: the
    # last reference to a batch stays the program's.
    held = partial(each_attribute, iterator, "_task_info", {})
    depth = sum(map(gt, map(len, chain.from_iterable(map(dict.values, held()))), repeat(1)))
    for name in ("_worker_result_queue", "_data_queue"):
        queue = attribute_of(iterator, name)
        try:
            depth += queue.qsize()
        except (AttributeError, NotImplementedError, OSError):
            continue
        if queue is attribute_of(iterator, "_data_queue"):
            break
    pids = [peek(process, "_popen", "pid") for process in list(processes)]
    due, empty = attribute_of(iterator, "_rcvd_idx"), ((),)
    alone = map(eq, map(len, map(dict.get, held(), (due,), empty)), (1,))
    owing = next(map(itemgetter(0), compress(map(dict.get, held(), (due,), empty), alone)), None)
    owing = pids[owing] if owing is not None and 0 <= owing < len(pids) else None
    closing = bool(attribute_of(iterator, "_shutdown"))
    if waits and not next(map(len, held())) and not closing:
        owing = _not_resumed(iterator, pids)
    capacity = number * (prefetch or 2)
    started = tuple(pid for pid in pids if pid is not None)
    return _Queue(
        number,
        min(depth, capacity),
        capacity,
        started,
        None if closing else owing,
        closing,
        pin_memory,
        prefetch,
    )


def _not_resumed(iterator: ref[Any], pids: list[int | None]) -> int | None:
    """At the begin of an epoch with persistent workers: the pid of the worker that is not ready
    yet.

    This is a worker that has ended or stopped, or else the first that has not taken the resume
    message from its queue. Torch counts how many workers have answered, but not which.
    """
    late: list[int] = []
    for pid, queue in zip(pids, list(attribute_of(iterator, "_index_queues", ())), strict=False):
        try:
            waits = queue.qsize() > 0
        except (AttributeError, NotImplementedError, OSError, ValueError):
            waits = False
        if pid is not None and waits:
            late.append(pid)
    helpless = [pid for pid in pids if pid is not None and worker(pid).letter in HELPLESS]
    # A worker that was just woken has not taken it either, so look for one that cannot run.
    return next(iter([*helpless, *late]), None)
