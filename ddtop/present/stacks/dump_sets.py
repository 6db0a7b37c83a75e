"""Selects from a snapshot the stacks of one request, and the ranks that have not answered it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ddtop.diagnosis.activity import doing
from ddtop.diagnosis.finding import Verdict
from ddtop.diagnosis.rank_state import culprits
from ddtop.model.stacks.merge import Merged, merge
from ddtop.model.state.facts import RankFacts, Snapshot, State
from ddtop.policy import Policy
from ddtop.present.now import end_text
from ddtop.present.stacks.lines import Around, Read
from ddtop.present.text import clean
from ddtop.wire.records import Stacks
from ddtop.words.sentences import collective_text


def last_request(snapshot: Snapshot) -> str | None:
    """The request of the last dump, whoever made it."""
    newest = max(
        (rank.dump.stacks for rank in snapshot.ranks if rank.dump.stacks), key=_taken, default=None
    )
    return newest.request if newest is not None else None


def _taken(stacks: Stacks) -> int:
    return stacks.taken_unix_ns


def answers(
    snapshot: Snapshot, request: str, asked_unix_ns: int | None = None, ranks: Collection[int] = ()
) -> list[Stacks]:
    """The stacks of one dump, with workers.

    `asked_unix_ns` and `ranks` (empty: all) are given for a dump that this viewer asked for: then
    stacks that were taken later for another request count as well, and ranks that can no longer
    answer are included as unanswered.
    """
    found: list[Stacks] = []
    missed: list[RankFacts] = []
    for rank in snapshot.ranks:
        stacks = rank.dump.stacks
        if ranks and rank.rank not in ranks:
            continue
        if stacks is not None and (
            stacks.request == request
            or (asked_unix_ns is not None and stacks.taken_unix_ns >= asked_unix_ns)
        ):
            found += [stacks, *rank.dump.worker_stacks]
        else:
            missed.append(rank)
    taken = max(map(_taken, found), default=snapshot.time_unix_ns)
    if asked_unix_ns is not None or (found and all(_cannot_answer(rank, taken) for rank in missed)):
        found += [_absent(rank, request, taken) for rank in missed if _cannot_answer(rank, taken)]
    return found


def _cannot_answer(rank: RankFacts, at_unix_ns: int) -> bool:
    """Whether it had ended, or had not started, when the others were asked."""
    return rank.state is State.MISSING or (
        rank.gone and (rank.process.exit_unix_ns or 0) <= at_unix_ns
    )


def _absent(rank: RankFacts, request: str, at_unix_ns: int) -> Stacks:
    why = (
        f"its process is gone: {end_text(rank.process.exit)}"
        if rank.process.exit is not None
        else "it was never seen"
    )
    return Stacks(request, rank.rank, rank.pid or 0, at_unix_ns, why=why)


def at_fault(verdict: Verdict, snapshot: Snapshot | None = None) -> tuple[int, ...]:
    """The ranks at fault that still exist. The later death of a rank says nothing about where it
    was before."""
    return tuple(
        rank for rank in culprits(verdict) if snapshot is None or not snapshot.rank(rank).gone
    )


def merged_of(
    stacks: Iterable[Stacks], verdict: Verdict, snapshot: Snapshot | None = None
) -> Merged:
    """The stacks as classes, those of the ranks at fault first."""
    return merge(stacks, at_fault(verdict, snapshot))


def around(
    snapshot: Snapshot, verdict: Verdict, merged: Merged, read: Read | None, policy: Policy
) -> Around:
    """Facts from the snapshot that were true when the stacks were taken."""
    taken = merged.last_unix_ns or snapshot.time_unix_ns
    return Around(
        doing={
            rank.rank: text for rank in snapshot.ranks if (text := _doing_then(rank, taken, policy))
        },
        blamed=frozenset(at_fault(verdict, snapshot)),
        started={
            rank.rank: rank.hello.started_unix_ns
            for rank in snapshot.ranks
            if rank.hello is not None
        },
        read=read,
    )


def _doing_then(rank: RankFacts, taken_unix_ns: int, policy: Policy) -> str | None:
    """What it does now, if it has made no progress since its stack was taken."""
    if rank.dump.stacks is None or rank.gone or (rank.progress.last_unix_ns or 0) > taken_unix_ns:
        return None
    return _doing(rank, policy)


def _doing(rank: RankFacts, policy: Policy) -> str | None:
    """For a rank that waits for others, the collective is the best description."""
    if rank.wait is not None and (rank.agent.report_age_s or 0.0) <= policy.wait_fresh_s:
        return f"waiting in {clean(collective_text(rank.wait.op, rank.wait.seq))}"
    return doing(rank, policy)
