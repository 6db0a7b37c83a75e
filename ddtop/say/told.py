"""Puts the text into findings and verdicts: the sentence, the evidence, the next step.

A rule gives a record of what it has seen. `WRITERS` has a function for each type of record. What is
said of every finding is added here: the place of its ranks in the grid, their other troubles, the
limits that the user has changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ddtop.diagnosis.diagnoses import diagnose as found
from ddtop.diagnosis.finding import (
    INFO,
    WARNING,
    Cancelled,
    Context,
    Finding,
    Muted,
    Overdue,
    Until,
    Verdict,
)
from ddtop.diagnosis.judge import Judge
from ddtop.model.facts import Snapshot
from ddtop.policy import Policy
from ddtop.say.calm import calm_text, from_outside
from ddtop.say.evidence import for_outside, parallel_line, troubles, without_countdown
from ddtop.say.said import Said
from ddtop.say.writers import AROUND, WRITERS
from ddtop.wire.records import RUN
from ddtop.words.sentences import expected_text, ranks_text
from ddtop.words.units import duration

OF_OTHERS = (Overdue, Until, Cancelled)
"""Records of findings that are made of others."""
PLACES_MOST = 4
"""Ranks of a finding whose places are shown."""


def diagnose(snapshot: Snapshot, policy: Policy) -> tuple[Finding, ...]:
    """The findings of this moment in words, worst first."""
    return tuple(map(tell, found(snapshot, policy)))


def look(judge: Judge, snapshot: Snapshot) -> tuple[Snapshot, Verdict]:
    """The verdict of the judge after this snapshot, in words, and the snapshot with the states that
    the verdict gives to the ranks."""
    shown, verdict = judge.look(snapshot)
    return shown, told(verdict, snapshot, judge.policy)


def told(verdict: Verdict, snapshot: Snapshot, policy: Policy) -> Verdict:
    """The verdict in words."""
    outside = snapshot.run == RUN
    return replace(
        verdict,
        findings=tuple(map(tell, verdict.findings)),
        calm=(from_outside if outside else calm_text)(snapshot, policy),
        muted=tuple(Muted(tell(one.finding), one.by) for one in verdict.muted),
    )


def tell(finding: Finding) -> Finding:
    """The finding in words. One that has its words already, such as that of a plugin's rule, keeps
    them."""
    seen, at = finding.seen, finding.at
    if isinstance(seen, OF_OTHERS):
        said = _of_others(seen)
    elif at is None:
        return finding
    else:
        said = written(finding, at)
    words = replace(finding, **said._asdict(), seen=None, at=None)
    return words if at is None or isinstance(seen, OF_OTHERS) else _completed(words, at)


def written(finding: Finding, at: Context) -> Said:
    """The words of a finding alone, without what is said of every finding. The record of one that
    is made of another has that one as its `finding`."""
    seen: Any = finding.seen
    if seen is None:
        return Said(finding.summary, finding.evidence, finding.advice)
    if type(seen) in AROUND:
        return AROUND[type(seen)](finding, seen, at, written(seen.finding, at))
    return WRITERS[type(seen)](finding, seen, at)


def _of_others(seen: Overdue | Until | Cancelled) -> Said:
    """The text of a finding that is made of others."""
    inner = tell(seen.finding)
    if isinstance(seen, Overdue):
        advice = "If this is usual, give ddtop.expected a longer time"
        return Said(
            expected_text(seen.ranks, seen.first, seen.now_unix_ns),
            (inner.summary, *inner.evidence),
            f"{advice}; otherwise: {inner.advice}" if inner.advice else advice,
        )
    if isinstance(seen, Until):
        subject = ranks_text(seen.ended) if seen.ended else "the job"
        over = without_countdown(inner)
        return Said(f"until {subject} ended: {over.summary}", over.evidence, over.advice)
    first, *more = [without_countdown(tell(reason)) for reason in seen.reasons]
    also = tuple(f"{one.kind}: {one.summary}" for one in more)
    return Said(
        f"{inner.summary}. Until then: {first.summary}",
        (*first.evidence, *also, *inner.evidence),
        first.advice or inner.advice,
    )


def _completed(finding: Finding, at: Context) -> Finding:
    told = _with_places(_with_patience(finding, at.last_known), at.last_known)
    told = _with_troubles(told, at.last_known, at.policy)
    return _with_changes(for_outside(told, at.last_known), at.policy.changes())


def _with_patience(finding: Finding, snapshot: Snapshot) -> Finding:
    """The warning, with the time at which it becomes critical, and why that late."""
    patience = finding.patience
    if finding.severity != WARNING or patience is None:
        return finding
    left_s = patience.seconds - (snapshot.time_unix_ns - finding.since_unix_ns) / 1e9
    when = "stays a warning" if left_s == float("inf") else f"critical in {duration(left_s)}"
    until = f"{when}, because {patience.because}"
    evidence = (*finding.evidence[:1], until, *finding.evidence[1:])
    return replace(finding, evidence=evidence, until=until)


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
    return replace(finding, evidence=(*finding.evidence, *lines)) if lines else finding
