"""Decides which findings are muted, by a person or by the program itself.

A mute affects findings, not facts: a muted finding is still found, shown as muted, and counted.
`ddtop mute` makes one for a person, `ddtop.expected` for a program.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddtop.diagnosis.finding import INFO, WARNING, Finding, Muted
from ddtop.diagnosis.kinds import Kind
from ddtop.model.state.facts import RankFacts, Snapshot, State
from ddtop.wire.progress import Expectation
from ddtop.wire.records import Mute
from ddtop.words.progress import expected_text
from ddtop.words.ranks import rank_list, rank_ranges

OF_TIME = frozenset({
    Kind.NOT_IN_COLLECTIVE, Kind.INTERPRETER_FROZEN, Kind.COLLECTIVE_STUCK, Kind.NO_PROGRESS,
    Kind.IO_STALL, Kind.LOADER_STUCK, Kind.INPUT_BOUND, Kind.STRAGGLER, Kind.SLOWDOWN,
    Kind.SYNC_BOUND, Kind.CPU_OVERSUBSCRIBED, Kind.LATE_TO_INIT,
})  # fmt: skip
"""Kinds that say that a rank is slow, busy or elsewhere, which an expected region explains. All
other kinds are reported.
"""
NO_EXCUSE = frozenset({State.STOPPED, State.EXITED, State.KILLED, State.MISSING, State.LOST})
"""A rank in such a state is no longer in its region, whatever it reported last."""


def heard_and_muted(
    findings: Iterable[Finding], mutes: tuple[Mute, ...]
) -> tuple[tuple[Finding, ...], tuple[Muted, ...]]:
    """(the findings that are reported, those that are muted)."""
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
    # A finding that also blames another rank is reported.
    return bool(finding.ranks) and all(
        any(rank in part for part in ranges) for rank in finding.ranks
    )


def heard_and_expected(
    findings: Iterable[Finding], snapshot: Snapshot
) -> tuple[list[Finding], tuple[Muted, ...]]:
    """(the findings that are reported, those of ranks in an expected region).

    Once a region has taken longer than expected, its finding is reported as a warning that names
    the region.
    """
    now = snapshot.time_unix_ns
    heard: list[Finding] = []
    muted: list[Muted] = []
    for finding in findings:
        regions = _regions_of(finding, snapshot)
        late = {rank: one for rank, one in regions.items() if one.until_unix_ns <= now}
        if late:
            heard.append(_late(finding, late, now))
        elif regions:
            muted.append(Muted(finding, _as_mute(finding, regions)))
        else:
            heard.append(finding)
    return heard, tuple(muted)


def _regions_of(finding: Finding, snapshot: Snapshot) -> dict[int, Expectation]:
    """The regions that explain the finding, by rank; empty if it blames a rank that is in none."""
    if finding.kind not in OF_TIME:
        return {}
    # Such a finding names all ranks because it can blame none, so a region of one rank is enough.
    of_all = finding.kind == Kind.NO_PROGRESS and not finding.victims
    found: dict[int, Expectation] = {}
    for number in finding.ranks:
        region = _region_of(snapshot.rank(number))
        if region is not None:
            found[number] = region
        elif not of_all:
            return {}
    return found


def _region_of(rank: RankFacts) -> Expectation | None:
    """The region that the rank is in; None if it is stopped, has ended, or raised."""
    raised = rank.reported.exception is not None and not rank.reported.went_on
    return None if rank.gone or rank.state in NO_EXCUSE or raised else rank.progress.expected


def _late(finding: Finding, late: dict[int, Expectation], now_unix_ns: int) -> Finding:
    if finding.severity == INFO:
        return finding
    first = min(late.values(), key=lambda one: one.since_unix_ns)
    same = [
        rank for rank, one in late.items() if (one.name, one.up_to_s) == (first.name, first.up_to_s)
    ]
    advice = "Give ddtop.expected a longer time if this is usual"
    return replace(
        finding,
        severity=WARNING,
        summary=expected_text(same, first, now_unix_ns),
        evidence=(finding.summary, *finding.evidence),
        advice=f"{advice}; if not: {finding.advice}" if finding.advice else advice,
    )


def _as_mute(finding: Finding, regions: dict[int, Expectation]) -> Mute:
    """These regions as a mute, until the first of them takes longer than expected."""
    first = min(regions.values(), key=lambda one: one.until_unix_ns)
    return Mute(
        finding.kind,
        rank_list(regions),
        first.until_unix_ns,
        f"in '{first.name}'",
        "ddtop.expected",
    )
