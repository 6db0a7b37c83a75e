"""Counts the lines of the program's code at which the rank's thread was in the last half minute.
The count is bounded.

Source: the looks of `rank_thread`, four a second. Caveat: these are samples, so a line that runs
only briefly may be missing. Check: `py-spy top --pid PID`.
"""

from __future__ import annotations

from collections import deque

from ddtop.agent.stacks.frames import ThreadLook
from ddtop.wire.samples import Spot

KEPT, TOLD = 120, 8
"""Samples that are remembered (half a minute), and lines that are reported."""

_Key = tuple[str, str, int, "str | None"]


class HotLines:
    """Counts of (function, file, line, waits on) over the last samples. No frame is kept."""

    def __init__(self) -> None:
        self._looks: deque[_Key | None] = deque(maxlen=KEPT)
        self._counts: dict[_Key, int] = {}

    def add(self, seen: ThreadLook | None) -> None:
        """Add one sample. None, or no code of the program, counts too, because shares are of all
        samples."""
        if len(self._looks) == KEPT:
            self._forget(self._looks[0])
        key = None
        if seen is not None and seen.function is not None:
            key = (seen.qualname or seen.function, seen.file, seen.line, seen.waits_on)
            self._counts[key] = self._counts.get(key, 0) + 1
        self._looks.append(key)

    def _forget(self, key: _Key | None) -> None:
        if key is None:
            return
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]

    @property
    def total(self) -> int:
        """Looks of which the counts are."""
        return len(self._looks)

    def most_seen(self) -> tuple[Spot, ...]:
        """The lines at which it was seen most often, those first."""
        if not self._counts:
            return ()
        first = sorted(self._counts.items(), key=lambda item: -item[1])[:TOLD]
        return tuple(
            Spot(function, file, line, count, waits_on)
            for (function, file, line, waits_on), count in first
        )
