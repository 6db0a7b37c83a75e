"""Decides when a relay takes stacks automatically: something is stuck, and perhaps no viewer is
attached."""

from __future__ import annotations

from ddtop.policy import Policy

KEYS_KEPT = 256


class DumpTrigger:
    """Takes stacks once for each stuck key, and not more often than every `auto_dump_every_s`.

    A stuck key names what an agent sees without progress, such as one collective of one group.
    Times are monotonic s.
    """

    def __init__(self, policy: Policy, enabled: bool) -> None:
        self._policy, self._enabled = policy, enabled
        self._seen: dict[str, tuple[float, float]] = {}
        self._done: dict[str, None] = {}
        self._asked = float("-inf")

    def saw(self, key: str, now: float) -> None:
        """Note that an agent reports this as stuck."""
        if key in self._done or not self._enabled:
            return
        known = self._seen.get(key)
        if known is None and len(self._seen) >= KEYS_KEPT:
            # Thousands of ranks may each wait in a different call. The known keys are enough.
            return
        first, last = known or (now, now)
        # If a key is reported again after a pause, there was progress in between.
        self._seen[key] = (first if now - last <= self._policy.auto_dump_fresh_s else now, now)

    def due(self, now: float) -> str | None:
        """The key for which all ranks should be asked now."""
        if now - self._asked < self._policy.auto_dump_every_s:
            return None
        for key, (first, last) in list(self._seen.items()):
            if now - last > self._policy.auto_dump_fresh_s:
                del self._seen[key]
            elif last - first >= self._policy.auto_dump_stuck_s:
                del self._seen[key]
                self._done[key] = None
                while len(self._done) > KEYS_KEPT:
                    del self._done[next(iter(self._done))]
                self._asked = now
                return key
        return None
