"""Runs the table of rules over one snapshot. The judge makes a verdict of the findings."""

from __future__ import annotations

from dataclasses import replace

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
    # A rank that was stopped before counts as stopped until the host is lost.
    ranks = tuple(
        [
            _without_news(rank) if rank.agent.unheard and rank.state is not State.STOPPED else rank
            for rank in snapshot.ranks
        ]
    )
    return replace(snapshot, ranks=ranks)


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
        policy=rank.policy,
    )


# -- Runs the table of rules over one snapshot


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
    at = Context(heard, policy, snapshot)
    return tuple(
        sorted(
            [replace(finding, at=at) for finding in findings],
            key=lambda finding: (SEVERITIES.index(finding.severity), finding.since_unix_ns),
        )
    )


def conclude(findings: tuple[Finding, ...], snapshot: Snapshot) -> Verdict:
    """The verdict with these findings, without words."""
    worst = min(
        (SEVERITIES.index(finding.severity) for finding in findings), default=SEVERITIES.index(INFO)
    )
    health = {CRITICAL: "critical", WARNING: "warning", INFO: "ok"}[SEVERITIES[worst]]
    # From outside collectives are not counted: a hang may look like a healthy job.
    unknown = snapshot.run == RUN and not findings and snapshot.ended is None
    return Verdict(UNKNOWN if unknown else health, findings, "")
