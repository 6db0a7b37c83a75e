"""Runs the table of rules over one snapshot. The judge makes a verdict of the findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddtop.diagnosis.calm import calm_text, from_outside
from ddtop.diagnosis.evidence import for_outside, parallel_line, troubles
from ddtop.diagnosis.finding import (
    CRITICAL,
    INFO,
    SEVERITIES,
    UNKNOWN,
    WARNING,
    Context,
    Finding,
    Verdict,
)
from ddtop.diagnosis.table import TABLE, earlier_than
from ddtop.model.facts import AgentFacts, ProgressFacts, RankFacts, ReportedFacts, Snapshot, State
from ddtop.policy import Policy
from ddtop.wire.records import RUN

# -- Removes old facts from a snapshot: for ranks on a silent host it keeps only what is still true


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


# -- Runs the table of rules over one snapshot


PLACES_MOST = 4
"""Ranks of a finding whose places are shown."""


def diagnose(snapshot: Snapshot, policy: Policy) -> tuple[Finding, ...]:
    """The findings of this moment, worst first, one for each root cause."""
    heard = heard_only(snapshot)
    findings: list[Finding] = []
    reported: dict[str, tuple[Finding, ...]] = {}
    context = Context(heard, policy, snapshot)
    for row in TABLE:
        if reported:
            context = Context(
                heard,
                policy,
                snapshot,
                tuple(findings),
                reported,
                frozenset(row.ranks_left_out(reported)),
            )
        causes = row.silencers(context) if reported else ()
        if not row.can_speak(context) or (causes and not row.may_be_earlier):
            continue
        own = earlier_than(causes, row, context) if causes else row.rule(context)
        if own:
            reported[row.name] = tuple(own)
        findings = row.fold(context, own) if row.fold is not None else findings + own
    placed = [
        for_outside(_with_troubles(_with_places(finding, snapshot), snapshot, policy), snapshot)
        for finding in findings
    ]
    if placed and (changes := policy.changes()):
        placed = [_with_changes(finding, changes) for finding in placed]
    return tuple(
        sorted(
            placed, key=lambda finding: (SEVERITIES.index(finding.severity), finding.since_unix_ns)
        )
    )


def _with_places(finding: Finding, snapshot: Snapshot) -> Finding:
    """The finding, with the position of its ranks in the grid and in the pipeline."""
    lines = [
        line
        for rank in finding.ranks[:PLACES_MOST]
        if (line := parallel_line(snapshot, snapshot.rank(rank))) is not None
    ]
    return replace(finding, evidence=(*finding.evidence, *lines)) if lines else finding


def _with_troubles(finding: Finding, snapshot: Snapshot, policy: Policy) -> Finding:
    """The finding, with what its ranks handle, and the exception that ended a thread of them: often
    the reason why they do not do what the others do.

    What a waiting rank handles too is left out: some programs run as a whole in `except
    ImportError`.
    """
    since, waiting = finding.since_unix_ns, map(snapshot.rank, finding.victims)
    alike = {trouble for rank in waiting for trouble in troubles(rank, since, policy)}
    lines = [
        text
        for rank in map(snapshot.rank, finding.ranks[:PLACES_MOST])
        for trouble, text in troubles(rank, since, policy).items()
        if trouble not in alike and not rank.gone
    ]
    if not lines or finding.severity == INFO:
        return finding
    summary = f"{finding.summary}; {lines[0]}" if len(finding.ranks) == 1 else finding.summary
    return replace(finding, summary=summary, evidence=(*finding.evidence, *lines))


def _with_changes(finding: Finding, changes: Iterable[tuple[str, float, float]]) -> Finding:
    """The finding, with the limits that the user has changed, because they may have caused it."""
    lines = [f"you changed {name} to {given:g} (default {ours:g})" for name, given, ours in changes]
    return replace(finding, evidence=(*finding.evidence, *lines))


def conclude(findings: tuple[Finding, ...], snapshot: Snapshot, policy: Policy) -> Verdict:
    """The verdict with these findings."""
    worst = min(
        (SEVERITIES.index(finding.severity) for finding in findings), default=SEVERITIES.index(INFO)
    )
    health = {CRITICAL: "critical", WARNING: "warning", INFO: "ok"}[SEVERITIES[worst]]
    if snapshot.run != RUN:
        return Verdict(health, findings, calm_text(snapshot, policy))
    # Its collectives are not counted: a hang may look like a healthy job.
    unknown = not findings and snapshot.ended is None
    return Verdict(UNKNOWN if unknown else health, findings, from_outside(snapshot, policy))
