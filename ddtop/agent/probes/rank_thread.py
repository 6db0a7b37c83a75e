"""Finds the rank's thread among the threads of the process, and what it does.

The rank's thread is the one that steps the optimizer. Ray Train, notebooks, GUIs and some trainers
train in a thread while the main thread only waits for it. Before the first step, and in programs
without an optimizer, it is the main thread. If the main thread waits for another thread (join,
queue, future) or runs no code of the program, and another thread is in torch's training code, it is
that other thread. One case remains uncertain: if the main thread waits for a background thread that
communicates for it, the background thread is reported.

Source: `ddtop.agent.stacks.walk`, on the agent's thread with the GIL held (10 us a thread). It
shows Python frames only: inside C code the place is the line that called it. Check:
`py-spy dump --pid PID`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ddtop.agent.probe import Probe, Tick
from ddtop.agent.probes.hot_lines import HotLines
from ddtop.agent.stacks.frames import (
    BACKWARD,
    COLLECTIVE,
    FORWARD,
    LOADER,
    OPTIMIZER,
    FrameReader,
    Stay,
    ThreadLook,
)
from ddtop.wire import page as layout
from ddtop.wire.records import Place

if TYPE_CHECKING:
    from ddtop.agent.rank import Rank

SCAN_EVERY_NS = 1_000_000_000
POLLS_AFTER_NS = 3_000_000_000
"""A loop that polls is found asleep at one line; after this time its function is asked for what."""
THREADS_MAX = 64
"""Threads looked at in one scan: 10 us each."""
_TRAINING = (COLLECTIVE, BACKWARD, OPTIMIZER, FORWARD, LOADER)
SERVES = "rpc-shutdown"
_WAITS_FOR_THREADS = frozenset({"lock", "queue", "future", "asyncio", "exit", SERVES})


class Lead:
    """Finds the rank's thread and looks at it. `ident`: Python's number of the last one found."""

    def __init__(self, main_id: int, frames: FrameReader) -> None:
        self.ident = self._main_id = main_id
        self._frames = frames
        self._scanned_at = 0

    def look(self, now: int, stepper: int) -> ThreadLook | None:
        """What the rank's thread does at this moment; None if the main thread has no Python frame
        any more.

        `now`: monotonic ns. `stepper`: the thread of the last optimizer step, 0 before the first.
        """
        if stepper not in (0, self._main_id):
            seen = self._frames.look(stepper)
            # An idle thread of a pool is inside the library.
            if seen is not None and seen.frame_id:
                self.ident = stepper
                return seen
        seen = self._frames.look(self._main_id)
        if stepper == self._main_id or not _waits_for_threads(seen):
            self.ident = self._main_id
            return seen
        return self._other(now, seen is not None and seen.waits_on == SERVES) or seen

    @property
    def native_id(self) -> int:
        """The kernel's number of the thread; 0 for the main thread, and if Python does not know it.

        Check: `ls /proc/PID/task`.
        """
        if self.ident == self._main_id:
            return 0
        # A dictionary of this process, read without its lock: a missing entry does no harm.
        known = threading._active.get(self.ident)  # type: ignore[attr-defined]
        return getattr(known, "native_id", None) or self._frames.walk.native_id(self.ident)

    def _other(self, now: int, serves: bool) -> ThreadLook | None:
        """A training thread that is not the main thread; the previous one, as long as it trains.

        `serves`: the main thread only serves calls of others. Then the only thread with code of the
        program is the rank's, whatever it does.
        """
        if self.ident != self._main_id:
            seen = self._frames.look(self.ident)
            if seen is not None and (_trains(seen) or (serves and seen.frame_id)):
                return seen
        if now - self._scanned_at < SCAN_EVERY_NS:
            return None
        self._scanned_at, self.ident = now, self._main_id
        own = threading.get_ident()
        others = [
            ident for ident in self._frames.walk.threads() if ident not in (own, self._main_id)
        ][:THREADS_MAX]
        own_code = [
            (ident, seen)
            for ident in others
            if (seen := self._frames.look(ident)) is not None and seen.frame_id
        ]
        looks = [one for one in own_code if _trains(one[1])]
        if not looks and (not serves or len(own_code) != 1):
            return None
        self.ident, found = min(
            looks or own_code,
            key=lambda look: (_TRAINING.index(look[1].activity) if looks else 0, look[0]),
        )
        return found


def _trains(seen: ThreadLook) -> bool:
    return bool(seen.frame_id) and seen.activity in _TRAINING


def _waits_for_threads(seen: ThreadLook | None) -> bool:
    return seen is None or not seen.frame_id or seen.waits_on in _WAITS_FOR_THREADS


def probe(rank: Rank) -> PlaceProbe:
    """The probe of `ddtop.agent.sources`."""
    return PlaceProbe(rank)


class PlaceProbe(Probe):
    """Where the rank's thread is now, where it was most often, and how late the ticks were."""

    name = "place"

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._lead = Lead(rank.main_id, rank.frames)
        self._stay = Stay()
        self._lines = HotLines()
        self._held_samples, self._held_lines = 0, HotLines()
        self._gil_held_ns = 0
        self._has_groups = False
        self._polls: str | None = None
        self._asked_since = 0

    def sample(self, tick: Tick) -> None:
        """Find the rank's thread and look at its frames."""
        rank, lead = self._rank, self._lead
        self._gil_held_ns += tick.late_ns
        self._held_samples += tick.held
        seen = tick.seen = lead.look(tick.now, rank.stepper)
        if lead.ident != rank.lead_id:
            rank.lead_id = lead.ident
            rank.page.words[layout.LEAD_AT] = lead.native_id
        call = tick.calls.get(rank.lead_id)
        if seen is not None and call is not None:
            seen.activity, (seen.callee, seen.waits_on) = COLLECTIVE, call
        self._lines.add(seen)
        if tick.held:
            self._held_lines.add(seen)
        if seen is not None:
            self._stay.follow(seen, tick.now)
            tick.line_since = self._stay.line_since
            # Once in each long stay at one line.
            since = self._stay.line_since
            if since != self._asked_since and tick.now - since >= POLLS_AFTER_NS:
                self._asked_since, self._polls = since, rank.frames.polled(lead.ident)

    def fields(self, tick: Tick) -> Mapping[str, Any]:
        """The place now and the lines of the last half minute."""
        if tick.groups and not self._has_groups:
            # What the rank did before it had process groups is not part of any step.
            self._lines = HotLines()
        self._has_groups = bool(tick.groups)
        return {
            "place": self._place(tick),
            "spots": self._lines.most_seen(),
            "spots_samples": self._lines.total,
            "held_samples": self._held_samples,
            "held_spot": next(iter(self._held_lines.most_seen()), None),
            "gil_held_ns": self._gil_held_ns,
        }

    def _place(self, tick: Tick) -> Place | None:
        seen = tick.seen
        if seen is None or seen.function is None:
            return None
        return Place(
            seen.function,
            seen.file,
            seen.line,
            seen.waits_on,
            self._stay.since + tick.unix_minus_mono,
            seen.callee,
            self._stay.line_since + tick.unix_minus_mono,
            seen.waits_for,
            seen.owner,
            seen.framework,
            seen.framework_call,
            seen.inside,
            self._polls if self._asked_since == self._stay.line_since else None,
        )
