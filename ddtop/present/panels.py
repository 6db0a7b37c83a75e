"""The panels below the ranks: which ones a finding asks for, and how they share the room.

A finding chooses its panels by its kind in one table. A kind without a row has the default ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ddtop.diagnosis.kinds import Kind
from ddtop.present.culprit import (
    gpu_panel,
    lanes_panel,
    log_panel,
    memory_panel,
    queue_panel,
    step_panel,
    waits_panel,
    where_panel,
)
from ddtop.present.findings import event_words
from ddtop.present.job_charts import (
    LINE_LEAST,
    chart_of,
    progress_line,
    title_of,
)
from ddtop.present.scene import Scene
from ddtop.present.strip import MEASURES, THROUGHPUT, measured
from ddtop.present.text import BETWEEN, Line, abreast, clip_line
from ddtop.words import units

TWO_FROM = 100
"""From so many columns on, two panels are side by side."""
CHART_ROWS_LEAST, CHART_ROWS_MOST = 5, 30
"""Rows of a chart with its title and its axis: with fewer rows of dots its height says nothing."""
TEXT_ROWS_MOST = 16
EVENTS_MOST = 8


class Panel(NamedTuple):
    """One panel. `make`: its lines, of so many columns and at most so many rows; none if there is
    nothing to show. `least`: with fewer rows it says nothing. `grows`: it takes rows that are left.
    """

    make: Callable[[Scene, int, int], list[Line]]
    least: int = 2
    grows: bool = False


def _events(scene: Scene, width: int, rows: int) -> list[Line]:
    """The last events."""
    shown = [row for row in scene.events if row.unix_ns <= scene.snapshot.time_unix_ns]
    glyphs = scene.glyphs
    return [
        clip_line(
            ((units.clock(row.unix_ns) + "  ", "dim"), (f"{mark} {text}", scene.style(""))),
            width,
            glyphs.ellipsis,
        )
        for row in shown[-min(rows, EVENTS_MOST) :]
        for mark, text in [event_words(row, glyphs)]
    ]


LANES = Panel(lanes_panel, 4)
WHERE, WAITS, STEP = Panel(where_panel), Panel(waits_panel, 3), Panel(step_panel, 3)
GPU, EVENTS, LOG = Panel(gpu_panel), Panel(_events, 1), Panel(log_panel, 2)
MEMORY, QUEUE = (Panel(make, CHART_ROWS_LEAST, True) for make in (memory_panel, queue_panel))
JOB = tuple(Panel(chart_of(measure), CHART_ROWS_LEAST, True) for measure in MEASURES)
SPEED, *_, RSS = JOB

OF_KIND: Mapping[str, tuple[Panel, ...]] = {
    Kind.STRAGGLER: (STEP, WHERE, SPEED, GPU, EVENTS),
    Kind.SLOWDOWN: (SPEED, WHERE, EVENTS),
    Kind.INPUT_BOUND: (QUEUE, WHERE, SPEED, EVENTS),
    Kind.LOADER_STUCK: (WHERE, WAITS, QUEUE, SPEED, EVENTS),
    Kind.RANK_KILLED: (MEMORY, WHERE, LOG, SPEED, EVENTS),
    Kind.RANK_CRASHED: (WHERE, LOG, SPEED, MEMORY, EVENTS),
    Kind.MEMORY_PRESSURE: (MEMORY, WHERE, SPEED, EVENTS),
    Kind.GPU_THROTTLED: (GPU, STEP, SPEED, EVENTS),
    Kind.GPU_ERROR: (GPU, WHERE, SPEED, EVENTS),
    Kind.GPU_BUSY: (GPU, SPEED, EVENTS),
    Kind.GPU_SHARED: (GPU, SPEED, EVENTS),
    Kind.GPU_MEMORY_LOW: (GPU, SPEED, EVENTS),
}
"""The panels of a kind, the most important first; the others have `DEFAULT`."""
DEFAULT = (WHERE, WAITS, LOG, SPEED, MEMORY, EVENTS)
MORE = (MEMORY, QUEUE, *JOB[1:-1])
"""What follows the panels of a finding where there is room."""
CALM = (*JOB[:-1], EVENTS, RSS)


def panels_for(scene: Scene) -> tuple[Panel, ...]:
    """The panels of the worst finding, or those of a healthy job."""
    finding = scene.finding
    if finding is None:
        return CALM
    chosen = OF_KIND.get(finding.kind, DEFAULT)
    return (LANES, *chosen, *(panel for panel in MORE if panel not in chosen))


def panel_lines(scene: Scene, width: int, height: int) -> list[Line]:
    """What is below the ranks, in at most `height` lines of at most `width` columns."""
    if height <= 0 or width < 20:
        return []
    if height < LINE_LEAST:
        return [title_of(scene, THROUGHPUT, width)]
    # What is wrong is told in these rows instead.
    calm = scene.finding is None
    told = measured(scene.history, scene.until_unix_ns) if calm else ()
    progress = progress_line(scene, told, width)
    head = [progress] if progress and (calm or height > TEXT_ROWS_MOST) else []
    if calm and height - len(head) < CHART_ROWS_LEAST:
        head.append(title_of(scene, THROUGHPUT, width))
    lines = [*head, *_laid_out(scene, width, height - len(head))]
    return [clip_line(line, width, scene.glyphs.ellipsis) for line in lines[:height]]


class _Band(NamedTuple):
    """Panels side by side: each with its width, and the rows that the highest takes."""

    panels: tuple[tuple[Panel, int], ...]
    rows: int


def _laid_out(scene: Scene, width: int, height: int) -> list[Line]:
    """As many panels as there is room for; charts share the rows that are left."""
    columns = 2 if width >= TWO_FROM else 1
    bands: list[_Band] = []
    left = height
    waiting = [panel for panel in panels_for(scene) if panel.make(scene, width, panel.least)]
    while waiting := [panel for panel in waiting if panel.least <= left]:
        first, *rest = waiting
        # A chart beside a text leaves the place below the text empty.
        alike = [panel for panel in rest if panel.grows == first.grows] or rest
        parted = columns if rest and first is not LANES else 1
        panels = [first, *alike[: parted - 1]]
        waiting = [panel for panel in waiting if panel not in panels]
        wide = (width - BETWEEN * (parted - 1)) // parted
        room = min(left, TEXT_ROWS_MOST)
        rows = max(
            panel.least if panel.grows else len(panel.make(scene, wide, room)) for panel in panels
        )
        if rows <= left and rows >= max(panel.least for panel in panels):
            bands.append(_Band(tuple((panel, wide) for panel in panels), rows))
            left -= rows + 1
    left += bool(bands)
    growing = [at for at, band in enumerate(bands) if any(panel.grows for panel, _ in band.panels)]
    for number, at in enumerate(growing):
        more = min(max(left, 0) // (len(growing) - number), CHART_ROWS_MOST - bands[at].rows)
        bands[at] = bands[at]._replace(rows=bands[at].rows + max(more, 0))
        left -= max(more, 0)
    lines: list[Line] = []
    for band in bands:
        made = [panel.make(scene, wide, band.rows) for panel, wide in band.panels]
        lines += [*([()] if lines else []), *abreast(made, band.panels[0][1], scene.glyphs)]
    return lines
