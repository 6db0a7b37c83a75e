"""What stood when a job was cancelled: somebody ended it because of that, most often.

Problem: a job hangs for an hour, its time limit or a person ends it, and who looks in the morning
reads "cancelled, nothing to fix". What we do: the critical findings that stood until then are told
in the finding of the cancellation, with their evidence and advice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddtop.diagnosis.finding import CRITICAL, WARNING, Finding
from ddtop.diagnosis.kinds import Kind

_UNTIL_THEN = " Until then: "
_BEFORE_NS = 1_000_000_000


def with_what_stood(finding: Finding, stood: Iterable[Finding]) -> Finding:
    """A cancellation, with what was critical until then; any other finding as it is.

    `stood`: all findings of a moment before. What began with the cancellation itself, such as the
    end of the first rank, is none of its reasons.
    """
    if finding.kind != Kind.CANCELLED or _UNTIL_THEN in finding.summary:
        return finding
    before_unix_ns = finding.since_unix_ns - _BEFORE_NS
    reasons = [
        one for one in stood if one.severity == CRITICAL and one.since_unix_ns < before_unix_ns
    ]
    if not reasons:
        return finding
    first, *more = reasons
    also = tuple(f"{one.kind}: {one.summary}" for one in more)
    return replace(
        finding,
        severity=WARNING,
        summary=f"{finding.summary}.{_UNTIL_THEN}{first.summary}",
        evidence=(*first.evidence, *also, *finding.evidence),
        advice=first.advice or finding.advice,
    )
