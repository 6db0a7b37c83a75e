"""`waits-for-job`: a rank keeps the others waiting, because it waits itself for a rank of another
job, which stands still too.

The rank at fault is in that job. While that job moves on, or if it cannot be seen, the finding
about the waiting rank stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ddtop.diagnosis.activity import classify, where_text
from ddtop.diagnosis.finding import INFO, WARNING, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.standstill import COMMUNICATES, OUTSIDE
from ddtop.diagnosis.waiters import first_wait, foreign_waits, waits_clause
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.model.wait_graph import comparable_seq
from ddtop.policy import Policy, Waits
from ddtop.wire.records import FarEnd
from ddtop.words.sentences import (
    WAITS,
    collective_text,
    file_line,
    function_text,
    names_of_groups,
    quoted,
    ranks_text,
    verb,
)
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
    return _absent(snapshot, ends, old, policy) or _waits(snapshot, ends, old, policy)


_Ends = dict[int, tuple[FarEnd, ...]]


def _standing(
    snapshot: Snapshot, ends: _Ends, ranks: tuple[int, ...], idle: bool, policy: Policy
) -> tuple[list[FarEnd], float] | None:
    """The far ends of these ranks, and for how long (s) their job has stood still; None if that is
    no fault, if one of the ranks has none, or if they are of several jobs."""
    far = [end for rank in ranks for end in ends.get(rank, ())]
    stands = [end.still_since_unix_ns for end in far if end.still_since_unix_ns is not None]
    if (
        not ends.keys() >= set(ranks)
        or len({end.where.job for end in far}) != 1
        or len(stands) < len(far)
    ):
        return None
    still_s = (snapshot.time_unix_ns - max(stands)) / 1e9
    limit_s = _unusual_s(snapshot, ranks, far, policy) if idle else policy.wait_s(WaitsForJob)
    return (far, still_s) if still_s >= limit_s else None


def _waits(snapshot: Snapshot, ends: _Ends, old: Finding, policy: Policy) -> Finding | None:
    ranks, idle = old.ranks or tuple(ends), old.severity == INFO
    stands = _standing(snapshot, ends, ranks, idle, policy)
    if stands is None:
        return None
    far, still_s = stands
    victims = tuple(rank.rank for rank in snapshot.ranks if rank.rank not in ranks and rank.wait)
    return replace(
        old,
        kind=Kind.WAITS_FOR_JOB,
        severity=WARNING if idle else old.severity,
        ranks=ranks,
        victims=old.victims or victims,
        summary=_summary(snapshot, ranks, old.victims or victims, far[0], still_s),
        evidence=(*_connections(snapshot, ends, ranks), *old.evidence),
        advice=f"look at that job: ddtop diagnose {quoted(far[0].where.job)}",
    )


def _connections(snapshot: Snapshot, ends: _Ends, ranks: tuple[int, ...]) -> list[str]:
    return [
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
    ]


def _absent(snapshot: Snapshot, ends: _Ends, old: Finding, policy: Policy) -> Finding | None:
    """The rank of the other job waits in a collective, and in a group that both jobs share a rank
    of this job has made fewer calls than another one, and does nothing."""
    stands = _standing(snapshot, ends, tuple(ends), True, policy)
    places = [end.where.place for end in stands[0]] if stands is not None else []
    if (
        stands is None
        or old.kind != Kind.NO_PROGRESS
        or any(place is None or place.waits_on != "collective" for place in places)
    ):
        return None
    for group in [group for group in snapshot.groups if group.foreign]:
        made = {
            rank.rank: progress
            for rank in snapshot.ranks
            for progress in rank.comm.groups
            if progress.group == group.name
        }
        seq = max(map(comparable_seq, made.values()), default=0)
        ranks = tuple(rank for rank in sorted(made) if comparable_seq(made[rank]) < seq)
        if not ranks or any(_may_come(snapshot.rank(rank)) for rank in ranks):
            continue
        op = next(one.last_op for one in made.values() if comparable_seq(one) == seq)
        call = collective_text(op, seq, names_of_groups(snapshot.groups)[group.name])
        return replace(
            old,
            kind=Kind.NOT_IN_COLLECTIVE,
            severity=WARNING,
            ranks=ranks,
            victims=tuple(wait.rank for wait in foreign_waits(snapshot)),
            summary=(
                f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} not come to {call}, and"
                f" {_name(stands[0][0])}, waits:"
                f" {verb(ranks, 'it is', 'they are')} {where_text(snapshot.rank(ranks[0]), policy)}"
            ),
            evidence=(*_connections(snapshot, ends, tuple(ends)), *old.evidence),
            advice="find out why it left out this call: all members make the same calls",
            group=group.name,
            op=op,
            seq=seq,
        )
    return None


def _may_come(rank: RankFacts) -> bool:
    return rank.process.working is not False or rank.gone


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
