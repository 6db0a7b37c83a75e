"""`rank-crashed`, `rank-killed`, `helper-crashed`, `left-early`, `cancelled`: a rank has ended, or
an exception has ended its main thread.

The rank that ended first decides (`model.state.ending`). What followed is part of that finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ddtop.diagnosis.finding import CRITICAL, INFO, WARNING, Context, Finding
from ddtop.diagnosis.kinds import Kind
from ddtop.diagnosis.waiters import first_wait
from ddtop.model.ending import (
    CANCEL_SIGNALS,
    SENT_SIGNALS,
    comm_failure,
    ended_alike,
    failed_helper,
    fatal_exception,
    first_from_outside,
    first_to_go,
    has_failed,
    interrupted,
    was_cancelled,
    went_unix_ns,
)
from ddtop.model.facts import Blame, RankFacts, Snapshot, Wait
from ddtop.model.wait_graph import waiters_of
from ddtop.policy import Limits, Policy
from ddtop.wire.records import FailedSave


@dataclass(frozen=True)
class SaveLimits(Limits, of="save"):
    """Which end belongs to a save that failed."""

    ends_s: float = 5.0
    """A rank that leaves this soon after a save that failed, without an uncaught exception, left
    because of it. Frameworks catch the exception, print it and exit."""


class First(NamedTuple):
    """The rank that went first. Of the others, those `waiting` live and wait; the oldest `wait` for
    it."""

    first: RankFacts
    waiting: Sequence[int]
    wait: Blame | Wait | None


class Gone(NamedTuple):
    """Ranks that were cancelled together, or of which it is not known which went first."""

    ranks: Sequence[RankFacts]


def rule(context: Context) -> list[Finding]:
    """At most one finding: the rank that ended first, and the consequences for the others."""
    snapshot, policy = context.snapshot, context.policy
    bad = [rank for rank in snapshot.ranks if has_failed(rank)]
    present = [rank for rank in snapshot.ranks if rank.hello is not None]
    helper = failed_helper(
        [one for host in snapshot.hosts for one in host.helpers], present, policy
    )
    if helper is not None:
        # The program that had started it ended the ranks, or is that process and failed after them.
        ended = tuple(sorted(rank.rank for rank in bad))
        kind = Kind.HELPER_CRASHED
        return [Finding(kind, CRITICAL, (), ended, helper.unix_ns, seen=helper)]
    if not bad:
        return _left_behind(snapshot)
    if all(rank.gone or interrupted(rank) for rank in present) and was_cancelled(bad, policy):
        since = min(map(went_unix_ns, bad))
        return [Finding(Kind.CANCELLED, INFO, (), (), since, seen=Gone(bad))]
    ranks, certain = _first_to_go(snapshot, policy)
    if not certain:
        if all(rank.gone for rank in present) and not any(_is_known_to_fail(rank) for rank in bad):
            # The job has ended, and nobody has seen a failure.
            return []
        # Peers of a rank that has gone fail within moments: then it is known who else has.
        last = max(went_unix_ns(rank) for rank in snapshot.ranks if rank.gone)
        young = snapshot.time_unix_ns - last < policy.together_s * 1e9
        return [] if young and snapshot.ended is None else [_unclear(snapshot, ranks)]
    return _findings_after(snapshot, policy, ranks, bad)


def _is_known_to_fail(rank: RankFacts) -> bool:
    """Whether somebody has seen its exit code or its exception."""
    exit_ = rank.process.exit
    seen = exit_ is not None and (exit_.code is not None or exit_.signal is not None)
    return seen or fatal_exception(rank)


def _first_to_go(snapshot: Snapshot, policy: Policy) -> tuple[tuple[RankFacts, ...], bool]:
    if any(rank.from_outside for rank in snapshot.ranks):
        return first_from_outside(snapshot.ranks, snapshot.time_unix_ns, policy)
    return first_to_go(snapshot.ranks, policy), True


def _findings_after(
    snapshot: Snapshot, policy: Policy, ranks: tuple[RankFacts, ...], bad: list[RankFacts]
) -> list[Finding]:
    """`ranks`: those that went first; `bad`: those that failed."""
    first = ranks[0]
    if not has_failed(first):
        return [_left_early(snapshot, ranks, [rank.rank for rank in bad])]
    # Every failure looks like a consequence of an unseen one: `comm_error` reports it if no living
    # rank explains it.
    if comm_failure(first) or _may_be_cancelled(first, snapshot, policy):
        return []
    same = ended_alike(first, bad, policy)
    failures = {rank.rank for rank in bad}
    others = [
        rank.rank
        for rank in snapshot.ranks
        if rank.rank not in same
        and rank.hello is not None
        and (rank.rank in failures or not rank.gone)
    ]
    return [
        _finding(
            snapshot,
            Kind.RANK_KILLED if _was_killed(first) else Kind.RANK_CRASHED,
            first,
            same,
            others,
        )
    ]


def _left_early(snapshot: Snapshot, early: Sequence[RankFacts], victims: Sequence[int]) -> Finding:
    ranks, first = tuple(rank.rank for rank in early), min(early, key=went_unix_ns)
    return _finding(snapshot, Kind.LEFT_EARLY, first, ranks, victims)


def _finding(
    snapshot: Snapshot,
    kind: Kind,
    first: RankFacts,
    ranks: tuple[int, ...],
    victims: Sequence[int],
) -> Finding:
    """`ranks`: those that ended like the `first` one, including it."""
    needing = map(snapshot.rank, victims)
    waiting = [rank for rank in needing if not rank.gone and rank.wait is not None]
    wait = first_wait(snapshot, waiting, ranks) if waiting else None
    return Finding(
        kind,
        CRITICAL,
        ranks,
        tuple(victims),
        went_unix_ns(first),
        group=wait.group if wait else None,
        op=wait.op if wait else None,
        seq=wait.seq if wait else None,
        seen=First(first, [rank.rank for rank in waiting], wait),
    )


def _unclear(snapshot: Snapshot, candidates: Sequence[RankFacts]) -> Finding:
    """Ranks without an agent have gone, and which of them is the cause is not known: a warning
    about the most likely ones."""
    ranks = tuple(sorted(rank.rank for rank in candidates))
    kind = Kind.RANK_CRASHED if not _was_killed(candidates[0]) else Kind.RANK_KILLED
    return Finding(
        kind if has_failed(candidates[0]) else Kind.LEFT_EARLY,
        WARNING,
        ranks,
        tuple(rank.rank for rank in snapshot.ranks if rank.rank not in ranks and rank.hello),
        min(map(went_unix_ns, candidates)),
        seen=Gone([rank for rank in snapshot.ranks if rank.gone]),
    )


def _was_killed(rank: RankFacts) -> bool:
    # A launcher's SIGTERM may arrive while a rank is still ending because of its own exception.
    if fatal_exception(rank):
        return False
    return rank.process.exit is not None and (
        rank.process.exit.signal is not None or rank.process.exit.code is None
    )


def _may_be_cancelled(first: RankFacts, snapshot: Snapshot, policy: Policy) -> bool:
    # One SIGTERM alone may be the first of many: wait until it is clear whether the others follow.
    number = first.process.exit.signal if first.process.exit is not None else None
    signalled = number in (*CANCEL_SIGNALS, *SENT_SIGNALS)
    if not signalled and not interrupted(first):
        return False
    hold_s = policy.interrupted_together_s if interrupted(first) else policy.together_s
    return snapshot.ended is None and snapshot.time_unix_ns - went_unix_ns(first) < hold_s * 1e9


def fatal_save(rank: RankFacts, policy: Policy) -> FailedSave | None:
    """The save whose failure ended the rank: it raised the rank's last exception, or the rank left
    right after it without an uncaught one."""
    save, exception = rank.reported.failed_save, rank.reported.exception
    if save is None:
        return None
    if exception is not None and fatal_exception(rank):
        return save if save.error == ": ".join((exception.type, exception.text)) else None
    return (
        save
        if abs(went_unix_ns(rank) - save.unix_ns) <= policy.of(SaveLimits).ends_s * 1e9
        else None
    )


def _left_behind(snapshot: Snapshot) -> list[Finding]:
    """Ranks that finished normally while others still wait for them."""
    blames = [blame for blame in snapshot.blames if blame.due and snapshot.rank(blame.root).gone]
    roots = [snapshot.rank(blame.root) for blame in blames]
    return [_left_early(snapshot, roots, sorted(waiters_of(blames)))] if roots else []
