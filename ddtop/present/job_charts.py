"""The numbers of the whole job as charts, and its progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddtop.present.charts import LEAST_SPREAD, chart, dotted, scale, size_scale, with_scale
from ddtop.present.scene import Scene
from ddtop.present.strip import (
    GPU_WORK,
    LOSS,
    LOSS_SPREAD,
    MEMORY,
    THROUGHPUT,
    Measure,
    gpus_text,
    progress_facts,
    speed_facts,
)
from ddtop.present.text import Line, Span, cell_width, clip_line, fit, line_width
from ddtop.words import units

LINE_LEAST = 3
"""With at least so many free rows the strip has more than one line."""
_DROPPED = (" left", "lr ", "epoch ")
"""Left out of the progress line first when it is too long: the time left is also shown as the time
of the end."""
_LABEL = 11

Ends = tuple[float, float]


def progress_line(scene: Scene, shown: Sequence[Measure], width: int) -> Line:
    """How far the program is, without what these measures say; empty where it does not count."""
    told = (" samples/s", " tokens/s") if THROUGHPUT in shown else ()
    loss = ("loss ",) if LOSS in shown and scene.now.loss is not None else ()
    found = [
        text
        for text in progress_facts(scene.snapshot)
        if not text.endswith(told) and not text.startswith(loss)
    ]
    if not found:
        return ()
    for end in _DROPPED:
        if cell_width("  ".join(found)) <= width - _LABEL - 1:
            break
        found = [text for text in found if not text.endswith(end) and not text.startswith(end)]
    label: Span = (fit("progress", _LABEL) + " ", "dim")
    line: Line = (label, ("  ".join(found), scene.style("")))
    return clip_line(line, width, scene.glyphs.ellipsis)


def _value(scene: Scene, measure: Measure) -> str:
    # GPUs that only wait are as busy as those that work.
    if measure is GPU_WORK and (text := gpus_text(scene.snapshot)):
        return text
    value = measure.field(scene.now)
    return units.NOT_MEASURED if value is None else measure.text(value)


def chart_of(measure: Measure) -> Callable[[Scene, int, int], list[Line]]:
    """The panel of a measure: its name, its value now and before, the chart, and its axis."""

    def panel(scene: Scene, width: int, rows: int) -> list[Line]:
        values = scene.line(measure.field, width)
        # A job that has counted no step has no speed to draw.
        if all(value is None or (measure is THROUGHPUT and not value) for value in values):
            return []
        # Where there is a whole, it is at the upper end.
        whole = 1.0 if measure.share else scene.now.gpu_total_bytes if measure is MEMORY else None
        spread = LOSS_SPREAD if measure is LOSS else LEAST_SPREAD
        ends = size_scale(values) if measure.size else scale(values, not measure.line, spread)
        ends = (0.0, whole) if whole else ends
        return [
            title_of(scene, measure, width),
            *drawn(
                scene,
                lambda columns: scene.line(measure.field, columns),
                (ends, measure.text, measure.line),
                width,
                rows - 1,
                scene.span_ns(measure.field),
            ),
        ]

    return panel


def drawn(
    scene: Scene,
    values: Callable[[int], Sequence[float | None]],
    how: tuple[Ends, Callable[[float], str], bool],
    width: int,
    rows: int,
    span_ns: int,
) -> list[Line]:
    """A chart with its scale at the left and its axis below. `values`: for so many columns; `how`:
    the ends of its scale, how they are written, and whether it is a line; `span_ns`: the time that
    it shows."""
    ends, text, is_line = how
    low, high = (_short(text(end)) for end in ends)
    label = max(cell_width(low), cell_width(high))
    columns = width - label - 1
    if columns < 4 or rows < 2:
        return []
    draw = dotted if is_line else chart
    lines = draw(values(columns), ends, rows - 1, scene.glyphs, scene.quiet)
    axis = scene.axis(columns, span_ns)
    corner: Span = (" " * label + scene.glyphs.corner, "dim")
    return [*with_scale(lines, (low, high), label, scene.glyphs), (corner, *axis)]


def _short(text: str) -> str:
    """`30 it/s` for `30.0 it/s`, and `0` for `0 B`."""
    number, gap, unit = text.partition(" ")
    number = number.removesuffix(".0").removesuffix(".00")
    return "0" if number in ("0", "0%", "0B") else number + gap + unit


def title_of(scene: Scene, measure: Measure, width: int) -> Line:
    """The name of a measure, its value now, and compared with before."""
    last = "" if scene.snapshot.live else "at the end "
    name: Line = (
        (f"{measure.label} {last}", "dim"),
        (_value(scene, measure), scene.style("bold")),
    )
    if measure is not THROUGHPUT:
        return name
    used, comparison = line_width(name), scene.compared
    texts = list(comparison.texts)
    for fact in speed_facts(scene.now):
        more = f" {scene.glyphs.bullet} {fact}"
        if used + len(more) + len(next(iter(texts), "")) + 2 <= width:
            name, used = (*name, (more, scene.style(""))), used + len(more)
    while texts and len(", ".join(texts)) > width - used - 2:
        texts.pop()
    style = "warning" if comparison.great else "dim"
    return (*name, (fit(", ".join(texts), max(width - used, 0), True), style))
