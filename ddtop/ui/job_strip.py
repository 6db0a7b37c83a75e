"""The job strip below the ranks, as far as there is room: the numbers of the whole job over the
last minutes, its progress, and the last events.

The charts are our own text. textual-plotext needs half of six rows for its frame and axes and draws
in braille, which consoles and some fonts lack. Textual's `Sparkline` has one row and no gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddtop.follow.history import JobHistory
from ddtop.model.facts import Snapshot
from ddtop.present.findings import EventRow, event_row, event_words, events_table
from ddtop.present.strip import (
    THROUGHPUT,
    Comparison,
    Measure,
    against_last_run,
    compared,
    gpus_text,
    job_facts,
    measured,
    progress_facts,
    scale_range,
    scale_top,
    span_ns,
)
from ddtop.present.text import Glyphs, Line, Span, cell_width, clip_line, fit, line_width
from ddtop.ui.style import rule_line
from ddtop.words import units

LINE_LEAST = 3
"""With at least so many free rows the strip has more than one line."""
CHARTS_FROM = 110
CHART_COLUMNS = 56
CHART_ROWS_MOST = 5
EVENTS_LEAST, EVENTS_MOST = 3, 8
_DROPPED = (" samples/s", " tokens/s", " left", "lr ", "epoch ")
"""Left out of the progress line first when it is too long: speeds have their own lines, and the
time left is also shown as the time of the end."""
_LABEL, _VALUE, _SCALE, _NOTE = 11, 10, 14, 26
_EVENTS: Span = ("last events", "dim")
_SHORT = {"throughput": "", "step": "step", "step_most": "max", "comm": "comm", "loader": "loader"}


@dataclass(frozen=True, slots=True)
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

    @property
    def chart(self) -> str:
        """The style of lines and areas."""
        return "bar" if self.quiet else "chart"

    def compared(self, measure: Measure) -> Comparison:
        """Now compared with before; not shown while a finding says what is wrong."""
        if self.quiet:
            return Comparison()
        last_run = against_last_run(self.snapshot) if measure is THROUGHPUT else None
        return compared(measure, self.history, self.until_unix_ns, last_run)


def strip_lines(facts: JobFacts, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """The strip in at most `height` lines of at most `width` columns."""
    measures = measured(facts.history, facts.until_unix_ns)
    if height <= 0 or width < 20:
        return []
    if height < LINE_LEAST:
        return [one_line(facts, measures, width, glyphs)]
    lines = [_head(facts, width, glyphs)]
    progress = progress_facts(facts.snapshot)
    if progress:
        lines.append(_progress_line(facts, progress, width, glyphs))
    charts = _charts(facts, measures, width, height - len(lines), glyphs)
    lines += charts or [_measure_line(facts, measure, width, glyphs) for measure in measures]
    room = height - len(lines) - 1
    if facts.events and room >= EVENTS_LEAST and not any(_EVENTS in line for line in lines):
        lines += [(), *_event_lines(facts, width, room, glyphs)]
    return [clip_line(line, width, glyphs.ellipsis) for line in lines[:height]]


def _head(facts: JobFacts, width: int, glyphs: Glyphs) -> Line:
    span = units.duration(span_ns(facts.history, facts.until_unix_ns) / units.SECOND_NS)
    notes = job_facts(facts.snapshot, facts.history)
    return rule_line(width, glyphs.rule, f"the last {span}", *notes)


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
    if measure.key == "gpu" and (text := gpus_text(facts.snapshot)):
        return text
    # A mean over the last seconds would show a speed that the job no longer has.
    still = facts.snapshot.still_since_unix_ns is not None
    value_of = facts.history.last if still else facts.history.now
    value = value_of(measure.field, facts.until_unix_ns)
    return units.NOT_MEASURED if value is None else measure.text(value)


def _bare(measure: Measure, value: float) -> str:
    """The value without its unit, which is shown beside it; the sign of a percentage stays."""
    return measure.text(value).split(" ")[0]


def _scale(facts: JobFacts, measure: Measure, values: Sequence[float | None]) -> float:
    whole = None
    if measure.key == "gpu_memory":
        whole = facts.history.now(lambda numbers: numbers.gpu_total_bytes, facts.until_unix_ns)
    return scale_top(
        measure, max((value for value in values if value is not None), default=0.0), whole
    )


def _line_of(facts: JobFacts, measure: Measure, cells: int) -> list[float | None]:
    until = facts.until_unix_ns
    return facts.history.line(measure.field, cells, span_ns(facts.history, until), until)


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
        label = _SHORT.get(measure.key, measure.label)
        text = f"{label} {_value(facts, measure)}".strip()
        if measure is not THROUGHPUT:
            parts.append(((text, "dim"),))
            continue
        line = _spark(measure, _line_of(facts, measure, max(width // 5, 8)), glyphs)
        parts += [((text, facts.style("")),), ((line, facts.chart),)]
        comparison = facts.compared(measure)
        parts += [
            ((text, "warning" if comparison.great else "dim"),) for text in comparison.texts[:1]
        ]
    parts += [((text, "dim"),) for text in progress_facts(facts.snapshot)]
    used = 0
    spans: list[Span] = []
    for part in parts:
        more = line_width(part) + (2 if spans else 0)
        if used + more > width:
            break
        spans += [("  ", ""), *part] if spans else [*part]
        used += more
    return tuple(spans)


def _spark(measure: Measure, values: Sequence[float | None], glyphs: Glyphs) -> str:
    low, high = scale_range(measure, values)
    last, spread = len(glyphs.levels) - 1, high - low or 1.0
    return "".join(
        " " if value is None else glyphs.levels[round((value - low) / spread * last)]
        for value in values
    )


def _measure_line(facts: JobFacts, measure: Measure, width: int, glyphs: Glyphs) -> Line:
    """`throughput  5.1 it/s  ▅▅▅▅▅▄▄  0-6  12 % slower than at 14:02`."""
    lead: list[Span] = [
        (fit(measure.label, _LABEL) + " ", "dim"),
        (fit(_value(facts, measure).split(",")[0], _VALUE, True), facts.style("")),
        ("  ", ""),
    ]
    room = width - line_width(lead)
    notes = _NOTE + 2 if room >= _NOTE + 2 + 20 else 0
    scale = _SCALE if room - notes - _SCALE >= 12 else 0
    cells = max(min(room - notes - scale, 120), 0)
    values = _line_of(facts, measure, cells)
    ends = " to ".join(_bare(measure, value) for value in scale_range(measure, values))
    text, style = _note(facts, measure, notes - 2) if notes else ("", "")
    return (
        *lead,
        (_spark(measure, values, glyphs), facts.chart),
        (fit(f" {ends}" if scale else "", scale), "dim"),
        (f"  {text}" if text else "", style),
    )


def _charts(
    facts: JobFacts, measures: Sequence[Measure], width: int, height: int, glyphs: Glyphs
) -> list[Line]:
    """The numbers as small charts side by side; none where there is no room."""
    if width < CHARTS_FROM or not measures:
        return []
    columns = max(min(width // CHART_COLUMNS, len(measures)), 1)
    bands = -(-len(measures) // columns)
    # A band has a line of titles, the areas and an empty line.
    rows = min((height - bands) // bands - 1, CHART_ROWS_MOST)
    if rows < 2:
        return []
    gap = 3
    wide = (width - gap * (columns - 1)) // columns
    lines: list[Line] = []
    blocks = [_chart(facts, measure, wide, rows, glyphs) for measure in measures]
    if len(measures) % columns:
        blocks.append(_events_block(facts, wide, rows, glyphs))
    for band in range(bands):
        row_of = blocks[band * columns : (band + 1) * columns]
        lines.append(())
        for row in range(rows + 1):
            spans: list[Span] = []
            for column, block in enumerate(row_of):
                spans += [(" " * gap, "")] if column else []
                spans += block[row]
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
    """A title, and an area from zero to a round number; both ends of the scale are at the right."""
    cells = width - 8
    values = _line_of(facts, measure, cells)
    top = _scale(facts, measure, values)
    name = f"{measure.label} "
    value = _value(facts, measure)
    text, style = _note(facts, measure, width - len(name) - cell_width(value) - 2)
    used = len(name) + cell_width(value) + len(text)
    title = (
        (name, "dim"),
        (value, facts.style("bold")),
        (" " * max(width - used, 0), ""),
        (text, style),
    )
    lines: list[Line] = [title]
    for row in range(rows):
        ends = {0: _bare(measure, top), rows - 1: "0"}
        area = area_row(values, top, rows - 1 - row, rows, glyphs)
        lines.append(
            ((area, "rule" if facts.quiet else "area"), (" " + fit(ends.get(row, ""), 7), "dim"))
        )
    return lines


def area_row(
    values: Sequence[float | None], top: float, row: int, rows: int, glyphs: Glyphs
) -> str:
    """One line of an area that is `rows` lines high; `row` is counted from the bottom."""
    steps = len(glyphs.levels) + 1

    def cell(value: float | None) -> str:
        if value is None:
            return " "
        # Zero is drawn as a thin foot: an empty column means that there is no value.
        height = max(round(min(max(value, 0.0) / top, 1.0) * rows * steps), 1) - row * steps
        if height <= 0:
            return " "
        return glyphs.full if height >= steps else glyphs.levels[height - 1]

    return "".join([cell(value) for value in values])


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
