"""When a relay asks its ranks for exact arrivals: their agents say how much they wait, and it is not alike, or a lot.

The shares come from four samples a second, so that of jobs that communicate much differ by chance: that costs one read of
the entries a minute and is no finding. What the answers mean is not decided here.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import sqrt
from statistics import median

APART_RATIO = 0.08
"""The upper half of the ranks waits that much more than the one that waits least: the smallest that is worth a finding."""
ERRORS = 2.2
"""... and as many standard errors of such a difference: alike ranks of a job that waits much differ that far now and then."""
LOOKS_FIRST, LOOKS_EACH, LOOKS_MOST = 12, 2, 80
"""Samples behind an agent's first share, how many come with each report, and over how many it is at most."""
FAR_RATIO = 0.2
"""Three standard errors of the difference of two shares of 80 samples each, at most."""
MUCH_RATIO = 0.5
"""Or all wait that much: whether for each other or for the network, only the arrivals tell."""
STANDS_S = 0.5
FRESH_S = 2.5
EVERY_S = (2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 60.0)
"""Pauses after the first, second, ... answer: three soon, so that what persists is told from what passes."""
CALM_S = 60.0
"""Alike for so long, and the next time begins at the first pause again."""


class Uneven:
    """Shares by process, and what follows from them. Times are monotonic s."""

    def __init__(self) -> None:
        self._ratios: dict[Hashable, tuple[float, float]] = {}
        self._looks: dict[Hashable, int] = {}
        self._since: float | None = None
        self._alike_since: float | None = None
        self._asked = float("-inf")
        self._times = 0
        self._least: Hashable | None = None

    def saw(self, pid: Hashable, wait_ratio: float | None, now: float) -> None:
        """An agent says how much of the last 20 s it has waited."""
        if wait_ratio is not None and 0.0 <= wait_ratio <= 1.0:
            self._ratios[pid] = (now, wait_ratio)
            self._looks[pid] = min(self._looks.get(pid, LOOKS_FIRST - LOOKS_EACH) + LOOKS_EACH, LOOKS_MOST)

    def due(self, now: float) -> bool:
        """Whether all should be asked now; looked at once a second."""
        self._ratios = {pid: one for pid, one in self._ratios.items() if now - one[0] <= FRESH_S}
        self._looks = {pid: looks for pid, looks in self._looks.items() if pid in self._ratios}
        if not self._worth_asking():
            self._since, self._alike_since = None, self._alike_since or now
            if now - self._alike_since > CALM_S:
                self._times = 0
            return False
        self._alike_since = None
        if (least := self._far_below()) is not None and least != self._least:
            # What was learned of another rank is old.
            self._least, self._times = least, min(self._times, 1)
        self._since = self._since if self._since is not None else now
        pause = EVERY_S[min(self._times, len(EVERY_S)) - 1] if self._times else 0.0
        if now - self._since < STANDS_S or now - self._asked < pause:
            return False
        self._asked, self._times = now, self._times + 1
        return True

    def _worth_asking(self) -> bool:
        shares = sorted(ratio for _, ratio in self._ratios.values())
        if len(shares) < 2:
            return False
        upper, least = median(shares[len(shares) // 2 :]), shares[0]
        mean, looks = (upper + least) / 2, min(self._looks.values())
        chance = ERRORS * sqrt(2 * mean * (1 - mean) / looks)
        return upper - least >= max(APART_RATIO, chance) or upper >= MUCH_RATIO

    def _far_below(self) -> Hashable | None:
        """The process that waits least, if that is beyond chance."""
        shares = sorted(((ratio, pid) for pid, (_, ratio) in self._ratios.items()), key=lambda one: one[0])
        return shares[0][1] if shares[1][0] - shares[0][0] >= FAR_RATIO else None
