"""Decides when a relay asks its ranks for exact arrivals: when their waits differ, or are long.

The ratios come from four samples a second, so those of a job that communicates much differ by
chance. That costs one read of the entries per minute and makes no finding. This module does not
interpret the answers.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import sqrt
from statistics import median

LOOKS_FIRST, LOOKS_EACH, LOOKS_MOST = 12, 2, 80
"""Samples in the first ratio of an agent, samples that each report adds, and the maximum. They
follow from the sampling rate of the agent."""
ARRIVALS_APART_RATIO = 0.08
"""The relay asks its ranks for exact arrivals where the upper half of them waits this much more
than the one that waits least: it is the smallest difference that is worth a finding."""
ARRIVALS_ERRORS = 2.2
"""... and at least this many standard errors of such a difference. Equal ranks of a job that
waits much differ that far now and then."""
ARRIVALS_FAR_RATIO = 0.2
"""The rank that waits least is another one than before, beyond chance: three standard errors of
the difference of two ratios of 80 samples each, at most."""
ARRIVALS_MUCH_RATIO = 0.3
"""The relay also asks where all ranks wait this much. Only the arrivals tell whether they wait
for each other, each time for another one, or for the network."""
ARRIVALS_STUCK_S = 0.5
"""The difference must last this long."""
ARRIVALS_FRESH_S = 2.5
"""A ratio that an agent reported longer ago does not count."""
ARRIVALS_CALM_S = 60.0
"""After this time without a difference the relay asks again at once, then with pauses."""
ARRIVALS_PAUSES_S = (0.0, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 60.0)
"""Pauses before the first question, and after the first, second, ... answer. The first ones are
short: they distinguish lasting differences from passing ones."""
AUTO_DUMP_STUCK_S = 2.0
"""After this the relay asks for stacks. An agent names what is stuck within a second."""
AUTO_DUMP_EVERY_S = 30.0
"""Pause between two such requests."""
AUTO_DUMP_FRESH_S = 1.5
"""Three missed reports: what no agent repeats is no longer stuck."""


class ArrivalsTrigger:
    """The wait ratio of each process, and the decision from all of them. Times are monotonic s."""

    def __init__(self) -> None:
        self._ratios: dict[Hashable, tuple[float, float]] = {}
        self._looks: dict[Hashable, int] = {}
        self._since: float | None = None
        self._calm_since: float | None = None
        self._asked = float("-inf")
        self._times = 0
        self._least: Hashable | None = None

    def note_wait(self, pid: Hashable, wait_ratio: float | None, now: float) -> None:
        """Note the share of the last 20 s that a rank has waited."""
        if wait_ratio is not None and 0.0 <= wait_ratio <= 1.0:
            looks = self._looks.get(pid, LOOKS_FIRST - LOOKS_EACH) + LOOKS_EACH
            self._ratios[pid] = (now, wait_ratio)
            self._looks[pid] = min(looks, LOOKS_MOST)

    def due(self, now: float) -> bool:
        """Whether to ask all ranks now. The relay calls this once a second."""
        fresh = now - ARRIVALS_FRESH_S
        self._ratios = {pid: one for pid, one in self._ratios.items() if one[0] >= fresh}
        self._looks = {pid: looks for pid, looks in self._looks.items() if pid in self._ratios}
        if not self._worth_asking():
            self._since, self._calm_since = None, self._calm_since or now
            if now - self._calm_since > ARRIVALS_CALM_S:
                self._times = 0
            return False
        self._calm_since = None
        if (least := self._far_below()) is not None and least != self._least:
            # The earlier answers are about another rank.
            self._least, self._times = least, min(self._times, 1)
        self._since = self._since if self._since is not None else now
        pause = ARRIVALS_PAUSES_S[min(self._times, len(ARRIVALS_PAUSES_S) - 1)]
        if now - self._since < ARRIVALS_STUCK_S or now - self._asked < pause:
            return False
        self._asked, self._times = now, self._times + 1
        return True

    def _worth_asking(self) -> bool:
        ratios = sorted(ratio for _, ratio in self._ratios.values())
        if len(ratios) < 2:
            return False
        upper, least = median(ratios[len(ratios) // 2 :]), ratios[0]
        mean, looks = (upper + least) / 2, min(self._looks.values())
        chance = ARRIVALS_ERRORS * sqrt(2 * mean * (1 - mean) / looks)
        is_apart = upper - least >= max(ARRIVALS_APART_RATIO, chance)
        return is_apart or least >= ARRIVALS_MUCH_RATIO

    def _far_below(self) -> Hashable | None:
        """The process that waits least, if that is beyond chance."""
        ratios = sorted(
            ((ratio, pid) for pid, (_, ratio) in self._ratios.items()), key=lambda each: each[0]
        )
        (least, pid), (second, _) = ratios[:2]
        return pid if second - least >= ARRIVALS_FAR_RATIO else None


# -- Decides when a relay takes stacks automatically: something is stuck, and perhaps no viewer is
#    attached


KEYS_KEPT = 256


class DumpTrigger:
    """Takes stacks once for each stuck key, and not more often than every `auto_dump_every_s`.

    A stuck key names what an agent sees without progress, such as one collective of one group.
    Times are monotonic s.
    """

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._seen: dict[str, tuple[float, float]] = {}
        self._done: dict[str, None] = {}
        self._asked = float("-inf")

    def note_stuck(self, key: str, now: float) -> None:
        """Note that an agent reports this as stuck."""
        if key in self._done or not self._enabled:
            return
        known = self._seen.get(key)
        if known is None and len(self._seen) >= KEYS_KEPT:
            # Thousands of ranks may each wait in a different call. The known keys are enough.
            return
        first, last = known or (now, now)
        # If a key is reported again after a pause, there was progress in between.
        self._seen[key] = (first if now - last <= AUTO_DUMP_FRESH_S else now, now)

    def due(self, now: float) -> str | None:
        """The key for which all ranks should be asked now."""
        if now - self._asked < AUTO_DUMP_EVERY_S:
            return None
        for key, (first, last) in list(self._seen.items()):
            if now - last > AUTO_DUMP_FRESH_S:
                del self._seen[key]
            elif last - first >= AUTO_DUMP_STUCK_S:
                del self._seen[key]
                self._done[key] = None
                while len(self._done) > KEYS_KEPT:
                    del self._done[next(iter(self._done))]
                self._asked = now
                return key
        return None
