"""The numbers of a whole job, each compared with earlier values: the texts of the job strip.

`ddtop.present.job_charts` draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median

import msgspec

from ddtop.diagnosis.finding import CRITICAL, WARNING
from ddtop.follow.history import Field, JobHistory, Numbers
from ddtop.follow.tape import SHOWN
from ddtop.model.facts import Snapshot, State
from ddtop.present.charts import joined
from ddtop.present.numbers import only_waits
from ddtop.present.text import UNICODE, Glyphs, Line, Span, cell_width, clean, line_width
from ddtop.words import units
from ddtop.words.sentences import loss_text, number, only_steps, progress_parts

SPAN_LEAST_S, SPAN_MOST_S = 10, 600
SPAN_STEPS_S = ((60, 2), (180, 5), (SPAN_MOST_S, 30))
"""Up to so many seconds the time span of the charts grows in steps of so many: a chart that changed
its span at every value would move all the time, and one with few steps leaves its place empty."""
LOSS_SPREAD = 0.02
"""A change of the loss by so much, as a share, is more than noise."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a job.

    `share`: a part of a whole. `line`: its changes are small, so it is a line and not an area.
    `size`: bytes.
    """

    label: str
    field: Field
    text: Callable[[float], str]
    share: bool = False
    line: bool = False
    size: bool = False


def milliseconds_text(value: float) -> str:
    """`199 ms`, `23.4 ms`, `12.1 s`."""
    if value >= 9999.5:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 99.95 else f"{value:.1f} ms"


MEASURES = (
    Measure(
        "speed",
        lambda numbers: numbers.iterations_per_s,
        units.speed,
    ),
    Measure("loss", lambda numbers: numbers.loss, loss_text, line=True),
    Measure("GPU work", lambda numbers: numbers.gpu_ratio, units.percent, share=True),
    Measure(
        "GPU memory",
        lambda numbers: numbers.gpu_bytes,
        lambda value: units.long_size(int(value)),
        size=True,
    ),
    Measure("GPU power", lambda numbers: numbers.gpu_watts, units.watts),
    Measure(
        "memory of the largest rank",
        lambda numbers: numbers.rss_bytes,
        lambda value: units.long_size(int(value)),
        size=True,
    ),
)
"""In the order of the screen."""
THROUGHPUT, LOSS, GPU_WORK, MEMORY, *_ = MEASURES


def measured(history: JobHistory, until_unix_ns: int) -> tuple[Measure, ...]:
    """The measures that have a value up to this moment."""
    points = [point.numbers for point in history.points(until_unix_ns)]
    return tuple(
        measure for measure in MEASURES if any(measure.field(point) is not None for point in points)
    )


def span_ns(history: JobHistory, until_unix_ns: int, field: Field) -> int:
    """How much time the chart of this number shows: since it was first measured."""
    points = history.points(until_unix_ns)
    began = next((point.unix_ns for point in points if field(point.numbers) is not None), None)
    known_s = 0.0 if began is None else (until_unix_ns - began) / units.SECOND_NS
    known_s = min(max(known_s, SPAN_LEAST_S), SPAN_MOST_S)
    step_s = next(step_s for most_s, step_s in SPAN_STEPS_S if known_s <= most_s)
    return -int(-known_s // step_s) * step_s * units.SECOND_NS


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison with earlier values, as text, the most important part first. `great`: it is
    highlighted."""

    texts: tuple[str, ...] = ()
    great: bool = False


def compared(history: JobHistory, until_unix_ns: int, last_run: float | None = None) -> Comparison:
    """The speed now compared with the start and with the last ten minutes: `12 % slower than at
    14:02`. Empty while there is nothing to compare.

    `last_run`: by how much the job trains faster than the last run of its name, as a part of that
    run's speed (`against_last_run`).
    """
    now = THROUGHPUT.field(history.now(until_unix_ns))
    start = history.at_start(THROUGHPUT.field, until_unix_ns)
    lately = history.recent_median(THROUGHPUT.field, until_unix_ns)
    if now is None or (start is None and lately is None and last_run is None):
        return Comparison()
    policy, found = history.policy, []
    if start is not None:
        found.append((start, f"than at {units.minute(start.unix_ns, until_unix_ns)}"))
    apart_ns = int(policy.job_apart_s * 1e9)
    if lately is not None and (start is None or lately.unix_ns > start.unix_ns + apart_ns):
        found.append((lately, f"than in the last {policy.job_lately_s / 60:.0f} min"))
    changes = [
        ((now - then.value) / then.value if then.value > 0 else 0.0, when) for then, when in found
    ]
    texts = [
        f"{_percent(change)} {'faster' if change > 0 else 'slower'} {when}"
        for change, when in changes
        if abs(change) >= policy.job_change_ratio
    ]
    worst = min((change for change, _ in changes), default=0.0)
    if last_run is not None and abs(last_run) >= policy.job_change_ratio:
        side = "above" if last_run > 0 else "below"
        # The comparison with the largest loss comes first.
        texts.insert(
            0 if last_run < worst else len(texts), f"{_percent(last_run)} {side} the last run"
        )
        worst = min(worst, last_run)
    if not texts:
        since = units.minute(found[0][0].unix_ns, until_unix_ns) if found else "the last run"
        texts.append(f"unchanged since {since}")
    return Comparison(tuple(texts), worst <= -policy.slowdown_warning_ratio)


def _percent(change: float) -> str:
    return f"{min(abs(change) * 100, 999):.0f} %"


def against_last_run(snapshot: Snapshot) -> float | None:
    """By how much the job trains faster than the last run of its name did at its end, as a part of
    that speed; the median of the ranks. None while one of the speeds is not known."""
    last = snapshot.last_run
    if last is None or last.per_s <= 0:
        return None
    paces = [rank.progress.pace for rank in snapshot.ranks if rank.progress.pace is not None]
    now = [pace.now.per_s for pace in paces if pace.now.unit == last.unit]
    return median(now) / last.per_s - 1 if now else None


def gpus_text(snapshot: Snapshot) -> str:
    """`63 wait, 1 idle`, the GPUs of the ranks by what they do; empty while none only waits."""
    own = [rank for rank in snapshot.ranks if rank.gpu.own is not None and not rank.gone]
    waits = sum(map(only_waits, own))
    idle = sum(rank.gpu.own is not None and rank.gpu.own.gpu.util_ratio == 0 for rank in own)
    counts = ((waits, "wait"), (idle, "idle"), (len(own) - waits - idle, "work"))
    return ", ".join(f"{count:,} {word}" for count, word in counts if count) if waits else ""


def speed_facts(now: Numbers) -> list[str]:
    """The speed in other units: `5,279 samples/s`, `step 194 ms, max 199`."""
    # What a program has counted last is not the speed of a job that stands still.
    stands = now.iterations_per_s == 0.0
    counted = ((now.samples_per_s, "samples/s"), (now.tokens_per_s, "tokens/s"))
    found = [
        f"{number(value)} {unit}" for value, unit in counted if value is not None and not stands
    ]
    if now.iterations_per_s:
        step, most = milliseconds_text(1000 / now.iterations_per_s), now.step_most_ms
        longest = "" if most is None else f", max {milliseconds_text(most)}"
        # The same unit is not said twice.
        found.append(f"step {step}{longest.removesuffix(step[step.index(' ') :])}")
    return found


def progress_facts(snapshot: Snapshot) -> tuple[str, ...]:
    """Step, epoch, phase, speed, loss and the time of the end, as far as the program reports
    them.

    The header has the number of the iteration, so this line has only the part that is done.
    """
    progress = snapshot.progress
    if progress is None:
        return ()
    if not snapshot.live:
        progress = only_steps(progress)
    done = ""
    if progress.step is not None and snapshot.iteration is not None:
        total = progress.total_steps
        done = f"{number(progress.step / total * 100)}% of {total:,} steps" if total else ""
        progress = msgspec.structs.replace(progress, step=None)
    parts = tuple(clean(part) for part in (done, *progress_parts(progress)) if part)
    if progress.eta_s is None:
        return parts
    end = snapshot.time_unix_ns + int(progress.eta_s * units.SECOND_NS)
    return (*parts, f"done at {units.minute(end, snapshot.time_unix_ns)}")


# -- The line that shows which moment is on the screen, how far it is from the end, and the events
#    in between


BAR_COLUMNS_MIN = 12
BACK_KEY = "\\"
_MARKS = {
    WARNING: "warning",
    "gone": "gone",
    SHOWN: "critical",
    CRITICAL: "critical",
    "here": "bold",
}
"""The marks and their styles. If two are in one column, the later one in this order is drawn."""


def scrubber_line(
    at_unix_ns: int,
    span: tuple[int, int],
    width: int,
    *,
    recording: bool,
    marks: Iterable[tuple[int, str]] = (),
    glyphs: Glyphs = UNICODE,
) -> Line:
    """The line in `width` columns. If there is no room, parts are left out from the right; the
    moment is always shown.

    `span`: first and last moment; `recording`: the last moment is the end, not now.
    """
    left, room, end = _around_bar(at_unix_ns, span, width, recording, glyphs)
    if room < BAR_COLUMNS_MIN:
        return tuple(left[:2])
    return (*left, *joined(_bar(span, room, [*marks, (at_unix_ns, "here")], glyphs)), *end)


def moment_under(
    x: int, at_unix_ns: int, span: tuple[int, int], width: int, *, recording: bool
) -> int | None:
    """The moment (unix ns) under that column of the line; None beside its bar."""
    left, room, _ = _around_bar(at_unix_ns, span, width, recording, UNICODE)
    at = x - line_width(left)
    if room < BAR_COLUMNS_MIN or not 0 <= at < room:
        return None
    return span[0] + (span[1] - span[0]) * at // (room - 1)


def _around_bar(
    at_unix_ns: int, span: tuple[int, int], width: int, recording: bool, glyphs: Glyphs
) -> tuple[list[Span], int, list[Span]]:
    """What is left of the bar, the columns that it has, and what is right of it."""
    first, last = span
    behind_s = max(last - at_unix_ns, 0) / units.SECOND_NS
    where = f"-{units.duration(behind_s)}" if round(behind_s) else "the end" if recording else "now"
    word = "recorded" if recording else "past"
    left: list[Span] = [
        (f"{word} {units.clock(at_unix_ns)}", "bold"),
        (f"  {where}", ""),
        (" ", ""),
    ]
    right: list[Span] = [(f" {units.duration((last - first) / units.SECOND_NS)}", "dim")]
    keys: list[Span] = [
        ("  [ ]", "key"),
        (" 5 s ", "dim"),
        (" ( )", "key"),
        (f" {glyphs.critical} ", "dim"),
        (" " + BACK_KEY, "key"),
        (" end" if recording else " now", "dim"),
    ]
    for end in ([*right, *keys], right, []):
        room = width - line_width([*left, *end])
        if room >= BAR_COLUMNS_MIN:
            break
    return left, room, end


def _bar(
    span: tuple[int, int], columns: int, marks: Iterable[tuple[int, str]], glyphs: Glyphs
) -> list[Span]:
    first, last = span

    def column(unix_ns: int) -> int:
        part = (unix_ns - first) / max(last - first, 1)
        return round(min(max(part, 0.0), 1.0) * (columns - 1))

    signs = {
        CRITICAL: glyphs.critical,
        WARNING: glyphs.warning,
        "gone": glyphs.states[State.EXITED],
        SHOWN: glyphs.down,
        "here": glyphs.full,
    }
    cells: list[Span] = [(glyphs.rule, "rule")] * columns
    inside = [(at, what) for at, what in marks if first <= at <= last and what in signs]
    for at, what in sorted(inside, key=lambda mark: list(_MARKS).index(mark[1])):
        cells[column(at)] = (signs[what], _MARKS[what])
    return cells


def axis_line(
    span: tuple[int, int],
    columns: int,
    marks: Iterable[tuple[int, str]],
    glyphs: Glyphs = UNICODE,
    end: str = "now",
) -> Line:
    """The axis of a chart that is so wide up to now: how long ago it begins, `marks` at their
    moments, and `now`, or what its end is called. A mark near one of its ends stands beside the
    text there."""
    began = f"-{units.duration((span[1] - span[0]) / units.SECOND_NS)} "
    end, room = f" {end}", columns - cell_width(began) - 4
    if room < 1:
        return ((began[:columns].ljust(columns), "dim"),)
    before, whole = len(began) * (span[1] - span[0]) // columns, span[1] - span[0]
    inside = (span[0] + before, span[1] - len(end) * whole // columns)
    held = [(min(max(at, inside[0]), inside[1]), what) for at, what in marks if at >= span[0]]
    return ((began, "dim"), *joined(_bar(inside, room, held, glyphs)), (end, "dim"))
