"""The shape of a verdict."""

from __future__ import annotations

from dataclasses import dataclass

CRITICAL, WARNING, INFO = "critical", "warning", "info"
SEVERITIES = (CRITICAL, WARNING, INFO)
"""Worst first."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One root cause, with what it made others do folded under it.

    `kind`: kebab-case, the name of its rule. `ranks`: the culprits, `victims`: who waits. `summary`: one sentence, who
    is where instead, since when, who waits. `evidence`: numbers and stack lines, a line each. `advice`: the next step.
    `since_unix_ns`: when the fact began, not when it was seen.
    """

    kind: str
    severity: str
    ranks: tuple[int, ...]
    victims: tuple[int, ...]
    since_unix_ns: int
    summary: str
    evidence: tuple[str, ...] = ()
    advice: str = ""
    group: str | None = None
    op: str | None = None
    seq: int | None = None

    @property
    def identity(self) -> tuple[str, str | None, tuple[int, ...]]:
        """What makes it the same finding in the next snapshot."""
        return (self.kind, self.group, self.ranks)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stands at one moment: findings worst first, and a sentence for when there is nothing to find."""

    health: str
    findings: tuple[Finding, ...]
    calm: str

    @property
    def headline(self) -> str:
        """The one sentence: the worst finding's summary, else how well things are."""
        return self.findings[0].summary if self.findings else self.calm
