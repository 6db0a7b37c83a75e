"""`ddtop status` and `ddtop diagnose` as text for pipes and plain terminals: no escape codes, no
colour."""

from __future__ import annotations

from ddtop.diagnosis.finding import Finding, Verdict
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.present.filter import by_verdict
from ddtop.present.findings import banner_lines, severity_mark
from ddtop.present.numbers import (
    LANE,
    CellContext,
    Number,
    absent,
    cell_text,
    host_width,
    place_width,
    rank_table,
)
from ddtop.present.text import UNICODE, Glyphs, Span, Table, clean, hang, plain, wrap, wrap_clauses
from ddtop.say.said import that_hold
from ddtop.words import units
from ddtop.words.sentences import rank_list

WHOLE = 999
"""Columns in which all numbers of a rank have room."""


def status_text(
    snapshot: Snapshot,
    verdict: Verdict,
    width: int,
    glyphs: Glyphs = UNICODE,
    *,
    whole: bool = False,
) -> str:
    """The main screen as plain lines of at most `width` columns; every rank, culprits first.
    `whole`: the table has all columns."""
    lines = [plain(line) for line in banner_lines(snapshot, verdict, width, glyphs=glyphs)]
    table = table_lines(snapshot, verdict, WHOLE if whole else width, glyphs)
    lines.append(glyphs.rule * min(len(table[0]), width))
    return "\n".join([*lines, *table]) + "\n"


def table_lines(
    snapshot: Snapshot, verdict: Verdict, width: int, glyphs: Glyphs = UNICODE
) -> list[str]:
    """Titles and the row of every rank, culprits first."""
    shape = rank_table(
        width,
        snapshot.world_size,
        host_width(snapshot),
        {*absent(snapshot), LANE},
        place_width(snapshot),
        several_hosts=len(snapshot.hosts) > 1,
    )
    context = CellContext(snapshot.time_unix_ns, glyphs, snapshot.axes, snapshot.groups)
    rows = [_row(snapshot.rank(number), shape, context) for number in by_verdict(snapshot, verdict)]
    return [plain(shape.titles()), *rows]


def _row(rank: RankFacts, shape: Table[Number], context: CellContext) -> str:
    cells: dict[str, Span] = {
        column.key: (cell_text(column, rank, context, width), "")
        for column, width in shape.columns()
    }
    return plain(shape.line(cells, context.glyphs.ellipsis))


def diagnose_text(
    snapshot: Snapshot, verdict: Verdict, width: int, glyphs: Glyphs = UNICODE
) -> str:
    """The findings, worst first, each with its evidence and the next step; one sentence if there
    are none."""
    lines = [
        plain(line) for line in banner_lines(snapshot, verdict, width, glyphs=glyphs, most=1)[:1]
    ]
    if verdict.unheard is not None:
        lines += wrap(clean(verdict.unheard), width)
    if snapshot.apart is not None and snapshot.live:
        lines += wrap(clean(snapshot.apart), width)
    if snapshot.ended is not None:
        ended = f"ended {units.clock(snapshot.ended.time_unix_ns)}: {clean(snapshot.ended.reason)}"
        lines += wrap(ended, width)
    if not verdict.findings:
        lines += wrap(clean(verdict.calm), width)
    for finding in verdict.findings:
        lines += ["", *_finding(snapshot, finding, width, glyphs)]
    if snapshot.notes:
        lines += [
            "",
            *(line for note in snapshot.notes for line in hang(clean(note), width, "note: ")),
        ]
    return "\n".join(lines) + "\n"


def _finding(snapshot: Snapshot, finding: Finding, width: int, glyphs: Glyphs) -> list[str]:
    mark = severity_mark(finding.severity, glyphs)[0]
    since = (snapshot.time_unix_ns - finding.since_unix_ns) / units.SECOND_NS
    lines = [f"{mark} {finding.severity}: {clean(finding.kind)}, for {units.duration(since)}"]
    lines += [f"  {text}" for text in wrap_clauses(clean(finding.summary), width - 2)]
    parts = (
        *that_hold((finding.ranks, (rank_list(finding.ranks), "  ranks: "))),
        *that_hold((finding.victims, (rank_list(finding.victims), "  waiting: "))),
        *((clean(evidence), f"  {glyphs.bullet} ") for evidence in finding.evidence),
        *that_hold((finding.advice, (clean(finding.advice), f"  {glyphs.arrow} "))),
    )
    return lines + [line for text, lead in parts for line in hang(text, width, lead)]
