"""Puts the text into findings and verdicts: the sentence, the evidence, the next step.

A rule gives a record of what it has seen. `WRITERS` has a function for each type of record. What is
said of every finding is added here: the place of its ranks in the grid, their other troubles, the
limits that the user has changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules
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
    Said,
    Until,
    Verdict,
)
from ddtop.diagnosis.judge import Judge
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.policy import Policy
from ddtop.say import topics
from ddtop.say.calm import calm_text, from_outside
from ddtop.say.chain import OF_CHAIN, ended_thread
from ddtop.say.evidence import parallel_line, troubles
from ddtop.say.said import TIME, Around, Writer, age_s, duration, lasting, without
from ddtop.wire.records import RUN
from ddtop.words.sentences import expected_text, ranks_text

_TOPICS = [import_module(f"{topics.__name__}.{one.name}") for one in iter_modules(topics.__path__)]
WRITERS: dict[type, Writer] = {
    record: writer for topic in _TOPICS for record, writer in getattr(topic, "WRITERS", {}).items()
}
"""Which function writes the text of a finding, by the type of its record: those of all topics."""
AROUND: dict[type, Around] = {
    record: writer for topic in _TOPICS for record, writer in getattr(topic, "AROUND", {}).items()
}
"""The writers of findings that are made of another one: they also get the words of that one."""
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
        calm=without((from_outside if outside else calm_text)(snapshot, policy)),
        muted=tuple(Muted(tell(one.finding), one.by) for one in verdict.muted),
    )


def tell(finding: Finding) -> Finding:
    """The finding in words. One that has its words already, such as that of a plugin's rule, keeps
    them."""
    if finding.at is None and not isinstance(finding.seen, OF_OTHERS):
        return finding
    said = _said(finding)
    return replace(
        finding,
        summary=without(said.sentence),
        evidence=tuple(map(without, said.evidence)),
        advice=without(said.steps),
        until=without(said.until),
        seen=None,
        at=None,
        said=said if finding.seen is not None else None,
    )


def _said(finding: Finding, ended: bool = False) -> Said:
    """The words of a finding. `ended`: the job has, and no timeout runs any more."""
    seen, at = finding.seen, finding.at
    if isinstance(seen, OF_OTHERS):
        return _of_others(seen, ended)
    # One that stood before the end has its words already.
    said = finding.said or _as_it_is(finding)
    if at is not None:
        said = _completed(finding, written(finding, at), at)
    return said._replace(countdown="") if ended and TIME in said.countdown else said


def _as_it_is(finding: Finding) -> Said:
    return Said(finding.summary, finding.evidence, finding.advice)


def written(finding: Finding, at: Context) -> Said:
    """The words of a finding alone, without what is said of every finding. The record of one that
    is made of another has that one as its `finding`."""
    seen: Any = finding.seen
    if seen is None:
        return _as_it_is(finding)
    if type(seen) in AROUND:
        return AROUND[type(seen)](finding, seen, at, written(seen.finding, at))
    return WRITERS[type(seen)](finding, seen, at)


def _of_others(seen: Overdue | Until | Cancelled, ended: bool) -> Said:
    """The text of a finding that is made of others."""
    if isinstance(seen, Overdue):
        inner = _said(seen.finding, ended)
        advice = "If this is usual, give ddtop.expected a longer time"
        return Said(
            expected_text(seen.ranks, seen.first, seen.now_unix_ns, lasting),
            (inner.sentence, *inner.evidence),
            f"{advice}; otherwise: {inner.steps}" if inner.steps else advice,
        )
    if isinstance(seen, Until):
        subject = ranks_text(seen.ended) if seen.ended else "the job"
        over = _said(seen.finding, ended=True)
        return over._replace(summary=f"until {subject} ended: {over.summary}", until="")
    inner = _said(seen.finding, ended)
    first, *more = [_said(reason, ended=True) for reason in seen.reasons]
    also = zip(seen.reasons[1:], more, strict=True)
    return (first if first.steps else inner)._replace(
        summary=f"{inner.sentence}. Until then: {first.sentence}",
        others="",
        evidence=(
            *first.evidence,
            *(f"{reason.kind}: {one.sentence}" for reason, one in also),
            *inner.evidence,
        ),
        until="",
    )


def _completed(finding: Finding, said: Said, at: Context) -> Said:
    """The words, with what is said of every finding."""
    snapshot, lines = at.last_known, list(said.evidence)
    until = _until(finding, at)
    if until:
        lines.insert(1, until)
    ranks = [snapshot.rank(number) for number in finding.ranks[:PLACES_MOST]]
    lines += filter(None, (parallel_line(snapshot, rank) for rank in ranks))
    wrong = _troubles(finding, ranks, at) if finding.severity != INFO else []
    if wrong and len(ranks) == 1 and finding.kind in OF_CHAIN and ended_thread(ranks[0]):
        said = said._replace(summary=f"{wrong[0]}; {said.summary}")
    elif wrong and len(finding.ranks) == 1:
        said = said._replace(others="; ".join(filter(None, (said.others, wrong[0]))))
    # The limits that the user has changed may have caused it.
    changed = (
        f"you changed {name} to {given:g} (default {ours:g})"
        for name, given, ours in at.policy.changes()
    )
    return said._replace(evidence=(*lines, *wrong, *changed), until=until)


def _until(finding: Finding, at: Context) -> str:
    """When a warning becomes critical, and why that late."""
    patience = finding.patience
    if finding.severity != WARNING or patience is None:
        return ""
    left_s = patience.seconds - age_s(at, finding.since_unix_ns)
    when = "stays a warning" if left_s == float("inf") else f"critical in {duration(left_s)}"
    return f"{when}, because {patience.because}"


def _troubles(finding: Finding, ranks: Iterable[RankFacts], at: Context) -> list[str]:
    """What its ranks handle, and the exception that ended a thread of them: often the reason why
    they do not do what the others do.

    What a waiting rank handles too is left out: some programs run as a whole in `except
    ImportError`.
    """
    since, waiting = finding.since_unix_ns, map(at.last_known.rank, finding.victims)
    alike = {trouble for rank in waiting for trouble in troubles(rank, since, at.policy)}
    return [
        text
        for rank in ranks
        for trouble, text in troubles(rank, since, at.policy).items()
        if trouble not in alike and not rank.gone
    ]
