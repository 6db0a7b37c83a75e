"""When a relay asks for stacks by itself: something stands still, and nobody may be attached to see it."""

from __future__ import annotations

STANDS_S = 2.0
"""An agent names what stands after a second; two more, and it is worth a look."""
EVERY_S = 30.0
FRESH_S = 1.5
KEYS_KEPT = 256


class Automatic:
    """Decides once a stuck key (what an agent sees standing still), and at most every 30 s. Times are monotonic s."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._seen: dict[str, tuple[float, float]] = {}
        self._done: dict[str, None] = {}
        self._asked = float("-inf")

    def saw(self, key: str, now: float) -> None:
        """An agent says that this stands still."""
        if key in self._done or not self._enabled:
            return
        known = self._seen.get(key)
        if known is None and len(self._seen) >= KEYS_KEPT:
            # Those that are there are about to be a reason; each of thousands of ranks may wait in a call of its own.
            return
        first, last = known or (now, now)
        # A key that came back after a pause is a new standstill of something that had moved.
        self._seen[key] = (first if now - last <= FRESH_S else now, now)

    def due(self, now: float) -> str | None:
        """The key for which everyone should be asked now."""
        if now - self._asked < EVERY_S:
            return None
        for key, (first, last) in list(self._seen.items()):
            if now - last > FRESH_S:
                del self._seen[key]
            elif last - first >= STANDS_S:
                del self._seen[key]
                self._done[key] = None
                while len(self._done) > KEYS_KEPT:
                    del self._done[next(iter(self._done))]
                self._asked = now
                return key
        return None
