"""The data structures of a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ddtop.diagnosis.kinds import Kind
from ddtop.model.facts import Snapshot
from ddtop.policy import Policy
from ddtop.wire.records import Expectation, Mute

CRITICAL, WARNING, INFO = "critical", "warning", "info"
SEVERITIES = (CRITICAL, WARNING, INFO)
"""Worst first."""
OK, UNKNOWN = "ok", "unknown"
HEALTHS = (OK, WARNING, CRITICAL, UNKNOWN)
"""What `Verdict.health` may be. Unknown: nothing is known about this moment, because the relay does
not report.
"""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a wait may last before it is critical, and why: "of its phase", "it polls".

    `seconds`: since the wait began, of a finding since `since_unix_ns`; infinite if it stays a
    warning.
    """

    seconds: float
    because: str


class Said(NamedTuple):
    """The text of a finding in its parts; `Finding` says what the first three are.

    `others`: what became of other ranks, behind the summary. `rule`: what the advice adds for
    whoever asks why. `countdown`: when a timeout ends the wait, behind the advice. `until`: as in
    `Finding`. The marks of `ddtop.say.said` are around what changes with time.
    """

    summary: str
    evidence: tuple[str, ...] = ()
    advice: str = ""
    others: str = ""
    rule: str = ""
    countdown: str = ""
    until: str = ""

    @property
    def sentence(self) -> str:
        """The summary with what became of the others."""
        return "; ".join(filter(None, (self.summary, self.others)))

    @property
    def steps(self) -> str:
        """The whole advice."""
        return "; ".join(filter(None, (self.advice, self.rule, self.countdown)))


@dataclass(frozen=True, slots=True)
class Finding:
    """One root cause, together with its consequences.

    `kind`: kebab-case, the name of its rule. `ranks`: the culprits, `victims`: the ranks that wait.
    `since_unix_ns`: when the fact began, not when it was seen. `patience`: until when the wait is
    only a warning, None for findings that do not say so.

    A rule gives no text, but `seen`: a record of what it has seen, for which `ddtop.say` has a
    writer. `at`: the moment at which it was seen. `ddtop.say` then puts in the text, and leaves out
    both. `said`: the text in its parts; None where a plugin has written it. `summary`: one
    sentence: which rank, what it does instead, since when, which ranks wait. `evidence`: lines with
    numbers and stacks. `advice`: the next step. `until`: when it becomes critical, and why that
    late; empty where it says no time. `until_then`: it includes the findings that stood until the
    job was cancelled.
    """

    kind: Kind
    severity: str
    ranks: tuple[int, ...]
    victims: tuple[int, ...]
    since_unix_ns: int
    summary: str = ""
    evidence: tuple[str, ...] = ()
    advice: str = ""
    until: str = ""
    group: str | None = None
    op: str | None = None
    seq: int | None = None
    patience: Patience | None = None
    seen: object = None
    at: Context | None = None
    until_then: bool = False
    said: Said | None = None

    @property
    def sentence(self) -> str:
        """The summary, with the marks of `ddtop.say.said` where it is known what changes."""
        return self.said.sentence if self.said is not None else self.summary

    @property
    def identity(self) -> tuple[Kind, str | None, tuple[int, ...]]:
        """The key by which it is recognised in the next snapshot."""
        return (self.kind, self.group, self.ranks)


class Overdue(NamedTuple):
    """What was seen instead of `finding`: these ranks are in an expected region (`first`) that
    takes longer than expected."""

    finding: Finding
    ranks: tuple[int, ...]
    first: Expectation
    now_unix_ns: int


class Until(NamedTuple):
    """`finding` stood until these ranks ended, or until the job did."""

    finding: Finding
    ended: tuple[int, ...]


class Cancelled(NamedTuple):
    """A cancellation, and the findings that stood until then."""

    finding: Finding
    reasons: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Muted:
    """A finding that is muted, and the mute."""

    finding: Finding
    by: Mute


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of one moment, the worst first, and a sentence for the case that there are none.

    `health` is one of HEALTHS. `unheard`: why nothing is known about this moment, one sentence with
    the next step; the findings are then those of the last report, `unheard_s` (s) ago. Both are
    None while the relay reports. `muted`: findings that a person has muted; they are not in
    `findings`, and health does not count them.
    """

    health: str
    findings: tuple[Finding, ...]
    calm: str
    unheard: str | None = None
    unheard_s: float | None = None
    muted: tuple[Muted, ...] = ()

    @property
    def headline(self) -> str:
        """The one sentence: the summary of the worst finding, or a sentence about the healthy
        job."""
        return self.findings[0].summary if self.findings else self.calm

    def when_unheard(self, why: str | None, seconds: float | None) -> Verdict:
        """The verdict while the relay does not report: health is unknown, and the findings are the
        last ones.
        """
        if self.health == UNKNOWN and self.unheard == why:
            return replace(self, unheard_s=seconds)
        then = self.calm.removeprefix("ok: ")
        return Verdict(
            UNKNOWN,
            self.findings,
            f"unknown; at the last report: {then}" if then else "unknown",
            why,
            seconds,
            self.muted,
        )


# -- The input of a rule


@dataclass(frozen=True, slots=True)
class Context:
    """The only argument of a rule.

    A rule reads it and changes nothing.
    """

    #: The job at one moment. For ranks whose host is not heard: only what cannot have changed.
    snapshot: Snapshot
    #: Every threshold.
    policy: Policy
    #: The same moment, with the last known facts of ranks whose host is not heard.
    last_known: Snapshot
    #: What the rules before this one found, as later rules have completed it.
    found: tuple[Finding, ...] = ()
    #: The same by rule, as each rule reported it.
    reported: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    #: The ranks that the rules in its row's `leaves_out` have reported.
    explained: frozenset[int] = frozenset()
