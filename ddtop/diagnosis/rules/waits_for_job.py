"""`waits-for-job`: a rank keeps the others waiting, because it waits itself for a rank of another
job, which stands still too.

The rank at fault is in that job. While that job moves on, or if it cannot be seen, the finding
about the waiting rank stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from ddtop.diagnosis.rule import (
    INFO,
    WARNING,
    Context,
    Explanation,
    Finding,
    Kind,
    Policy,
    RuleRow,
    Waits,
    job_has_ended,
)
from ddtop.diagnosis.standstill import COMMUNICATES, OUTSIDE
from ddtop.diagnosis.waiters import foreign_waits
from ddtop.model.account import does
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.model.wait_graph import comparable_seq
from ddtop.wire.records import FarEnd
from ddtop.words.sentences import (
    WAITS,
)


@dataclass(frozen=True)
class WaitsForJob(Waits, of=Kind.WAITS_FOR_JOB):
    """`waits-for-job`: how long the other job must have stood still."""

    asleep_s: float = 60.0
    """Where all ranks wait for the other job and it sleeps, it must have slept for so long. A loop
    that looks for work wakes at least once a minute."""


Ends = dict[int, tuple[FarEnd, ...]]
"""By rank: the ranks of other jobs for which it may wait."""


class Crossed(NamedTuple):
    """The ranks of `finding` wait for `end`, whose job has stood still for `still_s` (s)."""

    finding: Finding
    ends: Ends
    end: FarEnd
    still_s: float


class Absent(NamedTuple):
    """`end` waits in a group that both jobs share, and the ranks have not come to that call."""

    finding: Finding
    ends: Ends
    end: FarEnd


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
    ends = {rank.rank: found for rank in snapshot.ranks if (found := _ends(snapshot, rank))}
    return _absent(snapshot, ends, old, policy) or _waits(snapshot, ends, old, policy)


def _standing(
    snapshot: Snapshot, ends: Ends, ranks: tuple[int, ...], idle: bool, policy: Policy
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


def _waits(snapshot: Snapshot, ends: Ends, old: Finding, policy: Policy) -> Finding | None:
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
        seen=Crossed(old, ends, far[0], still_s),
    )


def _absent(snapshot: Snapshot, ends: Ends, old: Finding, policy: Policy) -> Finding | None:
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
        found = map(snapshot.rank, ranks)
        # Those that work may come.
        if not ranks or any(rank.process.working is not False or rank.gone for rank in found):
            continue
        op = next(one.last_op for one in made.values() if comparable_seq(one) == seq)
        return replace(
            old,
            kind=Kind.NOT_IN_COLLECTIVE,
            severity=WARNING,
            ranks=ranks,
            victims=tuple(wait.rank for wait in foreign_waits(snapshot)),
            patience=None,
            seen=Absent(old, ends, stands[0][0]),
            group=group.name,
            op=op,
            seq=seq,
        )
    return None


def _ends(snapshot: Snapshot, rank: RankFacts) -> tuple[FarEnd, ...]:
    """The ranks for which it may wait. It must wait on a connection, or in a call that is not for
    ranks of its own job."""
    process = rank.process.report
    if process is None or not process.far_ends:
        return ()
    here = {wait.rank for wait in snapshot.waits} | {wait.rank for wait in snapshot.peer_waits}
    elsewhere = rank.rank not in here - {wait.rank for wait in foreign_waits(snapshot)}
    word = does(rank).word
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


ROWS = (
    RuleRow(
        rule,
        (Kind.WAITS_FOR_JOB, Kind.NOT_IN_COLLECTIVE),
        "connections to ranks of other jobs, and whether these jobs make progress",
        unless=(job_has_ended,),
        fold=fold,
    ),
)
PAGES = (
    Explanation(
        kind=Kind.WAITS_FOR_JOB,
        severity="as not-in-collective; a warning where all ranks wait for another job",
        brief="a rank waits for another job, which stands still",
        meaning=(
            "A trainer and its engines, or a policy and its environments, are often jobs of their"
            " own. A rank of this job waits for a rank of another one: for an answer on a"
            " connection, or in a group that both share. That job stands still. The cause is there."
        ),
        found=(
            (
                "On one host ddtop knows both ends of a connection: the rank's thread waits on it,"
                " or shares a group with a store of its own, and the process at its other end is a"
                " rank of another job with DDTOP=1."
            ),
            (
                "For {waits-for-job.wait_s} no rank of that job has made progress, none of their"
                " threads has run, and their processes use no CPU. All of its ranks are on this"
                " host."
            ),
            (
                "If that job moves, the finding about the waiting rank stays, as a warning for a"
                " minute; if it cannot be seen, as it is. If it waits in a collective, and a rank"
                " of this job has made fewer calls than another one in a group that both jobs"
                " share, that rank is named. Where all ranks wait for the other job, it must"
                " stand still for {no_progress_s} ({waits-for-job.asleep_s} in a sleep) and for"
                " {healthy_wait_factor} times the longest healthy wait, and wait for no request."
            ),
        ),
        steps=(
            "See what is wrong in the other job:\nddtop diagnose OTHER",
            "Give waits for another job a timeout, and let them say whom they wait for.",
        ),
        no_demo="it takes two jobs",
    ),
)
