"""Decides when a relay asks its ranks for exact arrivals: when their waits differ, or are long.

The ratios come from four samples a second, so those of a job that communicates much differ by
chance. That costs one read of the entries per minute and makes no finding. This module does not
interpret the answers.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import sqrt
from statistics import median

from ddtop.policy import Policy

LOOKS_FIRST, LOOKS_EACH, LOOKS_MOST = 12, 2, 80
"""Samples in the first ratio of an agent, samples that each report adds, and the maximum. They
follow from the sampling rate of the agent."""


class ArrivalsTrigger:
    """The wait ratio of each process, and the decision from all of them. Times are monotonic s."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._ratios: dict[Hashable, tuple[float, float]] = {}
        self._looks: dict[Hashable, int] = {}
        self._since: float | None = None
        self._calm_since: float | None = None
        self._asked = float("-inf")
        self._times = 0
        self._least: Hashable | None = None

    def saw(self, pid: Hashable, wait_ratio: float | None, now: float) -> None:
        """Note the share of the last 20 s that a rank has waited."""
        if wait_ratio is not None and 0.0 <= wait_ratio <= 1.0:
            looks = self._looks.get(pid, LOOKS_FIRST - LOOKS_EACH) + LOOKS_EACH
            self._ratios[pid] = (now, wait_ratio)
            self._looks[pid] = min(looks, LOOKS_MOST)

    def due(self, now: float) -> bool:
        """Whether to ask all ranks now. The relay calls this once a second."""
        policy, fresh = self._policy, now - self._policy.arrivals_fresh_s
        self._ratios = {pid: one for pid, one in self._ratios.items() if one[0] >= fresh}
        self._looks = {pid: looks for pid, looks in self._looks.items() if pid in self._ratios}
        if not self._worth_asking():
            self._since, self._calm_since = None, self._calm_since or now
            if now - self._calm_since > policy.arrivals_calm_s:
                self._times = 0
            return False
        self._calm_since = None
        if (least := self._far_below()) is not None and least != self._least:
            # The earlier answers are about another rank.
            self._least, self._times = least, min(self._times, 1)
        self._since = self._since if self._since is not None else now
        pauses_s = policy.arrivals_pauses_s
        pause = pauses_s[min(self._times, len(pauses_s)) - 1] if self._times else 0.0
        if now - self._since < policy.arrivals_stuck_s or now - self._asked < pause:
            return False
        self._asked, self._times = now, self._times + 1
        return True

    def _worth_asking(self) -> bool:
        ratios = sorted(ratio for _, ratio in self._ratios.values())
        if len(ratios) < 2:
            return False
        upper, least = median(ratios[len(ratios) // 2 :]), ratios[0]
        mean, looks = (upper + least) / 2, min(self._looks.values())
        chance = self._policy.arrivals_errors * sqrt(2 * mean * (1 - mean) / looks)
        is_apart = upper - least >= max(self._policy.arrivals_apart_ratio, chance)
        return is_apart or upper >= self._policy.arrivals_much_ratio

    def _far_below(self) -> Hashable | None:
        """The process that waits least, if that is beyond chance."""
        ratios = sorted(
            ((ratio, pid) for pid, (_, ratio) in self._ratios.items()), key=lambda one: one[0]
        )
        (least, pid), (second, _) = ratios[:2]
        return pid if second - least >= self._policy.arrivals_far_ratio else None


# -- Decides when a relay takes stacks automatically: something is stuck, and perhaps no viewer is
#    attached


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
