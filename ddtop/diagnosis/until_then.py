"""The findings just before a job ended, which are often the reason why somebody ended it.

Problem: a job hangs for an hour. Then its time limit or a person ends it, or kills one of its
ranks, and the launcher ends the others. In the morning a person reads "cancelled, nothing to fix",
or "rank 1 was killed by SIGKILL". What we do: a cancellation also reports the critical findings
until then, with their evidence and advice. For any other end, an earlier hang is listed as a
separate finding, because it is the earlier cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from ddtop.diagnosis.finding import CRITICAL, WARNING, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.model.state.ending import failed, fatal_exception, went_unix_ns
from ddtop.model.state.facts import Snapshot
from ddtop.policy import Policy
from ddtop.words.ranks import ranks_text

_UNTIL_THEN = " Until then: "
_OF_A_JOB_THAT_MOVES = frozenset({
    Kind.STRAGGLER, Kind.SLOWDOWN, Kind.SYNC_BOUND, Kind.INPUT_BOUND, Kind.CPU_OVERSUBSCRIBED,
    Kind.MEMORY_PRESSURE, Kind.DISK_FULL, Kind.GPU_BUSY, Kind.GPU_SHARED, Kind.GPU_MEMORY_LOW,
    Kind.GPU_THROTTLED,
})  # fmt: skip
"""Kinds that are not a hang, even if they are critical. A slow rank is no reason to kill a job."""

_FIRST_TO_GO = (Kind.RANK_KILLED, Kind.RANK_CRASHED, Kind.LEFT_EARLY)


def is_over(snapshot: Snapshot) -> bool:
    """Whether all ranks have ended, even if it is not known how."""
    if snapshot.ended is not None:
        return True
    return bool(snapshot.ranks) and all(rank.gone for rank in snapshot.ranks)


def began_to_end_unix_ns(findings: Iterable[Finding], snapshot: Snapshot) -> int | None:
    """When the first rank failed, or the process whose failure ended the ranks (unix ns).

    None while no rank has failed.
    """
    times = [went_unix_ns(rank) for rank in snapshot.ranks if failed(rank)]
    if times:
        times += [one.since_unix_ns for one in findings if one.kind == Kind.HELPER_CRASHED]
    return min(times, default=None)


def with_what_stood(
    findings: Collection[Finding], stood: Collection[Finding], snapshot: Snapshot, policy: Policy
) -> tuple[Finding, ...]:
    """The findings of a job that has ended, with those that were critical until it began to end.

    `stood`: all findings of an earlier moment. Findings that began with the end itself, such as the
    end of the first rank, are not reasons for it. Findings that already include the reason stay
    unchanged.
    """
    end_unix_ns = began_to_end_unix_ns(findings, snapshot)
    if end_unix_ns is None:
        return tuple(findings)
    before_unix_ns = end_unix_ns - policy.cancelled_before_s * 1e9
    reasons = [
        one for one in stood if one.severity == CRITICAL and one.since_unix_ns < before_unix_ns
    ]
    if any(one.kind == Kind.CANCELLED for one in findings):
        return tuple(
            _cancelled_because(one, reasons) if one.kind == Kind.CANCELLED else one
            for one in findings
        )
    who = _who_ended(findings)
    hangs = [
        replace(one, summary=f"until {who} ended: {one.summary}")
        for one in reasons
        if one.kind not in _OF_A_JOB_THAT_MOVES and not _is_included(one, findings, snapshot)
    ]
    return (*hangs, *findings)


def _cancelled_because(finding: Finding, reasons: list[Finding]) -> Finding:
    """A cancellation, with the findings that were critical until then."""
    if not reasons or _UNTIL_THEN in finding.summary:
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


def _who_ended(findings: Iterable[Finding]) -> str:
    ranks = {rank for one in findings if one.kind in _FIRST_TO_GO for rank in one.ranks}
    return ranks_text(tuple(sorted(ranks))) if ranks else "the job"


def _is_included(hang: Finding, findings: Iterable[Finding], snapshot: Snapshot) -> bool:
    """Whether the findings about the end already include it: the same finding, or the end of the
    rank for which the others waited, if that says what the rank did.

    An exception of that rank names the line, and `comm-error` says where the ranks are that had
    not joined.
    """
    own = set(hang.ranks)
    for one in findings:
        if one.kind == hang.kind and (one.ranks == hang.ranks or own & set(one.ranks)):
            return True
        if not own or not own <= set(one.ranks):
            continue
        if one.kind == Kind.COMM_ERROR:
            return True
        if one.kind == Kind.RANK_CRASHED and all(
            fatal_exception(snapshot.rank(rank)) for rank in own
        ):
            return True
    return False
