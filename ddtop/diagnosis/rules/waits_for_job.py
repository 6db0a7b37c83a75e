"""`waits-for-job`: a rank keeps the others waiting, because it waits itself for a rank of another
job, which stands still too.

The rank at fault is in that job. While that job moves on, or if it cannot be seen, the finding
about the waiting rank stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ddtop.diagnosis.activity import classify
from ddtop.diagnosis.finding import INFO, WARNING, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.standstill import COMMUNICATES, OUTSIDE
from ddtop.diagnosis.waiters import first_wait, foreign_waits, waits_clause
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.policy import Policy, Waits
from ddtop.wire.records import FarEnd
from ddtop.words.sentences import WAITS, file_line, function_text, ranks_text, verb
from ddtop.words.units import duration


@dataclass(frozen=True)
class WaitsForJob(Waits, of=Kind.WAITS_FOR_JOB):
    """`waits-for-job`: how long the other job must have stood still."""

    asleep_s: float = 60.0
    """Where all ranks wait for the other job and it sleeps, it must have slept for so long. A loop
    that looks for work wakes at least once a minute."""


def rule(context: Context) -> list[Finding]:
    """One finding for each that it replaces."""
    return [found for old in context.found if (found := _crossed(context, old)) is not None]


def fold(context: Context, own: list[Finding]) -> list[Finding]:
    """All findings, without those that are replaced."""
    return own + [old for old in context.found if _crossed(context, old) is None]


def _crossed(context: Context, old: Finding) -> Finding | None:
    if old.kind not in (Kind.NOT_IN_COLLECTIVE, Kind.NO_PROGRESS):
        return None
    snapshot, policy = context.snapshot, context.policy
    ends = {rank.rank: found for rank in snapshot.ranks if (found := _ends(snapshot, rank, policy))}
    ranks = old.ranks or tuple(ends)
    far = [end for rank in ranks for end in ends.get(rank, ())]
    stands = [end.still_since_unix_ns for end in far if end.still_since_unix_ns is not None]
    if (
        not ends.keys() >= set(ranks)
        or len({end.where.job for end in far}) != 1
        or len(stands) < len(far)
    ):
        return None
    still_s, idle = (snapshot.time_unix_ns - max(stands)) / 1e9, old.severity == INFO
    limit_s = _unusual_s(snapshot, ranks, far, policy) if idle else policy.wait_s(WaitsForJob)
    if still_s < limit_s:
        return None
    victims = tuple(rank.rank for rank in snapshot.ranks if rank.rank not in ranks and rank.wait)
    return replace(
        old,
        kind=Kind.WAITS_FOR_JOB,
        severity=WARNING if idle else old.severity,
        ranks=ranks,
        victims=old.victims or victims,
        summary=_summary(snapshot, ranks, old.victims or victims, far[0], still_s),
        evidence=(
            *[
                f"rank {rank} is connected to {end.address}: {_name(end)} (pid {end.pid})"
                for rank in ranks
                for end in ends[rank]
            ],
            *[
                f"group {group.description} meets at the store {group.foreign}"
                for group in snapshot.groups
                if group.foreign
            ],
            *old.evidence,
        ),
        advice=f"look at that job: ddtop diagnose {far[0].where.job}",
    )


def _ends(snapshot: Snapshot, rank: RankFacts, policy: Policy) -> tuple[FarEnd, ...]:
    """The ranks for which it may wait. It must wait on a connection, or in a call that is not for
    ranks of its own job."""
    process = rank.process.report
    if process is None or not process.far_ends:
        return ()
    here = {wait.rank for wait in snapshot.waits} | {wait.rank for wait in snapshot.peer_waits}
    elsewhere = rank.rank not in here - {wait.rank for wait in foreign_waits(snapshot)}
    word = classify(rank, policy).word
    asks = process.remote is not None or word in ("socket", "rpc")
    return process.far_ends if asks or (elsewhere and word in COMMUNICATES) else ()


def _unusual_s(
    snapshot: Snapshot, ranks: tuple[int, ...], far: list[FarEnd], policy: Policy
) -> float:
    """How long a wait without a limit must be until it is more than a pause between two jobs:
    longer than this job has ever waited, and longer than the other one sleeps between two looks for
    work. Infinite if the other one waits for a request itself.
    """
    waits_on = [place.waits_on if (place := end.where.place) is not None else None for end in far]
    if any(known.word in OUTSIDE for word in waits_on if (known := WAITS.get(word or ""))):
        return math.inf
    longest_s = max(snapshot.rank(rank).comm.healthy_wait_max_ms or 0.0 for rank in ranks) / 1000
    asleep_s = policy.of(WaitsForJob).asleep_s if None in waits_on else 0.0
    return max(policy.no_progress_s, policy.healthy_wait_factor * longest_s, asleep_s)


def _summary(
    snapshot: Snapshot,
    ranks: tuple[int, ...],
    victims: tuple[int, ...],
    end: FarEnd,
    still_s: float,
) -> str:
    place, does = end.where.place, "asleep"
    if place is not None:
        if place.waits_on in COMMUNICATES:
            does = f"in {place.callee or 'a collective'}"
        elif (known := WAITS.get(place.waits_on or "")) is not None:
            does = known.phrase
        does += f" ({file_line(place)} {function_text(place)})"
    text = (
        f"{ranks_text(ranks)} {verb(ranks, 'waits', 'wait')} for {_name(end)}, which has been"
        f" {does} for {duration(still_s)}"
    )
    first = first_wait(snapshot, [snapshot.rank(rank) for rank in victims], ranks)
    return f"{text}; {waits_clause(snapshot, first, ranks, victims)}" if victims and first else text


def _name(end: FarEnd) -> str:
    number = end.where.rank
    return f"job {end.where.job}" + (f", rank {number}" if number is not None else "")
