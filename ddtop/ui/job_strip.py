"""The job strip below the ranks, as far as there is room: the numbers of the whole job over the
last minutes, its progress, and the last events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ddtop.follow.history import Field, JobHistory, Numbers
from ddtop.model.facts import Snapshot
from ddtop.present.charts import LEAST_SPREAD, chart, scale, stack
from ddtop.present.findings import EventRow, event_row, event_words, events_table
from ddtop.present.strip import (
    COMM,
    GPU_USE,
    LOADER,
    LOSS,
    LOSS_SPREAD,
    MEMORY,
    SHARES,
    THROUGHPUT,
    Comparison,
    Measure,
    against_last_run,
    axis_line,
    compared,
    gpus_text,
    job_facts,
    measured,
    progress_facts,
    span_ns,
    speed_facts,
)
from ddtop.present.text import Glyphs, Line, Span, cell_width, clip_line, fit, line_width
from ddtop.ui.style import rule_line
from ddtop.words import units

LINE_LEAST = 3
"""With at least so many free rows the strip has more than one line."""
CHARTS_FROM = 110
CHART_COLUMNS = 56
CHART_ROWS_MOST = 10
EVENTS_LEAST, EVENTS_MOST = 3, 8
_DROPPED = (" left", "lr ", "epoch ")
"""Left out of the progress line first when it is too long: the time left is also shown as the time
of the end."""
_LABEL, _VALUE, _SCALE, _NOW, _NOTE = 11, 10, 14, 4, 26
_ENDS = 8
"""Columns for the ends of a chart's scale, and for "now" on its axis."""
_EVENTS: Span = ("last events", "dim")


@dataclass(frozen=True)
class JobFacts:
    """What the strip shows. `quiet`: there is a critical finding, so nothing here may draw the
    eye."""

    snapshot: Snapshot
    history: JobHistory
    events: Sequence[EventRow] = ()
    quiet: bool = False

    @property
    def until_unix_ns(self) -> int:
        """The shown moment."""
        return self.snapshot.time_unix_ns

    def style(self, name: str) -> str:
        """This style, or the quiet one."""
        return "dim" if self.quiet else name

    def compared(self, measure: Measure) -> Comparison:
        """Now compared with before; not shown while a finding says what is wrong."""
        if self.quiet:
            return Comparison()
        last_run = against_last_run(self.snapshot) if measure is THROUGHPUT else None
        return compared(measure, self.history, self.until_unix_ns, last_run)

    @cached_property
    def now(self) -> Numbers:
        """The numbers of the last seconds."""
        # A mean would show a speed that the job no longer has.
        still = self.snapshot.still_since_unix_ns is not None
        return self.history.now(self.until_unix_ns, newest=still)

    def line(self, field: Field, cells: int) -> list[float | None]:
        """The values of the charts' time."""
        return self.history.line(
            field, cells, span_ns(self.history, self.until_unix_ns), self.until_unix_ns
        )

    def axis(self, columns: int, ends: int, glyphs: Glyphs) -> Line:
        """The axis below charts of so many columns, with marks where findings began; `ends`: the
        columns for the ends of their scales."""
        until, whole_ns = self.until_unix_ns, span_ns(self.history, self.until_unix_ns)
        first = max(until - whole_ns, min(self.history.began_unix_ns or until, until))
        marks = [
            (row.unix_ns, row.entry.finding.severity)
            for row in self.events
            if row.entry.finding is not None and not row.over
        ]
        line = axis_line((first, until), columns * (until - first) // whole_ns, marks, glyphs)
        pad = " " * (columns + ends - line_width(line))
        return (*((text, self.style(style)) for text, style in line), (pad, ""))


def strip_lines(facts: JobFacts, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """The strip in at most `height` lines of at most `width` columns."""
    measures = measured(facts.history, facts.until_unix_ns)
    if height <= 0 or width < 20:
        return []
    if height < LINE_LEAST:
        return [one_line(facts, measures, width, glyphs)]
    lines = [rule_line(width, glyphs.rule, *job_facts(facts.snapshot, facts.history))]
    room = height - 1 - bool(facts.snapshot.progress)
    body = _charts(facts, measures, width, room, glyphs)
    body = body or _measure_lines(facts, measures, width, room, glyphs)
    # Three lines are the speed, its other units and the axis.
    progress = _progress(facts, measures if room >= 4 else measures[: room // 3])
    if progress:
        lines.append(_progress_line(facts, progress, width, glyphs))
    lines += body
    room = height - len(lines) - 1
    if facts.events and room >= EVENTS_LEAST and not any(_EVENTS in line for line in lines):
        lines += [(), *_event_lines(facts, width, room, glyphs)]
    return [clip_line(line, width, glyphs.ellipsis) for line in lines[:height]]


def _progress(facts: JobFacts, shown: Sequence[Measure]) -> list[str]:
    """The progress without what these measures say."""
    told = (" samples/s", " tokens/s") if THROUGHPUT in shown else ()
    loss = ("loss ",) if LOSS in shown and facts.now.loss is not None else ()
    return [
        text
        for text in progress_facts(facts.snapshot)
        if not text.endswith(told) and not text.startswith(loss)
    ]


def _progress_line(facts: JobFacts, progress: Sequence[str], width: int, glyphs: Glyphs) -> Line:
    label: Span = (fit("progress", _LABEL) + " ", "dim")
    found = list(progress)
    for end in _DROPPED:
        if cell_width("  ".join(found)) <= width - _LABEL - 1:
            break
        found = [text for text in found if not text.endswith(end) and not text.startswith(end)]
    return clip_line((label, ("  ".join(found), facts.style(""))), width, glyphs.ellipsis)


def _value(facts: JobFacts, measure: Measure) -> str:
    # GPUs that only wait are as busy as those that work.
    if measure is GPU_USE and (text := gpus_text(facts.snapshot)):
        return text
    value = measure.field(facts.now)
    return units.NOT_MEASURED if value is None else measure.text(value)


def _bare(measure: Measure, value: float) -> str:
    """The value without its unit, which is shown beside it; the sign of a percentage stays."""
    return measure.text(value).split(" ")[0]


def _note(facts: JobFacts, measure: Measure, room: int) -> Span:
    """As many comparisons as fit, but at least the first."""
    comparison = facts.compared(measure)
    style = "warning" if comparison.great else "dim"
    whole = ", ".join(comparison.texts)
    if len(whole) <= room:
        return whole, style
    return (comparison.texts[0] if len(comparison.texts[0]) <= room else ""), style


def one_line(facts: JobFacts, measures: Sequence[Measure], width: int, glyphs: Glyphs) -> Line:
    """The whole strip in one line; if there is no room, the last parts are left out first."""
    parts: list[Line] = []
    for measure in measures:
        if measure is not THROUGHPUT:
            parts.append(((f"{measure.label} {_value(facts, measure)}", "dim"),))
            continue
        parts += [((_value(facts, measure), facts.style("")),)]
        parts += _drawn(facts, measure, max(width // 5, 8), 1, glyphs)[0]
        comparison = facts.compared(measure)
        parts += [
            ((text, "warning" if comparison.great else "dim"),) for text in comparison.texts[:1]
        ]
        parts += [((text, "dim"),) for text in speed_facts(facts.now)]
    parts += [((text, "dim"),) for text in _progress(facts, measures)]
    used = 0
    spans: list[Span] = []
    for part in parts:
        more = line_width(part) + (2 if spans else 0)
        if used + more > width:
            break
        spans += [("  ", ""), *part] if spans else [*part]
        used += more
    return tuple(spans)


def _drawn(
    facts: JobFacts, measure: Measure, columns: int, rows: int, glyphs: Glyphs
) -> tuple[list[Line], tuple[str, str]]:
    """(the lines of its chart, the ends of its scale)."""
    values = facts.line(measure.field, columns)
    # Where there is a whole, it is at the upper end.
    whole = 1.0 if measure.share else facts.now.gpu_total_bytes if measure is MEMORY else None
    spread = LOSS_SPREAD if measure is LOSS else LEAST_SPREAD
    low, high = (0.0, whole) if whole else scale(values, spread)
    lines = chart(values, (low, high), rows, glyphs, facts.quiet)
    return lines, (_bare(measure, low), _bare(measure, high))


def _measure_lines(
    facts: JobFacts, measures: Sequence[Measure], width: int, height: int, glyphs: Glyphs
) -> list[Line]:
    """A line for each measure, and their axis: `speed  5.1 it/s  ▅▅▅▅▄▄  0 to 6  12 % slower than
    at 14:02`."""
    room = width - _LABEL - 1 - _VALUE - 2
    notes = _NOTE + 2 if room >= _NOTE + 2 + 20 else 0
    ends = _SCALE if room - notes - _SCALE >= 12 else _NOW
    columns = max(min(room - notes - ends, 120), 0)
    lines: list[Line] = []
    for measure in measures:
        (drawn,), (low, high) = _drawn(facts, measure, columns, 1, glyphs)
        text, style = _note(facts, measure, notes - 2) if notes else ("", "")
        lines.append(
            (
                (fit(measure.label, _LABEL) + " ", "dim"),
                (fit(_value(facts, measure).split(",")[0], _VALUE, True), facts.style("")),
                ("  ", ""),
                *drawn,
                (fit(f" {low} to {high}" if ends > _NOW else "", ends), "dim"),
                (f"  {text}" if text else "", style),
            )
        )
        if measure is THROUGHPUT:
            text = "  ".join(speed_facts(facts.now))
            lines.append(((" " * (_LABEL + 1), ""), (text, facts.style(""))))
    axis = ((" " * (width - room), ""), *facts.axis(columns, ends, glyphs))
    return [*lines[: max(height - 1, 1)], axis] if lines else []


def _charts(
    facts: JobFacts, measures: Sequence[Measure], width: int, height: int, glyphs: Glyphs
) -> list[Line]:
    """The numbers as small charts side by side; none where there is no room."""
    # The shares of the time are in one chart, at the place of the first of them.
    charts = [measure for measure in measures if measure not in (COMM, LOADER)]
    stacked = any(field(facts.now) is not None for _, field in SHARES)
    count = len(charts) + stacked
    if width < CHARTS_FROM or not count:
        return []
    columns = max(min(width // CHART_COLUMNS, count), 1)
    bands = -(-count // columns)
    # A band has a line of titles, the charts and their axis.
    rows = min(height // bands - 2, CHART_ROWS_MOST)
    if rows < 2:
        return []
    gap = 3
    wide = (width - gap * (columns - 1)) // columns
    blocks = [_chart(facts, measure, wide, rows, glyphs) for measure in charts]
    if stacked:
        blocks.insert(THROUGHPUT in charts, _time_chart(facts, wide, rows, glyphs))
    if count % columns:
        blocks.append(_events_block(facts, wide, rows + 1, glyphs))
    lines: list[Line] = []
    for band in range(bands):
        for parts in zip(*blocks[band * columns : (band + 1) * columns], strict=True):
            spans: list[Span] = [*parts[0]]
            for part in parts[1:]:
                spans += [(" " * gap, ""), *part]
            lines.append(tuple(spans))
    return lines


def _events_block(facts: JobFacts, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """The last events, in the place of a missing chart."""
    lines = [
        clip_line(
            ((units.clock(row.unix_ns) + "  ", "dim"), (f"{mark} {text}", facts.style(""))),
            width,
            glyphs.ellipsis,
        )
        for row in _shown_events(facts, rows)
        for mark, text in [event_words(row, glyphs)]
    ]
    lines += [()] * (rows - len(lines))
    return [(_EVENTS, (" " * (width - len(_EVENTS[0])), "")), *lines]


def _chart(facts: JobFacts, measure: Measure, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """A title, the chart with both ends of its scale at the right, and its axis."""
    drawn, ends = _drawn(facts, measure, width - _ENDS, rows, glyphs)
    name: Line = (
        (f"{measure.label} ", "dim"),
        (_value(facts, measure), facts.style("bold")),
    )
    used = line_width(name)
    text, style = _note(facts, measure, width - used - 2)
    if measure is THROUGHPUT:
        for fact in speed_facts(facts.now):
            more = f" {glyphs.bullet} {fact}"
            if used + len(more) + len(text) + 2 <= width:
                name, used = (*name, (more, facts.style(""))), used + len(more)
    title = (*name, (fit(text, width - used, True), style))
    return [title, *_with_ends(drawn, ends), facts.axis(width - _ENDS, _ENDS, glyphs)]


def _with_ends(drawn: Sequence[Line], ends: tuple[str, str]) -> list[Line]:
    at = {0: ends[1], len(drawn) - 1: ends[0]}
    return [
        (*line, (" " + fit(at.get(row, ""), _ENDS - 1), "dim")) for row, line in enumerate(drawn)
    ]


def _time_chart(facts: JobFacts, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """What the time of the job goes to, as shares of a whole; the title is the legend."""
    columns = width - _ENDS
    title: list[Span] = [("time", "dim")]
    bands: list[tuple[Span, list[float | None]]] = []
    for number, (sign, (label, field)) in enumerate(zip(glyphs.bands, SHARES, strict=True)):
        now = field(facts.now)
        if now is None:
            continue
        look: Span = (sign, "bar" if facts.quiet else f"band{number}")
        if sign.strip():
            bands.append((look, facts.line(field, columns)))
        text: Span = (f" {label} {units.percent(now)}", facts.style(""))
        if line_width((*title, look, text)) + 2 <= width:
            title += [("  ", ""), look, text]
    title.append((" " * (width - line_width(title)), ""))
    drawn = _with_ends(stack(bands, rows, glyphs), ("0", "100%"))
    return [tuple(title), *drawn, facts.axis(columns, _ENDS, glyphs)]


def _shown_events(facts: JobFacts, room: int) -> list[EventRow]:
    event_rows = [row for row in facts.events if row.unix_ns <= facts.until_unix_ns]
    return event_rows[-min(room, EVENTS_MOST) :]


def _event_lines(facts: JobFacts, width: int, room: int, glyphs: Glyphs) -> list[Line]:
    now = facts.until_unix_ns
    table = events_table(width)
    made = [event_row(row, now, table, glyphs) for row in _shown_events(facts, room)]
    if not facts.quiet:
        return made
    return [tuple((text, "dim") for text, _ in line) for line in made]
