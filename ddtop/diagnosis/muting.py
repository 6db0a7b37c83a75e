"""Which findings a person does not want to hear of.

A mute is about findings, not about facts: what it leaves out is still found, shown beside the
others as muted, and counted.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddtop.diagnosis.finding import Finding, Muted
from ddtop.wire.records import Mute
from ddtop.words.ranks import rank_ranges


def heard_and_muted(
    findings: Iterable[Finding], mutes: tuple[Mute, ...]
) -> tuple[tuple[Finding, ...], tuple[Muted, ...]]:
    """The findings that are heard, and those that are muted."""
    heard: list[Finding] = []
    muted: list[Muted] = []
    for finding in findings:
        by = next((one for one in mutes if _mutes(one, finding)), None)
        if by is None:
            heard.append(finding)
        else:
            muted.append(Muted(finding, by))
    return tuple(heard), tuple(muted)


def _mutes(mute: Mute, finding: Finding) -> bool:
    if mute.kind and mute.kind != finding.kind:
        return False
    if not mute.ranks:
        return bool(mute.kind)
    ranges = rank_ranges(mute.ranks) or ()
    # A finding that blames another rank too is news.
    return bool(finding.ranks) and all(
        any(rank in part for part in ranges) for rank in finding.ranks
    )
