"""The page "why": the findings, one of them opened with all its evidence."""

from __future__ import annotations

from ddtop.diagnosis.explain import explain
from ddtop.diagnosis.finding import Finding, Verdict
from ddtop.model.state.facts import Snapshot
from ddtop.present.findings.banner import severity_mark
from ddtop.present.findings.timeline import Entry, Timeline
from ddtop.present.glyphs import UNICODE, Glyphs
from ddtop.present.job_text import group_label
from ddtop.present.text import Line, clean, clip, wrap_clauses
from ddtop.ui.render.page import Page
from ddtop.viewer.thresholds import chosen
from ddtop.words import units
from ddtop.words.ranks import ranks_text
from ddtop.words.sentences import collective_text

BEFORE_MOST = 5


def finding_lines(
    snapshot: Snapshot,
    verdict: Verdict,
    width: int,
    glyphs: Glyphs = UNICODE,
    opened: int = 0,
    timeline: Timeline | None = None,
) -> list[Line]:
    """The findings, worst first: each with its sentence, the opened one with ranks, evidence,
    advice and what it means.

    Without findings: what was checked, and what was wrong before.
    """
    page = Page(width, glyphs)
    if not verdict.findings:
        page.text(clean(verdict.calm))
        _before(page, snapshot, timeline)
    opened = min(max(opened, 0), max(len(verdict.findings) - 1, 0))
    if len(verdict.findings) > 1:
        for number, finding in enumerate(verdict.findings):
            _choice(page, finding, number, number == opened)
        page.blank()
        page.add((glyphs.rule * page.width, "rule"))
    for finding in verdict.findings[opened : opened + 1]:
        add_finding(page, snapshot, finding, timeline.of(finding) if timeline is not None else None)
        add_meaning(page, finding.kind)
    if snapshot.notes:
        page.heading("notes")
        for note in snapshot.notes:
            page.text(clean(note), "dim", f"  {glyphs.bullet} ")
    return page.lines


def _before(page: Page, snapshot: Snapshot, timeline: Timeline | None) -> None:
    """Findings that ended before anybody looked at this page."""
    entries = timeline.entries if timeline is not None else ()
    found = [
        entry
        for entry in entries
        if entry.finding is not None and entry.unix_ns <= snapshot.time_unix_ns
    ]
    if not found:
        return
    page.heading("what was wrong before")
    for entry in reversed(found[-BEFORE_MOST:]):
        page.text(entry.text, "", f"  {units.clock(entry.unix_ns)}  ")
    page.text("the story of each: view 6, events, and Enter", "dim", "  ")


def _choice(page: Page, finding: Finding, number: int, opened: bool) -> None:
    """One line of the list; the opened one has a sign, not a colour alone."""
    mark, style = severity_mark(finding.severity, page.glyphs)
    lead = f"{page.glyphs.then if opened else ' '} {number + 1}  "
    room = page.width - len(lead) - 2
    text = clip(clean(finding.summary), room, page.glyphs.ellipsis)
    page.add(
        (lead, "bold" if opened else "dim"), (f"{mark} ", style), (text, "bold" if opened else "")
    )


def add_finding(
    page: Page, snapshot: Snapshot, finding: Finding, entry: Entry | None = None
) -> None:
    """Add sentence, ranks, begin, evidence, advice, and the story so far."""
    mark, style = severity_mark(finding.severity, page.glyphs)
    since = units.duration((snapshot.time_unix_ns - finding.since_unix_ns) / units.SECOND_NS)
    for number, text in enumerate(wrap_clauses(clean(finding.summary), page.width - 2)):
        page.add((f"{' ' if number else mark} {text}", style))
    page.blank()
    page.item("kind", f"{clean(finding.kind)} ({finding.severity})")
    page.item("since", f"{units.clock(finding.since_unix_ns)}, {since} ago")
    if entry is not None and entry.over_unix_ns is not None:
        stood = units.duration((entry.over_unix_ns - entry.unix_ns) / units.SECOND_NS)
        page.item("over", f"{units.clock(entry.over_unix_ns)}, it stood for {stood}")
    page.item("at fault", ranks_text(finding.ranks, len(finding.ranks)) or "no rank is blamed")
    page.item("waiting", ranks_text(finding.victims, len(finding.victims)))
    if finding.group is not None:
        page.item("in", _where(snapshot, finding))
    if finding.evidence:
        page.heading("evidence")
        for line in finding.evidence:
            page.text(clean(line), "", f"  {page.glyphs.bullet} ")
    if finding.advice:
        page.heading("what to do")
        page.text(clean(finding.advice), "bold", f"  {page.glyphs.arrow} ")
    if entry is not None and (len(entry.words) > 1 or entry.over_unix_ns is not None):
        _earlier_sentences(page, entry)


def _earlier_sentences(page: Page, entry: Entry) -> None:
    page.heading("how it went")
    for at, words in entry.words:
        page.text(words, "", f"  {units.clock(at)}  ")
    if entry.over_unix_ns is not None:
        ended = "the job ended" if entry.closed else "over"
        page.text(ended, "bold", f"  {units.clock(entry.over_unix_ns)}  ")


def add_meaning(page: Page, kind: str) -> None:
    """Add what `ddtop explain` prints: what this kind of finding means, how it is found and what to
    do."""
    explanation = explain(kind, chosen())
    if explanation is None:
        return
    page.heading("what it means")
    page.text(explanation.meaning, "", "  ")
    page.heading("how it is found")
    for text in explanation.found:
        page.text(text, "", f"  {page.glyphs.bullet} ")
    page.heading("steps")
    for number, step in enumerate(explanation.steps, 1):
        text, *commands = step.split("\n")
        page.text(text, "", f"  {number}. ")
        for command in commands:
            page.text(command, "bold", "     ")
    page.text(f"ddtop explain {kind}", "dim", f"  {page.glyphs.arrow} ")


def _where(snapshot: Snapshot, finding: Finding) -> str:
    return clean(
        collective_text(finding.op, finding.seq, group_label(snapshot, finding.group or ""))
    )
