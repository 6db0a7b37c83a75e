"""The numbers of a whole job, each compared with earlier values: the texts of the job strip.

`ddtop.ui.job_strip` does the layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from ddtop.diagnosis.finding import CRITICAL, WARNING
from ddtop.follow.history import Field, JobHistory, Then
from ddtop.model.facts import Snapshot, State
from ddtop.policy import Policy
from ddtop.present.numbers import only_waits
from ddtop.present.text import UNICODE, Glyphs, Line, Span, clean, line_width
from ddtop.words import units
from ddtop.words.sentences import number, only_steps, progress_parts

SPANS_S = (60, 120, 300, 600)
"""Time spans of the lines: the shortest one that has room for all values, at most ten minutes."""
LINE_SPREAD = 0.2
"""The smallest range of a line of one row, as a share of the largest value."""
LEAST_POINTS = 0.05
"""The same for shares, as a part of the whole."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a job.

    `top`: the largest possible value, None if not known. `share`: a part of a whole, whose changes
    are given in points. `more`, `less`: words for a change upwards and downwards.
    """

    key: str
    label: str
    field: Field
    text: Callable[[float], str]
    top: float | None = None
    share: bool = False
    more: str = "more"
    less: str = "less"


def _milliseconds(value: float) -> str:
    if value >= 9999.5:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 99.95 else f"{value:.1f} ms"


MEASURES = (
    Measure(
        "throughput",
        "throughput",
        lambda numbers: numbers.iterations_per_s,
        units.speed,
        more="faster",
        less="slower",
    ),
    Measure(
        "samples",
        "samples/s",
        lambda numbers: numbers.samples_per_s,
        number,
        more="faster",
        less="slower",
    ),
    Measure(
        "tokens",
        "tokens/s",
        lambda numbers: numbers.tokens_per_s,
        number,
        more="faster",
        less="slower",
    ),
    Measure(
        "step",
        "step p50",
        lambda numbers: numbers.step_ms,
        _milliseconds,
        more="longer",
        less="shorter",
    ),
    Measure(
        "step_most",
        "step max",
        lambda numbers: numbers.step_most_ms,
        _milliseconds,
        more="longer",
        less="shorter",
    ),
    Measure("comm", "comm wait", lambda numbers: numbers.comm_ratio, units.percent, 1.0, True),
    Measure(
        "loader", "loader wait", lambda numbers: numbers.loader_ratio, units.percent, 1.0, True
    ),
    Measure("gpu", "GPU use", lambda numbers: numbers.gpu_ratio, units.percent, 1.0, True),
    Measure(
        "gpu_memory",
        "GPU memory",
        lambda numbers: numbers.gpu_bytes,
        lambda value: units.size(int(value)),
    ),
    Measure("gpu_power", "GPU power", lambda numbers: numbers.gpu_watts, units.watts),
)
"""In the order of the screen."""
THROUGHPUT = MEASURES[0]


def measured(history: JobHistory, until_unix_ns: int) -> tuple[Measure, ...]:
    """The measures that have a value up to this moment."""
    points = [point.numbers for point in history.points(until_unix_ns)]
    return tuple(
        measure for measure in MEASURES if any(measure.field(point) is not None for point in points)
    )


def span_ns(history: JobHistory, until_unix_ns: int) -> int:
    """How much time the lines show."""
    began = history.began_unix_ns
    known_s = 0.0 if began is None else (until_unix_ns - began) / units.SECOND_NS
    return next((spans_ for spans_ in SPANS_S if known_s <= spans_), SPANS_S[-1]) * units.SECOND_NS


def scale_top(measure: Measure, highest: float, whole: float | None = None) -> float:
    """The upper end of a line's scale: a round number, so that it does not move with every value.

    `whole`: the largest possible value, if known.
    """
    if measure.top is not None:
        return measure.top
    if whole:
        return whole
    if highest <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(highest))
    return next(
        size * factor for factor in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if highest <= size * factor
    )


def scale_range(measure: Measure, values: Sequence[float | None]) -> tuple[float, float]:
    """The ends of a line of one row: its smallest and its largest value, but far enough apart that
    noise looks flat."""
    known = [value for value in values if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    spread = LINE_SPREAD if measure.share else LINE_SPREAD * high
    if high - low < spread:
        middle = (low + high) / 2
        low, high = middle - spread / 2, middle + spread / 2
    if measure.top is not None and high > measure.top:
        low, high = low - (high - measure.top), measure.top
    if low < 0:
        low, high = 0.0, high - low
    return low, high


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison with earlier values, as text, the most important part first. `great`: it is
    highlighted."""

    texts: tuple[str, ...] = ()
    great: bool = False


def compared(
    measure: Measure, history: JobHistory, until_unix_ns: int, last_run: float | None = None
) -> Comparison:
    """The current value compared with the start and with the last ten minutes: `12 % slower than at
    14:02`.

    `last_run`: by how much the job trains faster than the last run of its name, as a part of that
    run's speed (`against_last_run`); shown with the throughput. Empty while there is nothing to
    compare, or if nothing has changed; only for the throughput, "no change" is shown.
    """
    now = history.now(measure.field, until_unix_ns)
    start = history.at_start(measure.field, until_unix_ns)
    lately = history.recent_median(measure.field, until_unix_ns)
    if measure is not THROUGHPUT:
        last_run = None
    if now is None or (start is None and lately is None and last_run is None):
        return Comparison()
    policy, found = history.policy, []
    apart_ns = int(policy.job_apart_s * 1e9)
    if start is not None:
        found.append((start, f"than at {units.minute(start.unix_ns, until_unix_ns)}"))
    if lately is not None and (start is None or lately.unix_ns > start.unix_ns + apart_ns):
        found.append((lately, f"than in the last {policy.job_lately_s / 60:.0f} min"))
    changes = [(_change(measure, now, then, policy), when) for then, when in found]
    texts = [f"{text} {when}" for (text, _), when in changes if text]
    worst = min((change for (_, change), _ in changes), default=0.0)
    if last_run is not None and abs(last_run) >= policy.job_change_ratio:
        side = "above" if last_run > 0 else "below"
        # The comparison with the largest loss comes first.
        at = 0 if last_run < worst else len(texts)
        texts.insert(at, f"{_percent(last_run)} {side} the last run")
        worst = min(worst, last_run)
    if not texts and measure is THROUGHPUT:
        same = f"at {units.minute(found[0][0].unix_ns, until_unix_ns)}" if found else "the last run"
        return Comparison((f"as {same}",))
    great = measure is THROUGHPUT and worst <= -policy.slowdown_warning_ratio
    return Comparison(tuple(texts), great)


def _change(measure: Measure, now: float, then: Then, policy: Policy) -> tuple[str, float]:
    """(as text, empty for noise; as a share of the earlier value)."""
    if measure.share:
        points = now - then.value
        text = f"{abs(points) * 100:.0f} points {'more' if points > 0 else 'less'}"
        return (text if abs(points) >= policy.job_change_ratio else ""), points
    change = (now - then.value) / then.value if then.value > 0 else 0.0
    if abs(change) < policy.job_change_ratio:
        return "", change
    return f"{_percent(change)} {measure.more if change > 0 else measure.less}", change


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


def job_facts(snapshot: Snapshot, history: JobHistory) -> tuple[str, ...]:
    """Facts of the job, the most important first: time since its start, and since its last step."""
    now = snapshot.time_unix_ns
    found = []
    if snapshot.first_hello_unix_ns is not None and snapshot.live:
        since = (now - snapshot.first_hello_unix_ns) / units.SECOND_NS
        # Whole minutes from two minutes on, because a line that changes every second distracts.
        calm = since if since < 120 else since // 60 * 60
        found.append(f"started {units.duration(calm)} ago")
    stepped = history.stepped_unix_ns(now)
    # If the job makes no progress, the banner says since when.
    if stepped is not None and snapshot.live and snapshot.still_since_unix_ns is None:
        ago = (now - stepped) / units.SECOND_NS
        found.append(f"last step {units.duration(int(ago)) if ago >= 2 else '< 2 s'} ago")
    return tuple(found)


def progress_facts(snapshot: Snapshot) -> tuple[str, ...]:
    """Step, epoch, phase, speed, loss and the time of the end, as far as the program reports
    them."""
    progress = snapshot.progress
    if progress is None:
        return ()
    if not snapshot.live:
        return progress_parts(only_steps(progress))
    parts = tuple(clean(part) for part in progress_parts(progress))
    if progress.eta_s is None:
        return parts
    end = snapshot.time_unix_ns + int(progress.eta_s * units.SECOND_NS)
    return (*parts, f"done at {units.minute(end, snapshot.time_unix_ns)}")


# -- The line that shows which moment is on the screen, how far it is from the end, and the events
#    in between


BAR_COLUMNS_MIN = 12
BACK_KEY = "\\"
_ORDER = (WARNING, "gone", CRITICAL)
"""If two marks are in one column, the later one in this order is drawn."""


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
    first, last = span
    behind_s = max(last - at_unix_ns, 0) / units.SECOND_NS
    where = f"-{units.duration(behind_s)}" if round(behind_s) else "the end" if recording else "now"
    word = "recorded" if recording else "past"
    left: list[Span] = [
        (f"{word} {units.clock(at_unix_ns)}", "bold"),
        (f"  {where}", ""),
        (" ", ""),
    ]
    ends = "end" if recording else "now"
    right: list[Span] = [(f" {units.duration((last - first) / units.SECOND_NS)}", "dim")]
    keys: list[Span] = [
        ("  [ ]", "key"),
        (" 5 s ", "dim"),
        (" " + BACK_KEY, "key"),
        (f" {ends}", "dim"),
    ]
    for end in ([*right, *keys], right, []):
        room = width - line_width([*left, *end])
        if room >= BAR_COLUMNS_MIN or not end:
            break
    if room < BAR_COLUMNS_MIN:
        return tuple(left[:2])
    return (*left, *_bar(at_unix_ns, span, room, marks, glyphs), *end)


def _bar(
    at_unix_ns: int,
    span: tuple[int, int],
    columns: int,
    marks: Iterable[tuple[int, str]],
    glyphs: Glyphs,
) -> list[Span]:
    first, last = span

    def column(unix_ns: int) -> int:
        part = (unix_ns - first) / max(last - first, 1)
        return round(min(max(part, 0.0), 1.0) * (columns - 1))

    signs = {
        CRITICAL: glyphs.critical,
        WARNING: glyphs.warning,
        "gone": glyphs.states[State.EXITED],
    }
    cells: list[Span] = [(glyphs.rule, "rule")] * columns
    inside = [(at, what) for at, what in marks if at >= first and what in signs]
    for at, what in sorted(inside, key=lambda mark: _ORDER.index(mark[1])):
        cells[column(at)] = (signs[what], what)
    cells[column(at_unix_ns)] = (glyphs.full, "bold")
    return _joined(cells)


def _joined(cells: list[Span]) -> list[Span]:
    joined: list[Span] = []
    for text, style in cells:
        if joined and joined[-1][1] == style:
            joined[-1] = (joined[-1][0] + text, style)
        else:
            joined.append((text, style))
    return joined
