"""Cumulative counters over time, bounded: any two points give a window.

At 10,000 ranks there are 30,000 of these, so a series is one flat array of integers. Ten seconds of
three series take 2 KB for each rank, a fifteenth of deques of tuples, and the garbage collector has
nothing to walk through.
"""

from __future__ import annotations

from array import array
from operator import lt, sub

POINTS = 128
"""More than a minute at 2 Hz. A sender that reports more than 12 times a second has shorter
windows."""
KEEP_S = 10.0
"""The longest window that states and rules use by default (`Policy.window_s`)."""


class Series:
    """Points of (unix ns, counters...), ascending. A point that is not newer than the last is
    ignored.

    It keeps the points of the last `keep_s` seconds and the one before: what any window of up to
    `keep_s` needs.
    """

    __slots__ = ("_keep_ns", "_points", "_stride")

    def __init__(self, keep_s: float = KEEP_S) -> None:
        self._points = array("q")
        self._stride = 1
        self._keep_ns = int(keep_s * 1e9)

    def __copy__(self) -> Series:
        made = Series.__new__(Series)
        made._points, made._stride, made._keep_ns = self._points[:], self._stride, self._keep_ns
        return made

    def add(self, unix_ns: int, *values: int) -> None:
        """Append a point.

        Counters that fell (a new process) start the series anew. Counters beyond 63 bits are
        refused.
        """
        points, stride = self._points, self._stride
        if points:
            if unix_ns <= points[-stride]:
                return
            if stride != len(values) + 1 or True in map(lt, values, points[1 - stride :]):
                del points[:]
        self._stride = stride = len(values) + 1
        try:
            points.fromlist([unix_ns, *values])
        except OverflowError:
            del points[:]
            return
        # Usually one point comes and one goes.
        size, keep = len(points), unix_ns - self._keep_ns
        old = max(size - POINTS * stride, 0)
        while old + stride < size and points[old + stride] <= keep:
            old += stride
        if old:
            del points[:old]

    def move(self, by_ns: int) -> None:
        """Add `by_ns` to the times of all points: the offset of their clock was corrected."""
        points = self._points
        for at in range(0, len(points), self._stride):
            points[at] += by_ns

    def __len__(self) -> int:
        return len(self._points) // self._stride

    def grown(self, window_s: float, now_unix_ns: int) -> tuple[float, tuple[float, ...]] | None:
        """(seconds, growth of each counter) over the last `window_s` (at most `keep_s`).

        The window ends at the newest point. None with fewer than two points, or if the newest point
        is older than the window.
        """
        begin = self._begin(window_s, now_unix_ns)
        if begin is None:
            return None
        points, stride = self._points, self._stride
        end = len(points) - stride
        grown = tuple(map(sub, points[end + 1 :], points[begin + 1 : begin + stride]))
        return (points[end] - points[begin]) / 1e9, grown

    def grown_of(
        self, counter: int, window_s: float, now_unix_ns: int
    ) -> tuple[float, float] | None:
        """(seconds, growth of this counter); as `grown`, which takes twice as long."""
        begin = self._begin(window_s, now_unix_ns)
        if begin is None:
            return None
        points = self._points
        end = len(points) - self._stride
        at = counter + 1
        return (points[end] - points[begin]) / 1e9, points[end + at] - points[begin + at]

    def _begin(self, window_s: float, now_unix_ns: int) -> int | None:
        """Where the point is with which the window begins; None as `grown` says."""
        points, stride = self._points, self._stride
        end = len(points) - stride
        if end <= 0:
            return None
        end_ns, window_ns = points[end], int(window_s * 1e9)
        if now_unix_ns - end_ns > window_ns:
            return None
        latest_ns = end_ns - window_ns
        if points[0] >= latest_ns:
            return 0
        if 2 * window_ns > end_ns - points[0]:
            # The window covers most of the points: its begin is near the first.
            begin = 0
            while begin + stride < end and points[begin + stride] <= latest_ns:
                begin += stride
            return begin
        begin = end - stride
        while begin > 0 and points[begin] > latest_ns:
            begin -= stride
        return begin
