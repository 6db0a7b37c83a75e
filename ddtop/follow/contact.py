"""Whether a relay is heard. All times are arguments, in s of this process's monotonic clock."""

from __future__ import annotations

from ddtop.link.viewer_side import PING_S

MISSED_S = 1.0
"""Two turns of listening are closer than this, unless this process did not run: stopped, on a
sleeping laptop, or without CPU."""
HOPELESS_FACTOR = 2.0
"""A connection is given up after so many times the silence that is shown."""


class Contact:
    """What a viewer heard of one job, over all its connections."""

    def __init__(self, now_s: float) -> None:
        self._heard_s = self._listened_s = self._opened_s = self._pinged_s = now_s
        self._open = False

    def opened(self, now_s: float) -> None:
        """A connection is open."""
        self._listened_s = self._opened_s = self._pinged_s = now_s
        self._open = True

    def closed(self) -> None:
        """It is not open any more."""
        self._open = False

    def heard(self, now_s: float) -> None:
        """Something has arrived."""
        self._heard_s = now_s

    def turn(self, now_s: float) -> None:
        """One turn of listening is over. The time in which this process did not run is not a
        silence of the relay."""
        missed_s = max(now_s - self._listened_s - MISSED_S, 0.0)
        self._heard_s, self._listened_s = min(self._heard_s + missed_s, now_s), now_s

    def silent_s(self, now_s: float) -> float:
        """How long nothing has arrived while this process listened."""
        until_s = min(now_s, self._listened_s + MISSED_S) if self._open else now_s
        return until_s - self._heard_s

    def hopeless(self, now_s: float, limit_s: float) -> bool:
        """Whether this connection is to be given up. `limit_s`: the silence that is shown."""
        return now_s - max(self._heard_s, self._opened_s) > HOPELESS_FACTOR * limit_s

    def pings(self, now_s: float) -> bool:
        """Whether a ping is due; then it counts as sent."""
        if now_s - self._pinged_s <= PING_S:
            return False
        self._pinged_s = now_s
        return True
