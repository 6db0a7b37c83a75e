"""Removes old facts from a snapshot: for ranks on a silent host it keeps only what is still
true."""

from __future__ import annotations

from dataclasses import replace

from ddtop.model.state.facts import (
    AgentFacts,
    ProgressFacts,
    RankFacts,
    ReportedFacts,
    Snapshot,
    State,
)


def heard_only(snapshot: Snapshot) -> Snapshot:
    """The snapshot. For ranks on a silent host it has only the facts that cannot have changed."""
    if not any(rank.agent.unheard for rank in snapshot.ranks):
        return snapshot
    ranks = tuple([_without_news(rank) if _is_dumb(rank) else rank for rank in snapshot.ranks])
    return replace(snapshot, ranks=ranks)


def _is_dumb(rank: RankFacts) -> bool:
    # A rank that was stopped before counts as stopped until the host is lost.
    return rank.agent.unheard and rank.state is not State.STOPPED


def _without_news(rank: RankFacts) -> RankFacts:
    return RankFacts(
        rank.rank,
        rank.state,
        rank.hello,
        reported=ReportedFacts(
            phase=rank.reported.phase,
            phase_since_unix_ns=rank.reported.phase_since_unix_ns,
            exception=rank.reported.exception,
        ),
        progress=ProgressFacts(iteration=rank.progress.iteration),
        agent=AgentFacts(
            heard_unix_ns=rank.agent.heard_unix_ns,
            report_age_s=rank.agent.report_age_s,
            sender=rank.agent.sender,
            unheard=True,
        ),
    )
