"""The offset between the clock of a leaf and that of its hub, from the times of messages, as in
NTP.

A leaf sends a question at t1 and has the answer at t4, on its own clock. The answer says when the
hub received the question (t2) and answered (t3). The offset is ((t2 - t1) + (t3 - t4)) / 2, and
wrong by at most half of the round trip. So the fastest of the last answers is used. It does not
matter if a busy relay or network delays other answers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ddtop.wire.hosts import HostClock

KEPT = 16
"""Answers, one every 2 s: in half a minute clocks drift by at most 3 ms (100 ppm), NTP's own
corrections included."""
DRIFT_RATIO = 1e-4
STEPPED_NS = 5_000_000
"""If the wall clock and the monotonic clock of one host have drifted this far apart since an
answer, somebody has set the clock."""
SANE_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class _Sample:
    offset_ns: int
    error_ns: int
    mono_ns: int
    unix_minus_mono_ns: int


class HubClock:
    """The last answers of one hub.

    Times in ns; `mono_ns` is this host's monotonic clock when the answer came.
    """

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=KEPT)

    def add(self, sent: int, had: int, answered: int, came: int, mono_ns: int) -> None:
        """Add one answer (t1, t2, t3, t4, all unix ns).

        An impossible one is ignored.
        """
        error = ((came - sent) - (answered - had)) // 2
        if error < 0 or answered < had or max(map(abs, (sent, had, answered, came))) > SANE_NS:
            return
        new = _Sample(((had - sent) + (answered - came)) // 2, error, mono_ns, came - mono_ns)
        # Earlier answers that contradict this one are from before one of the clocks was set.
        fitting = (one for one in self._samples if _agree(one, new))
        self._samples = deque(fitting, maxlen=KEPT)
        self._samples.append(new)

    def forget(self) -> None:
        """Forget all answers: there is a new hub."""
        self._samples.clear()

    def measured(self, mono_ns: int) -> HostClock | None:
        """The result of the fastest of the last answers; None if there is none."""
        best = min(
            self._samples,
            key=lambda one: one.error_ns + _drift(mono_ns - one.mono_ns),
            default=None,
        )
        if best is None:
            return None
        return HostClock(best.offset_ns, best.error_ns, max(0, mono_ns - best.mono_ns) // 1_000_000)


def _agree(old: _Sample, new: _Sample) -> bool:
    if abs(new.unix_minus_mono_ns - old.unix_minus_mono_ns) > STEPPED_NS:
        return False
    room = old.error_ns + new.error_ns + _drift(new.mono_ns - old.mono_ns)
    return abs(new.offset_ns - old.offset_ns) <= room


def _drift(elapsed_ns: int) -> int:
    return int(max(0, elapsed_ns) * DRIFT_RATIO)
