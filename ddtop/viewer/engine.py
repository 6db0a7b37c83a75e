"""Runs the model on a separate thread, so that a key press never waits for the processing of 10,000
ranks.

The event loop queues frames. This thread decodes and applies them, makes looks, judges and keeps
the tape. It passes finished looks, which are frozen, to the loop through one reference. The time
between looks depends on the cost of a look.

Python's threads share the GIL: while this thread computes, the loop waits for the switch interval
each time that it needs the GIL. The default of 5 ms adds up to 50 ms per key press; with `SWITCH_S`
it is a few ms.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ddtop.diagnosis.judge import STEP_NS
from ddtop.model.state.facts import RankFacts, Snapshot
from ddtop.viewer.follower import Follower
from ddtop.viewer.source import Look
from ddtop.viewer.tape import FRAME_COST_BYTES, LIVE_BYTES, Tape
from ddtop.viewer.tape_history import Past
from ddtop.wire.records import Reply, Stacks

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
QUEUE_BYTES_MAX = 48 << 20
"""The size of the queue: three times the data that a relay sends to a new viewer, or ten seconds of
10,000 ranks."""
LOOK_LEAST_S, LOOK_MOST_S = 0.25, 3.0
LOOK_SHARE = 0.15
"""The share of a core for looks: four looks per second for 8 ranks, one every three seconds for
10,000."""
LOOK_SHARE_MOST = 0.5
"""The share if a look takes longer than that, as at 100,000 ranks."""
WAVERS_S = STEP_NS / 1e9
"""Something was found but is not shown yet: the second look comes as soon as it counts, whatever
its cost. These are the two or three looks until a finding appears or clears."""
BEHIND_S = 1.0
"""A look waits this long until the queued frames are applied: otherwise ranks would seem silent."""
MANY_PER_S, NAP_S = 400.0, 0.03
"""From this rate on, frames are applied in batches, because waking up for each frame would cost
more than the frame."""
SWITCH_S = 0.0005
GC_THRESHOLDS = (50_000, 10, 50)
"""The model has a million objects without reference cycles. With the default thresholds, Python's
collector walked through all of them every few seconds, which blocked key presses for 60 to 200 ms.
Only closed screens leave cycles, of a few thousand objects each."""
GC_EACH = 20
"""Added to the first threshold for each rank: the facts of two looks exist for a moment, which is
not growth."""
CHECKED_BYTES = 256 << 10
"""The amount of data between two checks of this process's memory, if it is bounded."""
LOOK_COST_BYTES = 4096
"""The memory that a look needs for each rank of the world size that the other side reports."""
SHOWN_S = 2.0
"""After this time the screens show the newest look, and the facts of older ones are freed. At
100,000 ranks those of one look, with the reports that they are made of, take 0.5 GiB."""
FREED_AT_ONCE = 250
"""How many ranks' facts are freed at once: freeing those of 10,000 takes 50 ms, during which no
other thread runs."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits for data from an untrusted host. `memory_bytes`: the resident memory of the whole
    process above which no more data is accepted."""

    queue_bytes: int = QUEUE_BYTES_MAX
    tape_bytes: int = LIVE_BYTES
    memory_bytes: int | None = None


Answers = Sequence[Reply | Stacks]


class EngineError(Exception):
    """The engine has failed and nothing new will come; the text says how."""


@dataclass(frozen=True, slots=True)
class NewestLook:
    """The newest look, and the connection from which it was made."""

    follower: Follower
    look: Look


@dataclass(frozen=True, slots=True)
class TapeMoment:
    """The state at `asked_unix_ns`, from the tape; or at the first moment of the tape, if that is
    later."""

    asked_unix_ns: int
    look: Look


class Engine:
    """Owns the followers and the tape.

    `put`, `travel`, `start` and `close` are for the event loop; so are `seen` and `moment`. The
    thread calls `on_news` with the answers to this viewer's requests, and with none if there is
    other news that a user waits for.
    """

    def __init__(
        self,
        job: str,
        on_news: Callable[[Answers], None] = lambda _: None,
        clock: Callable[[], int] = time.time_ns,
        bounds: Bounds = Bounds(),
    ) -> None:
        self._bounds = bounds
        self.full = False
        """The memory limit is reached: the engine accepts no more data and makes no more looks."""
        self._job, self._clock = job, clock
        self._answers: list[Reply | Stacks] = []
        self.seen: NewestLook | None = None
        self.moment: TapeMoment | None = None
        self.dropped = 0
        self.failure: BaseException | None = None
        self._on_news = on_news
        self._tape = Tape(bounds.tape_bytes)
        self._queue: deque[tuple[Follower, bytes, float]] = deque()
        self._late_s = 0.0
        self._unchecked = 0
        self._put_bytes = self._taken_bytes = 0
        self._wake = threading.Event()
        self._stop = False
        self._thread: threading.Thread | None = None
        self._current: Follower | None = None
        self._heard = self._due = self._due_first = 0.0
        self._began = self._cost_s = 0.0
        self._wanted: int | None = None
        self._taken, self._counted_from, self._per_s = 0, time.monotonic(), 0.0
        self._before: tuple[float, tuple[int, int, int]] | None = None
        self._looked_at: deque[list[RankFacts]] = deque()
        self._handed_over = 0.0

    # -- for the event loop

    def start(self) -> None:
        """Start the thread; once."""
        self._before = sys.getswitchinterval(), gc.get_threshold()
        sys.setswitchinterval(SWITCH_S)
        gc.set_threshold(*GC_THRESHOLDS)
        self._thread = threading.Thread(target=self._run, name="ddtop-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, at the latest after its current look."""
        self._stop = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._before is not None:
            sys.setswitchinterval(self._before[0])
            gc.set_threshold(*self._before[1])
            self._before = None

    def follower(self) -> Follower:
        """A follower for a new connection. Only this engine may use it, except for its flags and
        its clock."""
        follower = Follower(self._job, self._clock, self._answers.append)
        follower.compares = follower.newest_only = True
        return follower

    def put(self, follower: Follower, data: bytes) -> None:
        """Queue this frame for `follower`; if the queue is full, the frame is dropped and counted.
        O(1)."""
        if self.full or self._put_bytes - self._taken_bytes > self._bounds.queue_bytes:
            self.dropped += 1
            return
        self._put_bytes += len(data) + FRAME_COST_BYTES
        self._queue.append((follower, data, time.monotonic()))
        if not self._wake.is_set():
            self._wake.set()

    def travel(self, at_unix_ns: int | None) -> None:
        """Compute `moment` for that time; None: no longer wanted."""
        self._wanted = at_unix_ns
        self._wake.set()

    def check(self) -> None:
        """Raises: EngineError: it has failed."""
        if self.failure is not None:
            raise EngineError(f"{type(self.failure).__name__}: {self.failure}") from self.failure

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._stop:
                self._wake.wait(self._pause_s())
                self._wake.clear()
                self._take_in()
                self._go_back()
                if time.monotonic() - self._handed_over > SHOWN_S:
                    self._free_looks(1)
                if self._is_due():
                    self._look()
                if self._per_s > MANY_PER_S and not self._queue and not self._stop:
                    time.sleep(NAP_S)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the loop says it and ends
            self.failure = error
            self._on_news(())

    def _pause_s(self) -> float:
        return (
            min(max(self._due - time.monotonic(), 0.0), LOOK_MOST_S)
            if self._current is not None
            else LOOK_MOST_S
        )

    def _take_in(self) -> None:
        if not self._queue:
            return
        self._heard = time.monotonic()
        until = self._heard + LOOK_LEAST_S
        taken = 0
        while self._queue and not self._stop:
            follower, data, came = self._queue.popleft()
            self._taken_bytes += len(data) + FRAME_COST_BYTES
            if self._is_full(len(data), 0):
                break
            envelope = follower.take(data)
            if envelope is not None:
                self._tape.add(envelope, data, follower.job)
            taken += 1
            if taken & 255 == 0 and time.monotonic() > until:
                self._wake.set()
                break
        self._taken += taken
        if self.full:
            return
        self._late_s = time.monotonic() - came if self._queue else 0.0
        if follower.live and follower is not self._current:
            self._current, self._due = follower, 0.0
            self._on_news(())
        if follower.stuck_unix_ns is not None:
            self._plan_for_stuck(follower, follower.stuck_unix_ns)
        self._hand_over(Reply)
        if self._answers:
            # These are stacks: show them to the user now, not at the next look.
            self._due = min(self._due, self._due_first)

    def _plan_for_stuck(self, follower: Follower, stuck_unix_ns: int) -> None:
        """Plan the next look for the time at which a hang that may have begun can be named."""
        since_s = (follower.now_unix_ns() - stuck_unix_ns) / 1e9
        wanted = time.monotonic() - since_s + follower.stuck_look_s
        self._due = due_for_stuck_s(self._due, self._began, self._cost_s, wanted)

    def _is_full(self, taken_bytes: int, wanted_bytes: int) -> bool:
        """Whether the memory limit is reached, including `wanted_bytes` more. It is checked after
        each small amount of data."""
        most = self._bounds.memory_bytes
        if most is None or self.full:
            return self.full
        self._unchecked += taken_bytes
        if self._unchecked < CHECKED_BYTES:
            return False
        self._unchecked = 0
        if _resident_bytes() + wanted_bytes < most:
            return False
        self.full = True
        self._queue.clear()
        self._tape = Tape(0)
        self._answers.clear()
        self._on_news(())
        return True

    def _is_due(self) -> bool:
        now = time.monotonic()
        if self._current is None or now < self._due:
            return False
        if now - self._heard > self._current.policy.relay_silent_s:
            self._due = now + LOOK_LEAST_S
            return False
        return not self._queue or now >= self._due + BEHIND_S

    def _look(self) -> None:
        follower = self._current
        assert follower is not None
        if self._is_full(CHECKED_BYTES, follower.job.world_size * LOOK_COST_BYTES):
            return
        began, worked = time.monotonic(), time.thread_time()
        # Ranks with queued frames would look silent, so the look is for the time of the last
        # applied frame.
        snapshot, verdict = follower.look(follower.now_unix_ns() - int(self._late_s * 1e9))
        self._tape.notice(follower.judge.found)
        # A viewer that attaches after the end has not seen the earlier findings, but the relay has
        # sent the records.
        verdict = self._tape.with_what_stood(snapshot, verdict)
        snapshot = replace(snapshot, notes=(*self._notes(), *snapshot.notes))
        tape = self._tape
        recall = tape.looks if tape.span is not None else None
        look = Look(
            snapshot,
            verdict,
            span=tape.span,
            marks=tape.marks,
            recall=recall,
            untaped=tape.too_many,
        )
        before, self.seen = self.seen, NewestLook(follower, look)
        if before is None or before.follower is not follower or _differ(before.look, look):
            # Otherwise the screens would show it up to half a second later.
            self._on_news(())
        self._free_old_looks(snapshot)
        # Stacks are passed on after the look that includes them, so that a dump that is reported as
        # complete is complete on the screen.
        self._hand_over(Reply, Stacks)
        cost_s = time.thread_time() - worked
        self._began, self._cost_s = began, cost_s
        self._due_first = began + 2 * cost_s
        self._due = began + period_of_looks_s(cost_s, follower.judge.wavers)
        if began > self._counted_from:
            self._per_s = self._taken / (began - self._counted_from)
            self._taken, self._counted_from = 0, began

    def _free_old_looks(self, snapshot: Snapshot) -> None:
        """Free the facts of the look before the last one. The screens show the last one by now."""
        self._looked_at.append(list(snapshot.ranks))
        self._handed_over = time.monotonic()
        self._free_looks(2)
        gc.set_threshold(GC_THRESHOLDS[0] + GC_EACH * len(snapshot.ranks), *GC_THRESHOLDS[1:])

    def _free_looks(self, most: int) -> None:
        """Free the facts of all but the newest `most` looks, a few at a time."""
        while len(self._looked_at) > most:
            facts = self._looked_at.popleft()
            while facts:
                del facts[-FREED_AT_ONCE:]

    def _notes(self) -> Iterator[str]:
        if self.dropped:
            yield (
                f"{self.dropped:,} records came faster than they could be taken in and were dropped"
            )
        if self._current is not None and self._late_s > self._current.policy.viewer_late_s:
            yield f"this viewer is {self._late_s:.0f} s behind: its host leaves it too little CPU"

    def _hand_over(self, *kinds: type[Reply | Stacks]) -> None:
        """Pass the answers of these kinds to the event loop."""
        answers = [answer for answer in self._answers if isinstance(answer, kinds)]
        if answers:
            self._answers[:] = [answer for answer in self._answers if not isinstance(answer, kinds)]
            self._on_news(answers)

    def _go_back(self) -> None:
        wanted, span = self._wanted, self._tape.span
        if (
            wanted is None
            or span is None
            or (self.moment is not None and self.moment.asked_unix_ns == wanted)
        ):
            return
        at = max(wanted, span[0])
        self.moment = TapeMoment(
            wanted, Look(*self._tape.at(at), travelled=True, past=Past(self._tape, at))
        )
        self._on_news(())


def _differ(before: Look, look: Look) -> bool:
    """Whether the verdict names other findings than before."""
    names = [[one.identity for one in found.verdict.findings] for found in (before, look)]
    return before.verdict.health != look.verdict.health or names[0] != names[1]


def period_of_looks_s(cost_s: float, wavers: bool) -> float:
    """Seconds from one look to the next, where a look takes `cost_s` of CPU.

    `wavers`: a finding waits for its second opinion.
    """
    most_s = max(LOOK_MOST_S, cost_s / LOOK_SHARE_MOST)
    period_s = min(max(cost_s / LOOK_SHARE, LOOK_LEAST_S), most_s)
    return min(period_s, max(WAVERS_S, cost_s)) if wavers else period_s


def due_for_stuck_s(due: float, began: float, cost_s: float, wanted: float) -> float:
    """The time of the next look, if a hang can be named from `wanted` on.

    `due`: the time without this; `began` and `cost_s`: of the last look. A look that would not be
    finished at `wanted` starts at `wanted`, and so does a later one. All in seconds of one clock.
    """
    if due + cost_s <= wanted:
        return due
    return max(wanted, began + cost_s)


def _resident_bytes() -> int:
    """Of this process. Source: the second field of /proc/self/statm, in pages."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
