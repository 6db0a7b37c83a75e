"""The shape of a verdict."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddtop.diagnosis.kinds import Kind
from ddtop.wire.records import Mute

CRITICAL, WARNING, INFO = "critical", "warning", "info"
SEVERITIES = (CRITICAL, WARNING, INFO)
"""Worst first."""
OK, UNKNOWN = "ok", "unknown"
HEALTHS = (OK, WARNING, CRITICAL, UNKNOWN)
"""What `Verdict.health` may be. Unknown: nothing is known of this moment, because the relay is not
heard.
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One root cause, with what it made others do folded under it.

    `kind`: kebab-case, the name of its rule. `ranks`: the culprits, `victims`: who waits.
    `summary`: one sentence, who is where instead, since when, who waits. `evidence`: numbers and
    stack lines, a line each. `advice`: the next step. `since_unix_ns`: when the fact began, not
    when it was seen.
    """

    kind: Kind
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
    def identity(self) -> tuple[Kind, str | None, tuple[int, ...]]:
        """What makes it the same finding in the next snapshot."""
        return (self.kind, self.group, self.ranks)


@dataclass(frozen=True, slots=True)
class Muted:
    """A finding that stands, and what mutes it."""

    finding: Finding
    by: Mute


@dataclass(frozen=True, slots=True)
class Verdict:
    """What stands at one moment: findings worst first, and a sentence for when there is nothing to
    find.

    `health` is one of HEALTHS. `unheard`: why nothing is known of this moment, one sentence with
    the next step; the findings are then those of the moment that was heard last, `unheard_s` (s)
    ago. Both are None while the relay is heard. `muted`: findings that stand and that a person does
    not want to hear of; they are not in `findings`, and health does not count them.
    """

    health: str
    findings: tuple[Finding, ...]
    calm: str
    unheard: str | None = None
    unheard_s: float | None = None
    muted: tuple[Muted, ...] = ()

    @property
    def headline(self) -> str:
        """The one sentence: the worst finding's summary, else how well things are."""
        return self.findings[0].summary if self.findings else self.calm

    def when_unheard(self, why: str | None, seconds: float | None) -> Verdict:
        """The same while the relay is not heard: health is unknown, and the findings are those that
        stood then.
        """
        if self.health == UNKNOWN and self.unheard == why:
            return replace(self, unheard_s=seconds)
        then = self.calm.removeprefix("ok: ")
        return Verdict(
            UNKNOWN,
            self.findings,
            f"unknown; when last heard: {then}" if then else "unknown",
            why,
            seconds,
            self.muted,
        )
