"""Findings that come again after the job has recovered by itself.

The first epoch fills a cache, and each shard of the data may begin slowly: such a job is
input-bound again and again, and each time it recovers. The first time is a warning. Later times are
an info, until one lasts clearly longer than those before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ddtop.diagnosis.finding import INFO, WARNING, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.policy import Policy


@dataclass
class Recurrence:
    """Remembers how long `input-bound` stood and for which ranks. One for each run of a job."""

    policy: Policy
    _began_unix_ns: int | None = None
    _last_unix_ns: int = 0
    _longest_ns: int = 0
    _ranks: set[int] = field(default_factory=set)
    """Of the times that are over."""
    _ranks_now: set[int] = field(default_factory=set)

    def judged(self, shown: list[Finding], now_unix_ns: int) -> list[Finding]:
        """The same findings; what is usual for this job is an info."""
        ranks = {rank for one in shown if one.kind == Kind.INPUT_BOUND for rank in one.ranks}
        if not ranks:
            self._end()
            return shown
        if self._began_unix_ns is None:
            self._began_unix_ns = now_unix_ns
        self._last_unix_ns = now_unix_ns
        self._ranks_now |= ranks
        if not self._is_usual(now_unix_ns):
            return shown
        return [
            replace(one, severity=INFO)
            if one.kind == Kind.INPUT_BOUND
            and one.severity == WARNING
            and self._ranks.issuperset(one.ranks)
            else one
            for one in shown
        ]

    def _is_usual(self, now_unix_ns: int) -> bool:
        factor, most_s = self.policy.input_bound_again_factor, self.policy.input_bound_again_most_s
        limit_ns = min(factor * self._longest_ns, most_s * 1e9)
        return now_unix_ns - (self._began_unix_ns or 0) < limit_ns

    def _end(self) -> None:
        if self._began_unix_ns is None:
            return
        self._longest_ns = max(self._longest_ns, self._last_unix_ns - self._began_unix_ns)
        self._ranks |= self._ranks_now
        self._began_unix_ns, self._ranks_now = None, set()
