"""Cumulative counters over time, bounded: any two points give a window."""

from __future__ import annotations

from collections import deque

POINTS = 128
"""At 2 Hz about a minute: the longest window that a state or rule asks for is a tenth of it."""


class Series:
    """Points of (unix ns, counters...), ascending; a point that is not newer than the last is ignored."""

    __slots__ = ("_points",)

    def __init__(self) -> None:
        self._points: deque[tuple[int, tuple[float, ...]]] = deque(maxlen=POINTS)

    def add(self, unix_ns: int, *values: float) -> None:
        """Append a point. Counters that fell (a new process) start the series anew."""
        if self._points:
            at, last = self._points[-1]
            if unix_ns <= at:
                return
            if len(last) != len(values) or any(new < old for new, old in zip(values, last, strict=True)):
                self._points.clear()
        self._points.append((unix_ns, values))

    def grown(self, window_s: float, now_unix_ns: int) -> tuple[float, tuple[float, ...]] | None:
        """(seconds, growth of each counter) over the last `window_s`, up to the newest point.

        None with fewer than two points, or if the newest point is older than the window: then nothing is known of it.
        """
        if len(self._points) < 2 or now_unix_ns - self._points[-1][0] > window_s * 1e9:
            return None
        end_ns, end = self._points[-1]
        begin_ns, begin = self._points[0]
        for at, values in self._points:
            if end_ns - at < window_s * 1e9:
                break
            begin_ns, begin = at, values
        if begin_ns == end_ns:
            return None
        return (end_ns - begin_ns) / 1e9, tuple(b - a for a, b in zip(begin, end, strict=True))
