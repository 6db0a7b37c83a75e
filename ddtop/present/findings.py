"""The top of the screen: the job, its progress, and the sentence that says what is wrong.

The sentence has priority and is shown in full; evidence and notes fill the rest. Nothing is shown
by colour alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ddtop.diagnosis.explain import explain
from ddtop.diagnosis.finding import CRITICAL, OK, UNKNOWN, WARNING, Finding, Said, Verdict
from ddtop.model.facts import Snapshot
from ddtop.present.events import (
    CONTACT,
    END,
    FINDING,
    JOB,
    LOSS,
    RAISED,
    RESTARTED,
    STACKS,
    Event,
    EventLog,
    EventRow,
    of_ranks,
    over_text,
)
from ddtop.present.groups import backend_of, group_label, hosts_answering, hosts_of, starting
from ddtop.present.text import (
    UNICODE,
    Field,
    Glyphs,
    Line,
    Page,
    Span,
    Table,
    beside,
    clean,
    clip,
    clip_line,
    line_width,
    middle,
    short_names,
    table_for,
    wrap,
    wrap_clauses,
)
from ddtop.say.evidence import OF_GROUP
from ddtop.say.said import without
from ddtop.thresholds import chosen
from ddtop.words import units
from ddtop.words.sentences import collective_text, ranks_text

MOST_LINES = 16
USUAL_LINES = 10
"""More lines are taken only for what must not be cut: the sentence, and what to do."""
NAME_PART, NAME_LEAST = 3, 12
"""A name is cut to this part of the width, but not to fewer columns, before the verdict takes more
than its usual lines."""
UNTIL_LEAST = 12
"""Characters by which the line is recognised that says when a warning becomes critical."""
MORE_FROM = 3
"""With at least this many lines for the verdict, one is reserved for the other findings."""
_EVIDENCE_LINES = 2


@dataclass(frozen=True, slots=True)
class ContactShown:
    """Whether the shown facts are live.

    `text`: a sentence, None while they are live. `frozen_s`: the user has paused the screen, which
    is this old. `behind_s`: this viewer cannot read as fast as the job reports.
    """

    text: str | None = None
    age_s: float | None = None
    frozen_s: float | None = None
    behind_s: float | None = None


LIVE = ContactShown()


def banner_lines(
    snapshot: Snapshot,
    verdict: Verdict,
    width: int,
    *,
    contact: ContactShown = LIVE,
    per_s: float | None = None,
    glyphs: Glyphs = UNICODE,
    most: int = MOST_LINES,
    usual: int = USUAL_LINES,
    brief: bool = False,
    past: Sequence[Event] = (),
) -> list[Line]:
    """Header, contact, verdict and notes, at most `most` lines of at most `width` columns; more
    than `usual` only for the sentence and what to do.

    `brief`: without what the page of the findings says, which a key opens. `past`: the timeline, so
    that a healthy job shows what went wrong last.
    """
    if contact.text is None and verdict.unheard is not None:
        contact = replace(contact, text=verdict.unheard, age_s=verdict.unheard_s)
    head = [
        header_line(snapshot, width, contact, glyphs, per_s),
        *_contact_lines(snapshot, contact, width, glyphs),
    ]
    room, usual = max(most - len(head), 1), max(min(usual, most) - len(head), 1)
    others = verdict.findings[1:] if room >= MORE_FROM else ()
    fixed = bool(others)
    body = verdict_lines(verdict, width, glyphs, room - fixed, usual - fixed, brief=brief)
    until = verdict.findings[0].until if verdict.findings else ""
    if until and not any(until[:UNTIL_LEAST] in text for line in body for text, _ in line):
        head[0] = header_line(snapshot, width, contact, glyphs, per_s, until.partition(",")[0])
    if others:
        body.append(_more_line(others, width, glyphs))
    if verdict.health == OK and snapshot.live and (stood := last_stood(past, snapshot)):
        text, style = body[-1][-1]
        body[-1] = ((f"{text} {glyphs.bullet} {stood}", style),)
    notes = _note_lines(snapshot, width, glyphs, brief) if len(body) < usual else []
    return [clip_line(line, width, glyphs.ellipsis) for line in [*head, *body, *notes]]


def header_line(
    snapshot: Snapshot,
    width: int,
    contact: ContactShown = LIVE,
    glyphs: Glyphs = UNICODE,
    per_s: float | None = None,
    until: str = "",
) -> Line:
    """Job, ranks, hosts, backend; at the right the iteration, the speed or the time without
    progress, when a warning becomes critical (`until`), and the clock.

    If there is no room, the least important parts are left out first; the name of the job is
    shortened last. `per_s`: the speed over the last seconds, where somebody has followed the job.
    """
    everyone = snapshot.reporting >= snapshot.world_size or not snapshot.live
    job = middle(clean(snapshot.job), max(width // 3, 12), glyphs.ellipsis)
    ranks = f"{snapshot.reporting:,}/{snapshot.world_size:,} ranks"
    left: list[tuple[int, Span]] = [
        (0, (job, "title")),
        (1, (ranks, "" if everyone else "warning")),
    ]
    if (hosts := _hosts(snapshot)) is not None:
        left.append(hosts)
    backend = backend_of(snapshot)
    if backend:
        left.append((6, (backend, "")))
    if snapshot.attempt:
        left.append((4, (f"restart {snapshot.attempt}", "")))
    right = _progress(snapshot, per_s)
    right += [(3, (until, "warning"))] if until else []
    if snapshot.ended is None or contact.frozen_s is not None:
        right.append((3, _time(snapshot, contact)))
    while len(left) + len(right) > 1 and _header_width(left, right) > width:
        worst = max([*left, *right], key=lambda part: part[0])
        (left if worst in left else right).remove(worst)
    return _two_sided([span for _, span in left], [span for _, span in right], width)


def _hosts(snapshot: Snapshot) -> tuple[int, Span] | None:
    """`8/8 hosts`, for a job on several hosts."""
    answering, total = hosts_answering(snapshot)
    if total > 1 and snapshot.live:
        return 5 if answering == total else 2, (
            f"{answering:,}/{total:,} hosts",
            "" if answering == total else "warning",
        )
    hosts = hosts_of(snapshot)
    return (5, (units.plural(hosts, "host"), "")) if hosts else None


def _progress(snapshot: Snapshot, per_s: float | None) -> list[tuple[int, Span]]:
    parts: list[tuple[int, Span]] = []
    if snapshot.iteration is not None:
        parts.append((4, (f"iter {snapshot.iteration:,}", "")))
    if not snapshot.live:
        return [*parts, (2, (_ended(snapshot), "bold"))]
    if snapshot.still_since_unix_ns is not None:
        still = (snapshot.time_unix_ns - snapshot.still_since_unix_ns) / units.SECOND_NS
        return [*parts, (2, (f"NO PROGRESS {units.duration(still)}", "still"))]
    if starting(snapshot) and snapshot.first_hello_unix_ns is not None:
        since = (snapshot.time_unix_ns - snapshot.first_hello_unix_ns) / units.SECOND_NS
        return [*parts, (2, (f"starting {units.duration(since)}", "starting"))]
    if snapshot.iterations_per_s is not None:
        parts.append((5, (units.speed(snapshot.iterations_per_s if per_s is None else per_s), "")))
    elif snapshot.iteration is not None and snapshot.progress_unix_ns is not None:
        rests = (snapshot.time_unix_ns - snapshot.progress_unix_ns) / units.SECOND_NS
        parts.append((5, (f"last progress {units.duration(rests)} ago", "")))
    return parts


def _ended(snapshot: Snapshot) -> str:
    """`ENDED 17:10:42`; no age: whoever looks later, or at a recording, has another clock."""
    return f"ENDED {units.clock(snapshot.ended.time_unix_ns)}" if snapshot.ended else "ENDED"


def _time(snapshot: Snapshot, contact: ContactShown) -> Span:
    time = units.clock(snapshot.time_unix_ns)
    if contact.frozen_s is not None:
        return f"FROZEN at {time}, {units.duration(contact.frozen_s)} ago", "still"
    if contact.text and contact.age_s is not None and snapshot.live:
        return f"silent for {units.duration(contact.age_s)}", "warning"
    if contact.behind_s is not None:
        return f"BEHIND {units.duration(contact.behind_s)}, at {time}", "warning"
    return time, ""


def _header_width(left: Sequence[tuple[int, Span]], right: Sequence[tuple[int, Span]]) -> int:
    parts = [*left, *right]
    return line_width(span for _, span in parts) + 2 * (len(parts) - 1)


def _two_sided(left: Sequence[Span], right: Sequence[Span], width: int) -> Line:
    spans, end = beside([span] for span in left), beside([span] for span in right)
    gap = width - line_width(spans) - line_width(end)
    return (*spans, (" " * max(gap, 0), ""), *end) if end else spans


def _contact_lines(
    snapshot: Snapshot, contact: ContactShown, width: int, glyphs: Glyphs
) -> list[Line]:
    lines: list[Line] = []
    if contact.text:
        style = "warning" if snapshot.live else "bold"
        lines += [((text, style),) for text in wrap(clean(contact.text), width)[:2]]
    if snapshot.apart is not None and snapshot.live:
        lines += [((text, "warning"),) for text in wrap(clean(snapshot.apart), width)[:2]]
    if snapshot.ended is not None:
        reason = f"ended {units.clock(snapshot.ended.time_unix_ns)}: {clean(snapshot.ended.reason)}"
        lines.append(((clip(reason, width, glyphs.ellipsis), "bold"),))
    return lines


def severity_mark(severity: str, glyphs: Glyphs = UNICODE) -> Span:
    """The glyph of a severity and its style."""
    if severity == CRITICAL:
        return glyphs.critical, "critical"
    return (glyphs.warning, "warning") if severity == WARNING else (glyphs.info, "")


def verdict_lines(
    verdict: Verdict,
    width: int,
    glyphs: Glyphs = UNICODE,
    most: int = MOST_LINES,
    usual: int = USUAL_LINES,
    *,
    brief: bool = False,
) -> list[Line]:
    """The worst finding as a sentence with a hanging indent, its first evidence and the next step;
    `brief`: only when it becomes critical, and without rules.

    If `usual` lines are too few, the evidence is left out, then long names are cut in their middle.
    The sentence and the next step get up to `most` lines; only then they are cut at their ends, the
    next step first.
    """
    if not verdict.findings:
        texts = wrap(clean(verdict.calm), width)
        return [((text, _calm_style(verdict.health)),) for text in texts[:most]]
    finding = verdict.findings[0]
    said, step = clean(finding.summary), clean(_short(finding) if brief else finding.advice)
    summary, advice = _summary(finding, said, width, glyphs), _advice(step, width, glyphs)
    evidence = _evidence(
        finding.until if brief else next(iter(finding.evidence), ""), width, glyphs
    )
    if len(summary) + len(advice) > usual:
        name = max(width // NAME_PART, NAME_LEAST)
        said, step = (short_names(text, name, glyphs.ellipsis) for text in (said, step))
        summary = _summary(finding, said, width, glyphs, wrap)
        advice = _advice(step, width, glyphs)
    if len(summary) + len(evidence) + len(advice) > usual:
        evidence = []
    advice = _cut(advice, max(most - len(summary), 1), glyphs) if most > 1 else []
    return [*_cut(summary, most - len(advice), glyphs), *evidence, *advice]


def _short(finding: Finding) -> str:
    """The advice without rules."""
    said = finding.said or Said("")
    parts = (said.advice, said.countdown.removeprefix(OF_GROUP))
    return without("; ".join(filter(None, parts))) or finding.advice


def _calm_style(health: str) -> str:
    return health if health in (CRITICAL, WARNING) else "silent" if health == UNKNOWN else "calm"


def _summary(
    finding: Finding,
    said: str,
    width: int,
    glyphs: Glyphs,
    wrapped: Callable[[str, int], list[str]] = wrap_clauses,
) -> list[Line]:
    mark, style = severity_mark(finding.severity, glyphs)
    texts = wrapped(said, width - 2)
    return [
        ((f"{mark if number == 0 else ' '} {text}", style),) for number, text in enumerate(texts)
    ]


def _evidence(evidence: str, width: int, glyphs: Glyphs) -> list[Line]:
    if not evidence:
        return []
    texts = wrap(clean(evidence), width - 2)
    return _cut([((f"  {text}", ""),) for text in texts], _EVIDENCE_LINES, glyphs)


def _advice(advice: str, width: int, glyphs: Glyphs) -> list[Line]:
    if not advice:
        return []
    lead = f"  {glyphs.arrow} "
    texts = wrap(advice, width - len(lead))
    return [
        ((lead if number == 0 else " " * len(lead), ""), (text, "bold"))
        for number, text in enumerate(texts)
    ]


def _cut(lines: list[Line], most: int, glyphs: Glyphs) -> list[Line]:
    """The first lines; the last one shows that something was left out."""
    if len(lines) <= most:
        return lines
    if most <= 0:
        return []
    *spans, (text, style) = lines[most - 1]
    return [*lines[: most - 1], (*spans, (text[: -len(glyphs.ellipsis)] + glyphs.ellipsis, style))]


def _more_line(others: Sequence[Finding], width: int, glyphs: Glyphs) -> Line:
    """`+1 more: ✖ rank 0 has been stopped (SIGSTOP or Ctrl-Z) for 12 s`, in one line."""
    mark, style = severity_mark(others[0].severity, glyphs)
    lead = f"+{len(others)} more: "
    room = max(width - len(lead) - 2, 1)
    said = short_names(clean(others[0].summary), max(room // NAME_PART, NAME_LEAST))
    text = clip(said, room, glyphs.ellipsis)
    return ((lead, "bold"), (f"{mark} {text}", style))


def last_stood(events: Sequence[Event], snapshot: Snapshot) -> str:
    """`last: not-in-collective rank 26, 13:17:14, stood 2 min 10 s; 6: events`, with the
    key of the events; empty if no finding has cleared yet."""
    for event in reversed(events):
        over, finding = event.over_unix_ns, event.finding
        if finding is None or over is None or over > snapshot.time_unix_ns:
            continue
        stood = units.duration((over - event.began_unix_ns) / units.SECOND_NS)
        what = f"{clean(finding.kind)} {ranks_text(finding.ranks, 2)}".rstrip()
        if finding.severity in (CRITICAL, WARNING):
            return f"last: {what}, {units.clock(event.began_unix_ns)}, stood {stood}; 6: events"
    return ""


def _note_lines(snapshot: Snapshot, width: int, glyphs: Glyphs, brief: bool) -> list[Line]:
    if not snapshot.notes:
        return []
    # The page "why" lists them all.
    key = ": e" if brief else ""
    more = f" (and {len(snapshot.notes) - 1} more{key})" if len(snapshot.notes) > 1 else ""
    text = clip(f"note: {clean(snapshot.notes[0])}", width - len(more), glyphs.ellipsis)
    return [((text + more, "dim"),)]


# -- The page "why": the findings, one of them opened with all its evidence


BEFORE_MOST = 5


def finding_lines(
    snapshot: Snapshot,
    verdict: Verdict,
    width: int,
    glyphs: Glyphs = UNICODE,
    opened: int = 0,
    timeline: EventLog | None = None,
    beside: Sequence[tuple[str, Finding]] = (),
) -> list[Line]:
    """The findings, worst first: each with its sentence, the opened one with ranks, evidence,
    advice and what it means. `beside`: those of the other programs of the system, with their roles.

    Without findings: what was checked, and what was wrong before.
    """
    page = Page(width, glyphs)
    if not verdict.findings:
        page.text(clean(verdict.calm))
        _before(page, snapshot, timeline)
    opened = min(max(opened, 0), max(len(verdict.findings) - 1, 0))
    if len(verdict.findings) > 1 or beside:
        for number, finding in enumerate(verdict.findings):
            _choice(page, finding, number, number == opened)
        for role, finding in beside:
            mark, style = severity_mark(finding.severity, glyphs)
            page.add(
                ("    ", ""),
                (f"{mark} ", style),
                (f"{clean(role)} ", "dim"),
                (clean(finding.summary), ""),
            )
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


def _before(page: Page, snapshot: Snapshot, timeline: EventLog | None) -> None:
    """Findings that ended before anybody looked at this page."""
    events = timeline.events if timeline is not None else ()
    found = [
        event
        for event in events
        if event.finding is not None and event.began_unix_ns <= snapshot.time_unix_ns
    ]
    if not found:
        return
    page.heading("what was wrong before")
    for event in reversed(found[-BEFORE_MOST:]):
        page.text(event.sentence, "", f"  {units.clock(event.began_unix_ns)}  ")
    page.text("for the story of each: view 6, events, then Enter", "dim", "  ")


def _choice(page: Page, finding: Finding, number: int, opened: bool) -> None:
    """One line of the list; the opened one has a sign, not a colour alone."""
    mark, style = severity_mark(finding.severity, page.glyphs)
    lead = f"{page.glyphs.then if opened else ' '} {number + 1}  "
    text = clip(clean(finding.summary), page.width - len(lead) - 2, page.glyphs.ellipsis)
    page.add(
        (lead, "bold" if opened else "dim"), (f"{mark} ", style), (text, "bold" if opened else "")
    )


def add_finding(
    page: Page, snapshot: Snapshot, finding: Finding, event: Event | None = None
) -> None:
    """Add sentence, ranks, begin, evidence, advice, and the story so far."""
    since = units.duration((snapshot.time_unix_ns - finding.since_unix_ns) / units.SECOND_NS)
    page.lines += _summary(finding, clean(finding.summary), page.width, page.glyphs)
    page.blank()
    over = within = ""
    if event is not None and event.over_unix_ns is not None:
        stood = units.duration((event.over_unix_ns - event.began_unix_ns) / units.SECOND_NS)
        over = f"{units.clock(event.over_unix_ns)}, it lasted for {stood}"
    if finding.group is not None:
        group = group_label(snapshot, finding.group)
        within = clean(collective_text(finding.op, finding.seq, group))
    page.items(
        ("kind", f"{clean(finding.kind)} ({finding.severity})"),
        ("since", units.clock(finding.since_unix_ns) + (f", {since} ago" if snapshot.live else "")),
        ("over", over),
        ("at fault", ranks_text(finding.ranks, len(finding.ranks)) or "no rank is blamed"),
        ("waiting", ranks_text(finding.victims, len(finding.victims))),
        ("in", within),
    )
    if finding.evidence:
        page.heading("evidence")
        for line in finding.evidence:
            page.text(clean(line), "", f"  {page.glyphs.bullet} ")
    if finding.advice:
        page.heading("what to do")
        page.text(clean(finding.advice), "bold", f"  {page.glyphs.arrow} ")
    if event is not None and (len(event.sentences) > 1 or event.over_unix_ns is not None):
        _earlier_sentences(page, event)


def _earlier_sentences(page: Page, event: Event) -> None:
    page.heading("how it went")
    for at, words in event.sentences:
        page.text(clean(without(words)), "", f"  {units.clock(at)}  ")
    if event.over_unix_ns is not None:
        ended = "the job ended" if event.closed else "over"
        page.text(ended, "bold", f"  {units.clock(event.over_unix_ns)}  ")


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


# -- The events as rows, and the story of one event as a page


FIELDS = (
    Field("time", "TIME", 8),
    Field("what", "WHAT", 13, grows=1, most=24),
    Field("stood", "STOOD", 5, right=True, rank=1),
    Field("text", "", 15, grows=3),
)
_STYLES = {
    END: "gone",
    RAISED: "critical",
    RESTARTED: "warning",
    CONTACT: "warning",
    JOB: "bold",
    LOSS: "warning",
}


def events_table(width: int) -> Table[Field]:
    """The columns of the events for that width."""
    return table_for(FIELDS, width)


def event_row(
    row: EventRow, now_unix_ns: int, table: Table[Field], glyphs: Glyphs = UNICODE
) -> Line:
    """One row; events after the shown moment are dim."""
    cells = {
        "time": (units.clock(row.unix_ns), "dim"),
        "what": _what(row, glyphs),
        "stood": _duration(row, now_unix_ns),
        "text": _text(row),
    }
    if row.unix_ns > now_unix_ns:
        cells = {key: (text, "dim") for key, (text, _) in cells.items()}
    return table.line(cells, glyphs.ellipsis)


def event_words(row: EventRow, glyphs: Glyphs = UNICODE) -> tuple[str, str]:
    """A row without columns, for narrow places: its mark and its words."""
    finding = row.event.finding
    if finding is None:
        return " ", row.event.sentence
    if row.over:
        return " ", over_text(finding)
    return severity_mark(finding.severity, glyphs)[0], row.event.sentence


def _what(row: EventRow, glyphs: Glyphs) -> Span:
    event = row.event
    if event.finding is None:
        return f"  {event.what}", _STYLES.get(event.what, "")
    if row.over:
        return f"  {clean(event.finding.kind)}", "dim"
    mark, style = severity_mark(event.finding.severity, glyphs)
    return f"{mark} {clean(event.finding.kind)}", "dim" if event.over_unix_ns is not None else style


def _duration(row: EventRow, now_unix_ns: int) -> Span:
    event = row.event
    if event.what != FINDING:
        return "", "dim"
    until = (
        event.over_unix_ns
        if event.over_unix_ns is not None
        else max(now_unix_ns, event.began_unix_ns)
    )
    return units.age(
        (until - event.began_unix_ns) / units.SECOND_NS
    ), "" if event.over_unix_ns is None else "dim"


def _text(row: EventRow) -> Span:
    event = row.event
    if row.over and event.finding is not None:
        return f"over{of_ranks(event.finding)}", ""
    return event.sentence, "dim" if event.over_unix_ns is not None else ""


def story_lines(
    snapshot: Snapshot, event: Event, width: int, glyphs: Glyphs = UNICODE
) -> list[Line]:
    """How one event went: for a finding its beginning, the changes of its sentence, its end, and
    all its evidence."""
    page = Page(width, glyphs)
    if event.finding is not None:
        add_finding(page, snapshot, event.finding, event)
        add_meaning(page, event.finding.kind)
        return page.lines
    page.text(event.sentence, "title")
    page.blank()
    ago = f", {units.duration((snapshot.time_unix_ns - event.began_unix_ns) / units.SECOND_NS)} ago"
    replaced = "newer ones have replaced them; [ and { go back to them in time"
    page.items(
        ("at", units.clock(event.began_unix_ns) + (ago if snapshot.live else "")),
        ("ranks", ranks_text(event.ranks, 16)),
        ("stacks", replaced if event.what == STACKS else ""),
    )
    return page.lines
