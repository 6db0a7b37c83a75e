"""Which of the process's threads is the rank's thread: its place, its waits and its exceptions are the rank's.

That is the thread that steps the optimizer. Ray Train, notebooks, GUIs and some trainers train in a thread while the main thread only
waits for it. Before the first step, and in programs without an optimizer, it is the main thread, unless that one waits for another
thread (join, queue, future) or runs no code of the program, and exactly there another thread is in torch's training code.
What remains uncertain: a main thread that waits for a background thread which communicates for it; then that one is told.
"""

from __future__ import annotations

import sys
import threading

from ddtop.agent.probes.place import BACKWARD, COLLECTIVE, FORWARD, LOADER, OPTIMIZER, FrameReader, Seen

SCAN_EVERY_NS = 1_000_000_000
THREADS_MAX = 64
"""Threads looked at in one scan: 10 us each."""
_TRAINING = (COLLECTIVE, BACKWARD, OPTIMIZER, FORWARD, LOADER)
_WAITS_FOR_THREADS = frozenset({"lock", "queue", "future", "asyncio", "exit"})


class Lead:
    """Finds the thread and looks at it; on the agent's thread. `ident`: Python's number of the thread that was found last."""

    def __init__(self, main_id: int, frames: FrameReader) -> None:
        self.ident = self._main_id = main_id
        self._frames = frames
        self._scanned_at = 0

    def look(self, now: int, stepper: int) -> Seen | None:
        """What the rank's thread does at this moment. `now`: monotonic ns; `stepper`: the thread of the last optimizer step, 0: none.

        None if the main thread has no Python frame any more.
        """
        if stepper not in (0, self._main_id):
            seen = self._frames.look(stepper)
            # A pool's thread that has nothing to do stands in the library.
            if seen is not None and seen.frame_id:
                self.ident = stepper
                return seen
        seen = self._frames.look(self._main_id)
        if stepper == self._main_id or not _waits_for_threads(seen):
            self.ident = self._main_id
            return seen
        return self._other(now) or seen

    @property
    def native_id(self) -> int:
        """The kernel's number of the thread; 0 for the main thread, and where Python does not know it. Check: `ls /proc/PID/task`."""
        if self.ident == self._main_id:
            return 0
        # A dictionary of this process, read without its lock: what is missing is no harm.
        known = threading._active.get(self.ident)  # type: ignore[attr-defined]
        return int(getattr(known, "native_id", 0) or 0)

    def _other(self, now: int) -> Seen | None:
        """Another thread than the main one that trains; the one of before while it does."""
        if self.ident != self._main_id:
            seen = self._frames.look(self.ident)
            if seen is not None and _trains(seen):
                return seen
        if now - self._scanned_at < SCAN_EVERY_NS:
            return None
        self._scanned_at, self.ident = now, self._main_id
        own = threading.get_ident()
        others = [ident for ident in list(sys._current_frames()) if ident not in (own, self._main_id)][:THREADS_MAX]
        looks = [(ident, seen) for ident in others if (seen := self._frames.look(ident)) is not None and _trains(seen)]
        if not looks:
            return None
        self.ident, found = min(looks, key=lambda look: (_TRAINING.index(look[1].activity), look[0]))
        return found


def _trains(seen: Seen) -> bool:
    return bool(seen.frame_id) and seen.activity in _TRAINING


def _waits_for_threads(seen: Seen | None) -> bool:
    return seen is None or not seen.frame_id or seen.waits_on in _WAITS_FOR_THREADS
