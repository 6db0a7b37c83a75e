"""Counts the iterations of a program that reports no steps: the repetitions of its pattern of
collectives.

Source: the last collectives in the ring of `mpi.lines`, read once a tick; nothing is counted in a
call. A pattern of p calls counts once it has repeated three times and was found in four ticks. From
then on every p calls are an iteration. Caveat: loops of varying length have no such pattern, so
nothing is reported for them. Check: the program's own log.
"""

from __future__ import annotations

from ddtop.agent.limits import Limits
from ddtop.agent.mpi.lines import Lines, Past


class Rhythm:
    """Used by the agent's thread. `iteration`: None without a pattern. `at`: when it last grew,
    monotonic ns.
    """

    def __init__(self, lines: Lines, limits: Limits) -> None:
        self._lines, self._limits = lines, limits
        self.iteration: int | None = None
        self.at = 0
        self._period = self._agreeing = 0
        self._seen = self._counted = 0

    def look(self, now: int) -> None:
        """Look once at the last collectives."""
        total = self._lines.total
        if total == self._seen:
            return
        self._seen = total
        period = self._find(now)
        if period == 0 or period != self._period:
            # Keep the count: the program has gone from one loop into the next.
            self._period, self._agreeing, self._counted = period, 1, total
            return
        self._agreeing += 1
        if self._agreeing < self._limits.pattern_looks:
            return
        if self.iteration is None:
            self.iteration, self._counted = total // period, total - total % period
            self.at = now
            return
        rounds = (total - self._counted) // period
        if rounds:
            self.iteration += rounds
            self._counted += rounds * period
            self.at = now

    def _find(self, now: int) -> int:
        """The shortest pattern in the last collectives, 0 where there is none."""
        limits = self._limits
        last = self._lines.last(limits.pattern_length)
        # The older calls may come from another loop.
        recent = [past for past in last if now - past[5] < limits.pattern_recent_ns]
        if period := _period(last, limits.pattern_rounds):
            return period
        enough = len(recent) >= limits.pattern_recent_least
        return _period(recent, limits.pattern_rounds) if enough else 0


def _period(collectives: list[Past], rounds: int) -> int:
    keys = [(comm.uid, code) for comm, code, *_ in collectives]
    for period in range(1, len(keys) // rounds + 1):
        # A short pattern must hold through all collectives that are read: otherwise it is an inner
        # loop of the program.
        if all(keys[at] == keys[at - period] for at in range(period, len(keys))):
            return period
    return 0
