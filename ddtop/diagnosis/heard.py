"""The snapshot without old news: what is still true of ranks whose host is not heard."""

from __future__ import annotations

from dataclasses import replace

from ddtop.model.state.facts import RankFacts, Snapshot, State


def heard_only(snapshot: Snapshot) -> Snapshot:
    """The snapshot, with only what cannot have changed of ranks whose host is not heard."""
    if not any(rank.unheard for rank in snapshot.ranks):
        return snapshot
    ranks = tuple([_without_news(rank) if _is_dumb(rank) else rank for rank in snapshot.ranks])
    return replace(snapshot, ranks=ranks)


def _is_dumb(rank: RankFacts) -> bool:
    # One that had been stopped before goes on to be until the host is lost.
    return rank.unheard and rank.state is not State.STOPPED


def _without_news(rank: RankFacts) -> RankFacts:
    return RankFacts(
        rank.rank,
        rank.state,
        rank.hello,
        rank.phase,
        iteration=rank.iteration,
        exception=rank.exception,
        report_age_s=rank.report_age_s,
        heard_unix_ns=rank.heard_unix_ns,
        phase_since_unix_ns=rank.phase_since_unix_ns,
        sender=rank.sender,
        unheard=True,
    )
