"""Cumulative counters over time, bounded: any two points give a window.

At 10,000 ranks there are 50,000 of these, so a series is one flat array of integers: ten seconds of five of them are 2 KB a
rank, a fifteenth of what deques of tuples take, and nothing that the garbage collector has to walk through.
"""

from __future__ import annotations

from array import array

POINTS = 128
"""More than a minute at 2 Hz; a sender that reports more often than 12 times a second has shorter windows."""
KEEP_S = 10.0
"""The longest window that states and rules ask for (`Policy.window_s`); who needs a longer one says so."""


class Series:
    """Points of (unix ns, counters...), ascending; a point that is not newer than the last is ignored.

    Kept are the points of the last `keep_s` seconds and one before: what any window of up to `keep_s` needs.
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
        """Append a point. Counters that fell (a new process) start the series anew; those beyond 63 bits are not believed."""
        points, stride = self._points, self._stride
        if points:
            last = len(points) - stride
            if unix_ns <= points[last]:
                return
            if stride != len(values) + 1:
                del points[:]
            else:
                for value in values:
                    last += 1
                    if value < points[last]:
                        del points[:]
                        break
        self._stride = stride = len(values) + 1
        try:
            points.extend(array("q", (unix_ns, *values)))
        except OverflowError:
            del points[:]
            return
        # Usually one point comes and one goes.
        old, keep = 0, unix_ns - self._keep_ns
        while old + stride < len(points) and points[old + stride] <= keep:
            old += stride
        if old or len(points) > POINTS * stride:
            del points[: max(old, len(points) - POINTS * stride)]

    def move(self, by_ns: int) -> None:
        """All points that much later: their clock was another than was thought."""
        points = self._points
        for at in range(0, len(points), self._stride):
            points[at] += by_ns

    def __len__(self) -> int:
        return len(self._points) // self._stride

    def grown(self, window_s: float, now_unix_ns: int) -> tuple[float, tuple[float, ...]] | None:
        """(seconds, growth of each counter) over the last `window_s` (at most `keep_s`), up to the newest point.

        None with fewer than two points, or if the newest point is older than the window: then nothing is known of it.
        """
        points, stride = self._points, self._stride
        end = len(points) - stride
        if end <= 0:
            return None
        end_ns, window_ns = points[end], window_s * 1e9
        if now_unix_ns - end_ns > window_ns:
            return None
        begin = end - stride
        if end_ns - points[0] <= window_ns:
            begin = 0
        while begin > 0 and end_ns - points[begin] < window_ns:
            begin -= stride
        # Most series have one, two or three counters, and this is asked a hundred thousand times a second.
        seconds = (end_ns - points[begin]) / 1e9
        if stride == 4:
            return seconds, (
                points[end + 1] - points[begin + 1],
                points[end + 2] - points[begin + 2],
                points[end + 3] - points[begin + 3],
            )
        if stride == 3:
            return seconds, (points[end + 1] - points[begin + 1], points[end + 2] - points[begin + 2])
        if stride == 2:
            return seconds, (points[end + 1] - points[begin + 1],)
        return seconds, tuple([points[end + at] - points[begin + at] for at in range(1, stride)])
