"""The other pages: why a finding stands, the groups, the help."""

from __future__ import annotations

from collections.abc import Sequence

from ddtop.diagnosis.explain import explain
from ddtop.diagnosis.finding import Finding, Verdict
from ddtop.metrics import METRICS
from ddtop.model.facts import Snapshot
from ddtop.ui.present import units
from ddtop.ui.present.banner import severity_mark
from ddtop.ui.present.bars import ACTIVITY_LETTERS
from ddtop.ui.present.columns import COLUMNS, state_text
from ddtop.ui.present.glyphs import STATE_MEANINGS, STATE_STYLES, UNICODE, Glyphs
from ddtop.ui.present.text import Line, clean, rank_words, ranks_text, wrap_clauses
from ddtop.ui.present.words import group_label, op_text
from ddtop.wire.records import ACTIVITIES, Group

from .page import Page

Keys = Sequence[tuple[str, str]]


def finding_lines(snapshot: Snapshot, verdict: Verdict, width: int, glyphs: Glyphs = UNICODE) -> list[Line]:
    """Every finding with its ranks, evidence and advice, worst first, and once a kind what it means.

    Where nothing is found: what was seen.
    """
    page = Page(width, glyphs)
    if not verdict.findings:
        page.text(clean(verdict.calm))
    for number, finding in enumerate(verdict.findings):
        if number:
            page.blank()
            page.add((glyphs.rule * page.width, "rule"))
        _finding(page, snapshot, finding)
        if finding.kind not in {earlier.kind for earlier in verdict.findings[:number]}:
            _meaning(page, finding.kind)
    if snapshot.notes:
        page.heading("notes")
        for note in snapshot.notes:
            page.text(clean(note), "dim", f"  {glyphs.bullet} ")
    return page.lines


def _finding(page: Page, snapshot: Snapshot, finding: Finding) -> None:
    mark, style = severity_mark(finding.severity, page.glyphs)
    since = units.duration((snapshot.time_unix_ns - finding.since_unix_ns) / units.SECOND_NS)
    for number, text in enumerate(wrap_clauses(clean(finding.summary), page.width - 2)):
        page.add((f"{' ' if number else mark} {text}", style))
    page.blank()
    page.item("kind", f"{clean(finding.kind)} ({finding.severity})")
    page.item("since", f"{units.clock(finding.since_unix_ns)}, {since} ago")
    page.item("at fault", rank_words(finding.ranks) or "no rank is blamed")
    page.item("waiting", rank_words(finding.victims))
    if finding.group is not None:
        page.item("in", _where(snapshot, finding))
    if finding.evidence:
        page.heading("evidence")
        for line in finding.evidence:
            page.text(clean(line), "", f"  {page.glyphs.bullet} ")
    if finding.advice:
        page.heading("what to do")
        page.text(clean(finding.advice), "bold", f"  {page.glyphs.arrow} ")


def _meaning(page: Page, kind: str) -> None:
    explanation = explain(kind)
    if explanation is None:
        return
    page.heading("what it means")
    page.text(explanation.meaning, "", "  ")
    page.text(f"ddtop explain {kind}", "dim", f"  {page.glyphs.arrow} ")


def _where(snapshot: Snapshot, finding: Finding) -> str:
    named = op_text(finding.op) if finding.op else "collective"
    seq = "" if finding.seq is None else f" #{finding.seq}"
    return f"{named}{seq} of {group_label(snapshot, finding.group or '')}"


def group_lines(snapshot: Snapshot, width: int, glyphs: Glyphs = UNICODE) -> list[Line]:
    """One line a process group: how far its front is and who is behind."""
    page = Page(width, glyphs)
    rows = [_group(snapshot, group) for group in snapshot.groups]
    if not rows:
        page.add(("no process group is known yet", "dim"))
        return page.lines
    page.table(("GROUP", "BACKEND", "RANKS", "FRONT", "OP", "BEHIND"), rows, (False, False, False, True, False, False))
    return page.lines


def _group(snapshot: Snapshot, group: Group) -> tuple[str, ...]:
    put_in: dict[int, int] = {}
    operation = None
    for number in group.ranks:
        for one in snapshot.rank(number).groups:
            if one.group == group.name:
                put_in[number] = one.enqueued - (one.p2p_offset or 0)
                operation = operation or one.last_op
    waits = [wait for wait in snapshot.waits if wait.group == group.name]
    behind = "-"
    if waits:
        since = min(wait.since_unix_ns for wait in waits)
        late = {rank for wait in waits for rank in wait.behind}
        for_s = units.duration((snapshot.time_unix_ns - since) / units.SECOND_NS)
        behind = f"{rank_words(late, 4)}, {for_s}" if late else f"nobody; nothing comes back, {for_s}"
        operation = waits[0].op or operation
    return (
        clean(group.description or group.name),
        clean(group.backend),
        ranks_text(group.ranks, 4),
        units.count(max(put_in.values())) if put_in else units.NOT_MEASURED,
        op_text(operation) if operation else "-",
        behind,
    )


def help_lines(keys: Keys, width: int, glyphs: Glyphs = UNICODE) -> list[Line]:
    """Keys, states, every column with what it means and how to check it, and the letters of the phases."""
    page = Page(width, glyphs)
    page.heading("keys")
    for key, meaning in keys:
        page.item(key, meaning, label_style="key")
    page.heading("states")
    for state, meaning in STATE_MEANINGS.items():
        text = state_text(state, glyphs)
        page.add((f"  {text:<12}", STATE_STYLES[state]), (meaning, ""))
    page.heading("columns")
    metrics = {metric.name: metric for metric in METRICS}
    for column in COLUMNS:
        metric = metrics[column.metric]
        page.item(column.title, f"{metric.meaning} ({metric.unit})" if metric.unit else metric.meaning)
        page.item("", f"from {metric.source}", "dim")
        page.item("", f"check: {metric.check}" if metric.check else "", "dim")
    page.heading("letters in PHASES")
    for letter, name in zip(ACTIVITY_LETTERS, ACTIVITIES, strict=True):
        page.item(letter, name)
    return page.lines
