"""The alarms that a viewer showed about a healthy job: each once, with its evidence and its
duration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ddtop.diagnosis.finding import INFO, Finding, Verdict

LOUD = ("critical", "warning")


APART_S = 30.0
"""An alarm that comes again after so long is another one."""


@dataclass
class Alarm:
    """A finding that stood. `first_s` and `last_s`: seconds since the first look at the job."""

    severity: str
    kind: str
    ranks: tuple[int, ...]
    summary: str
    evidence: tuple[str, ...]
    first_s: float
    last_s: float

    def shown(self) -> list[str]:
        """The alarm as lines for a person."""
        stood = f"{self.first_s:.1f} s to {self.last_s:.1f} s"
        head = f"{self.severity} {self.kind} ({stood}): {self.summary}"
        return [head, *(f"    {text}" for text in self.evidence)]


class Alarms:
    """Collects the alarms of one job. The worst severity of each is kept, with its evidence.

    The same kind for other ranks meanwhile is the same alarm: one rank after the other comes.
    """

    def __init__(self) -> None:
        self._found: list[Alarm] = []

    def note(self, verdict: Verdict, at_s: float) -> None:
        """Take in the findings of this moment."""
        for finding in verdict.findings:
            if finding.severity != INFO:
                self._note(finding, at_s)

    def _note(self, finding: Finding, at_s: float) -> None:
        for known in reversed(self._found):
            if known.kind == finding.kind and at_s - known.last_s < APART_S:
                known.last_s = at_s
                if LOUD.index(finding.severity) < LOUD.index(known.severity):
                    self._found.remove(known)
                    self._found.append(_alarm(finding, known.first_s, at_s))
                return
        self._found.append(_alarm(finding, at_s, at_s))

    def __iter__(self) -> Iterator[Alarm]:
        return iter(self._found)

    def as_json(self) -> list[dict[str, object]]:
        """For the state file."""
        return [asdict(one) for one in self]


def _alarm(finding: Finding, first_s: float, last_s: float) -> Alarm:
    return Alarm(
        finding.severity,
        str(finding.kind),
        tuple(finding.ranks),
        finding.summary,
        tuple(finding.evidence),
        first_s,
        last_s,
    )
