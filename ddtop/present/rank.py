"""Everything that is known about one rank: its page, its time, and what can be copied of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ddtop.diagnosis.finding import Verdict
from ddtop.follow.history import Memory
from ddtop.model.facts import RankFacts, Snapshot
from ddtop.model.progress import as_it_stands
from ddtop.model.stacks import merge
from ddtop.present.charts import chart, scale
from ddtop.present.gpus import gpu_lines, gpu_title
from ddtop.present.groups import group_label, what_moves
from ddtop.present.hosts import clock_words
from ddtop.present.now import (
    heard_age_s,
    now_age_s,
    now_text,
    open_call_text,
    place_text,
    spot_text,
    waits_text,
)
from ddtop.present.numbers import state_text
from ddtop.present.stacks import Around, Shape, exception_of, stacks_lines, traceback_lines
from ddtop.present.text import (
    ACTIVITY_LETTERS,
    ASCII,
    LABEL,
    STATE_MEANINGS,
    UNICODE,
    Glyphs,
    Line,
    Page,
    clean,
    phases,
    plain,
    state_style,
)
from ddtop.thresholds import chosen
from ddtop.wire.records import (
    ACTIVITIES,
    Collective,
    Expectation,
    Place,
    TrainingProgress,
    by_function,
)
from ddtop.words import units
from ddtop.words.sentences import (
    collective_text,
    exit_text,
    file_line,
    framework_text,
    function_text,
    phase_text,
    progress_text,
    ranks_text,
    rpc_text,
    stage_text,
)
from ddtop.words.sentences import number as number_text

# -- Where a rank's time goes: its phases as a bar of letters and as numbers, its functions, and
#    the ranks that wait for it


BAR_MOST = 50
_NAMES = {"cuda_sync": "CUDA sync"}
_SPOT_LEAST_RATIO = 0.02


def time_lines(page: Page, _: Snapshot, rank: RankFacts) -> None:
    """Add the section, if there are samples."""
    shares = rank.reported.activity_ratios
    if not any(shares) and not rank.reported.spots and rank.late is None:
        return
    page.heading("where its time goes")
    if any(shares):
        # Letters, so that the bar tells as much without colours.
        page.item("activities", phases(shares, max(min(page.width - 2 - LABEL - 2, BAR_MOST), 0)))
        named = [
            f"{letter} {_NAMES.get(name, name)} {units.percent(share)}"
            for letter, name, share in zip(ACTIVITY_LETTERS, ACTIVITIES, shares, strict=False)
            if share > 0
        ]
        page.item("", ", ".join(named))
    if rank.late is not None:
        cost = (
            f"{units.milliseconds(rank.late.cost_ms)} ms of each"
            f" {units.milliseconds(rank.late.step_ms)} ms"
        )
        page.item("waited for", f"{cost}, by {ranks_text(rank.late.waiters, 8)}", "warning")
    pressure = rank.process.pressure
    if pressure is not None and pressure.delay_ratio is not None:
        delayed = units.percent(pressure.delay_ratio)
        page.item("no CPU", f"{delayed} of the time ready to run, but waiting for one")
    for number, spot in enumerate(by_function(rank.reported.spots)):
        share = spot.samples / rank.reported.spots_samples if rank.reported.spots_samples else 0.0
        if share >= _SPOT_LEAST_RATIO:
            page.item(
                "last 30 s" if number == 0 else "", f"{units.percent(share)} {spot_text(spot)}"
            )


# -- Everything that is known about one rank, as a page: for the side pane and for the screen of
#    the rank


RANGE = 18
"""Columns for the least and the largest value of a line: `1196.0 to 12020.0`."""
RANGED_FROM = 40
"""If the sparkline has fewer columns than this beside its range, the range is left out."""
SERIES_LABEL = 9
PROCESS_STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits in the kernel, cannot be interrupted",
    "T": "stopped",
    "t": "stopped by a debugger",
    "Z": "ended, not yet reaped",
    "I": "idle",
}


def detail_lines(
    snapshot: Snapshot,
    number: int,
    memory: Memory,
    width: int,
    glyphs: Glyphs = UNICODE,
    brief: bool = False,
) -> list[Line]:
    """The page of one rank, lines of at most `width` columns. `brief`: beside the table, where one
    cannot scroll to its end; its stack comes first, and what other views have is left out."""
    rank, page = snapshot.rank(number), Page(width, glyphs)
    stack = (_exception, _stacks)
    counts = (_progress, _pace, _place, time_lines)
    process = (_loader, gpu_lines, _process)
    end = (_collectives, _groups, *process, *stack, _agent, _environment)
    _title(page, snapshot, rank)
    for add in stack if brief else ():
        add(page, snapshot, rank)
    _series(page, rank, memory)
    for add in (*counts, *(process if brief else end)):
        add(page, snapshot, rank)
    return page.lines


def _ago(snapshot: Snapshot, since_unix_ns: int | None) -> str:
    if since_unix_ns is None:
        return ""
    return units.duration((snapshot.time_unix_ns - since_unix_ns) / units.SECOND_NS)


def _title(page: Page, snapshot: Snapshot, rank: RankFacts) -> None:
    hello = rank.hello
    page.add(
        (f"rank {rank.rank}", "title"),
        ("  ", ""),
        (state_text(rank.state, page.glyphs), state_style(rank)),
        (f"  {STATE_MEANINGS[rank.state]}", "dim"),
    )
    if hello is not None:
        where = f"{clean(hello.host)}  pid {hello.pid}"
        local = "" if hello.local_rank is None else f"  local rank {hello.local_rank}"
        page.add((where + local, ""))
        if hello.role:
            page.add((clean(hello.role), ""))
    if rank.comm.rpc is not None:
        page.add((clean(rpc_text(rank.comm.rpc)), ""))
    age = now_age_s(rank, snapshot.time_unix_ns)
    style = state_style(rank)
    doing = now_text(rank) + (
        f", for {units.duration(age)}" if age is not None and age >= 1 else ""
    )
    page.text(doing, "" if style == "dim" else style)
    gpu_title(page, snapshot, rank)


def _series(page: Page, rank: RankFacts, memory: Memory) -> None:
    loader = rank.loader.report
    ready = (
        "-"
        if loader is None or loader.depth is None
        else f"{loader.depth}/{loader.capacity or '?'}"
    )
    step = (
        "-"
        if rank.progress.step_now_ms is None
        else f"{units.milliseconds(rank.progress.step_now_ms)} ms"
    )
    shown: Sequence[tuple[str, Sequence[float | None], str, Callable[[float], str]]] = (
        ("step", memory.step_ms, step, units.milliseconds),
        ("waiting", memory.wait_ratio, units.percent(rank.comm.wait_ratio), units.percent),
        ("loader", memory.loader_depth, ready, lambda value: f"{value:.0f}"),
        (
            "memory",
            memory.rss_bytes,
            units.long_size(rank.process.rss_bytes),
            lambda value: units.size(int(value)),
        ),
    )
    page.blank()
    # Fixed widths keep the columns in place: values before the sparkline, the range after it.
    most = max(len(series) for _, series, _, _ in shown)
    room = page.width - 2 - SERIES_LABEL - 11
    ranged = room - 2 - RANGE >= RANGED_FROM
    cells = max(min(room - 2 - RANGE if ranged else room, most), 0)
    for label, series, value, text in shown:
        drawn = list(series)[-cells:] if cells else []
        # Noise of a share would look like mountains.
        ends = (0.0, 1.0) if series is memory.wait_ratio else scale(drawn)
        (line,) = chart(drawn, ends, glyphs=page.glyphs)
        page.add(
            (f"  {label:<{SERIES_LABEL}}", "dim"),
            (f"{value:>9}  ", ""),
            *line,
            (" " * (cells - len(drawn)), ""),
            (_range(drawn, text) if ranged else "", "dim"),
        )
    if cells > 1:
        page.add(
            (f"  {'':<{SERIES_LABEL}}{'':>9}  one value a second, {units.duration(cells)}", "dim")
        )


def _range(series: Sequence[float | None], text: Callable[[float], str]) -> str:
    """The least and the largest value; empty while there are fewer than two."""
    known = [value for value in series if value is not None]
    return f"  {text(min(known))} to {text(max(known))}" if len(known) > 1 else ""


def _progress(page: Page, snapshot: Snapshot, rank: RankFacts) -> None:
    """The progress that its framework counts."""
    progress, region = rank.progress.training, rank.progress.expected
    if progress is None and region is None:
        return
    expected = _expected(snapshot, region) if region is not None else ""
    page.heading("progress", ("expected", clean(expected)))
    if progress is None:
        return
    training = as_it_stands(progress, snapshot.is_still, snapshot.time_unix_ns)
    counts = msgspec.structs.replace(training, phase=None)
    per_s = training.steps_per_s
    page.items(
        (clean(progress.source), clean(progress_text(counts))),
        ("phase", clean(_phase(snapshot, progress)) if progress.phase is not None else ""),
        ("steps/s", number_text(per_s) if per_s is not None else ""),
    )


def _expected(snapshot: Snapshot, region: Expectation) -> str:
    """`'export', for 3 min; up to 10 min`."""
    limit_s = (region.until_unix_ns - region.since_unix_ns) / 1e9
    since = _ago(snapshot, region.since_unix_ns)
    return f"'{region.name}', for {since}; up to {units.duration(limit_s)}"


def _pace(page: Page, snapshot: Snapshot, rank: RankFacts) -> None:
    """Its step time now, compared with before."""
    pace = rank.progress.pace
    if pace is None:
        return
    known = (
        ("ten minutes ago", pace.before),
        ("at its start", pace.start),
        ("in the last run", snapshot.last_run),
    )
    then = [
        f"{number_text(speed.per_s)} {when}"
        for when, speed in known
        if speed and speed.unit == pace.now.unit
    ]
    now = f"{number_text(pace.now.per_s)} {clean(pace.now.unit)}/s of training"
    page.item("speed", "; ".join([now, *then]))


def _phase(snapshot: Snapshot, progress: TrainingProgress) -> str:
    """`saving a checkpoint, 12 s; usually 35 s`."""
    text = phase_text(progress.phase or "")
    if progress.since_unix_ns is not None:
        text += f", for {_ago(snapshot, progress.since_unix_ns)}"
    usual = progress.usual_s
    return text + (f"; usually {units.duration(usual)}" if usual is not None else "")


def _place(page: Page, snapshot: Snapshot, rank: RankFacts) -> None:
    if rank.reported.place is None and not rank.comm.open_calls:
        return
    page.heading("where it is")
    place = rank.reported.place
    if place is not None:
        page.items(
            ("function", clean(function_text(place) + framework_text(place, whole=True))),
            ("line", clean(f"{place.file}:{place.line}")),
            ("waits on", waits_text(place) or ""),
            ("calls", clean(place.callee or "")),
            ("there for", _there_for(snapshot, place)),
        )
    for call in rank.comm.open_calls:
        tag = "" if call.tag is None else f", tag {call.tag}"
        page.item("in call", f"{open_call_text(call)}{tag}, {_ago(snapshot, call.since_unix_ns)}")
    page.item(
        "activity",
        clean(rank.reported.phase)
        + (f", {clean(rank.reported.activity)}" if rank.reported.activity else ""),
    )


def _there_for(snapshot: Snapshot, place: Place) -> str:
    """A loop never leaves its function: if the line is more recent than the function, both
    durations are shown."""
    function, line = place.since_unix_ns, place.line_since_unix_ns
    if line is None or function is None or line - function < units.SECOND_NS:
        return _ago(snapshot, function)
    return (
        f"{_ago(snapshot, line)} on this line, {_ago(snapshot, function)} in"
        f" {clean(place.function)}"
    )


def _collectives(page: Page, snapshot: Snapshot, rank: RankFacts) -> None:
    newest = sorted(
        rank.comm.retired_collectives, key=lambda collective: (collective.group, collective.seq)
    )[-4:]
    wait = rank.wait
    if (
        wait is not None
        and snapshot.time_unix_ns - wait.since_unix_ns < chosen().wait_shown_s * units.SECOND_NS
    ):
        # This is the rhythm of training: a text that comes and goes with every look tells nothing.
        wait = None
    if not rank.comm.open_collectives and not newest and wait is None:
        return
    page.heading("collectives")
    if wait is not None:
        foreign = getattr(snapshot.group(wait.group), "foreign", None) is not None
        nobody = "processes outside this job" if foreign else "nobody: all have joined"
        whom = ranks_text(wait.behind, 8) if wait.behind else nobody
        since = _ago(snapshot, wait.since_unix_ns)
        page.item(
            "waits for", f"{whom}, {since}, in {group_label(snapshot, wait.group)}", "blocked"
        )
    for collective in rank.comm.open_collectives:
        page.item("open", _collective(snapshot, collective))
        page.item("", _deadline(snapshot, collective), "dim")
    for region in reversed(newest):
        page.item("before", _collective(snapshot, region), "dim")
    longest_ms = rank.comm.healthy_wait_max_ms
    if longest_ms is not None:
        page.item("longest wait", f"{units.milliseconds(longest_ms)} ms in the last 100 steps")


def _collective(snapshot: Snapshot, collective: Collective) -> str:
    text = clean(
        collective_text(collective.op, collective.seq, group_label(snapshot, collective.group))
    )
    return f"{text}, {clean(collective.state)} {what_moves(collective)}".strip()


def _deadline(snapshot: Snapshot, collective: Collective) -> str:
    if collective.timeout_ms is None or collective.created_unix_ns is None:
        return ""
    age_s = (snapshot.time_unix_ns - collective.created_unix_ns) / units.SECOND_NS
    left = collective.timeout_ms / 1000 - age_s
    timeout = f"torch's timeout is {units.duration(collective.timeout_ms / 1000)}"
    return f"{timeout}, {units.duration(left)} left" if left > 0 else f"{timeout}, and has passed"


def _groups(page: Page, snapshot: Snapshot, rank: RankFacts) -> None:
    if not rank.comm.groups:
        return
    runs = (("runs", clean(stage_text(stage))) for stage in rank.comm.pipeline)
    page.heading("groups", ("place", place_text(snapshot, rank)), *runs)
    rows = [
        (
            group_label(snapshot, group.group),
            units.count(group.enqueued),
            units.count(group.completed),
            clean(group.last_op or "-"),
            _ago(snapshot, group.pending_since_unix_ns) or "-",
        )
        for group in rank.comm.groups
    ]
    page.table(
        ("group", "enqueued", "completed", "last", "open for"),
        rows,
        (False, True, True, False, True),
    )


def _loader(page: Page, snapshot: Snapshot, rank: RankFacts) -> None:
    loader = rank.loader.report
    if loader is None:
        return
    workers, ready = "none: batches are made in the main thread", ""
    if loader.workers != 0:
        alive = "" if loader.workers_alive is None else f", {loader.workers_alive} alive"
        ahead = loader.prefetch_factor
        each = "" if ahead is None else f", {ahead} batches ahead each"
        workers = f"{loader.workers}{alive}{each}"
        ready = "-" if loader.depth is None else f"{loader.depth} of {loader.capacity or '?'}"
    pinned = {True: "yes", False: "no", None: ""}[loader.pin_memory]
    waits, ratio = _ago(snapshot, loader.waiting_since_unix_ns), rank.loader.wait_ratio
    if waits and loader.owing_pid is not None:
        waits += f", worker pid {loader.owing_pid} must deliver it"
    if waits and loader.owing_state is not None:
        waits += f" (state {_process_state(loader.owing_state)})"
    page.heading(
        "loader",
        ("workers", workers),
        ("ready", ready),
        ("pin memory", pinned),
        ("has waited", waits, "blocked"),
        ("waits", "" if ratio is None else f"{units.percent(ratio)} of the time"),
    )


def _process_state(letter: str) -> str:
    meaning = PROCESS_STATES.get(letter)
    return f"{letter}: {meaning}" if meaning else clean(letter)


def _process(page: Page, snapshot: Snapshot, rank: RankFacts) -> None:
    process, gone, ratio = rank.process.report, rank.process.exit, rank.process.cpu_ratio
    if process is None and ratio is None and gone is None:
        return
    page.heading("process")
    if gone is not None:
        how, ago = exit_text(gone.code, gone.signal, gone.oom), rank.process.exit_unix_ns
        when = f", {_ago(snapshot, ago)} ago" if ago and snapshot.live else ""
        when = when or (f" at {units.clock(ago)}" if ago else "")
        page.items(
            ("ended", f"{how}{when}, number {gone.order + 1} on its host", "gone"),
            ("outlived by", ", ".join(f"pid {pid}" for pid in gone.orphans)),
        )
    if process is not None:
        since = _ago(snapshot, rank.process.state_since_unix_ns)
        page.items(
            ("state", _process_state(process.state) + (f", for {since}" if since else "")),
            ("kernel", clean(process.wchan or "")),
            ("threads", "" if process.threads is None else str(process.threads)),
            ("children", "" if process.children is None else str(process.children)),
        )
    # MPI waits by polling: that is not work.
    spins = ", waits, spinning" if rank.process.spinning else ""
    page.items(
        ("cpu", "" if ratio is None else f"{ratio * 100:.0f}% of one core{spins}"),
        ("other pids", ", ".join(map(str, rank.claimants.pids))),
    )


def _exception(page: Page, snapshot: Snapshot, rank: RankFacts) -> None:
    error = exception_of(rank)
    if error is None:
        return
    page.heading("exception")
    page.text(clean(f"{error.type}: {error.text}"), "critical", "  ")
    at = f"{error.place.function} {file_line(error.place)}" if error.place is not None else ""
    page.items(
        ("at", clean(at)),
        ("in thread", clean(error.thread)),
        ("ago", _ago(snapshot, error.unix_ns)),
    )
    if error.frames:
        page.add(("  traceback", "dim"))
    for line in traceback_lines(error):
        page.add(("    ", ""), *line)


def _stacks(page: Page, snapshot: Snapshot, rank: RankFacts) -> None:
    """The last stack dump of this rank, no matter who asked for it."""
    taken = rank.dump.stacks
    if taken is None:
        return
    page.heading("stacks")
    how = (
        f"by {clean(taken.method)}"
        if taken.method
        else f"no answer: {clean(taken.why or 'nothing is known')}"
    )
    page.item(
        "taken",
        f"{_ago(snapshot, taken.taken_unix_ns)} ago, {how}",
        "" if taken.method else "warning",
    )
    if not taken.method:
        return
    merged = merge([taken, *rank.dump.worker_stacks])
    for line in stacks_lines(merged, page.width - 2, page.glyphs, Around(), Shape()):
        page.add(("  ", ""), *line)


def _agent(page: Page, snapshot: Snapshot, rank: RankFacts) -> None:
    agent, age_s, cpu = rank.agent, heard_age_s(rank), rank.agent.cpu_ratio
    host = next((host for host in snapshot.seen if host.sender == agent.sender), None)
    page.heading(
        "ddtop's agent",
        (
            "last report",
            "" if rank.gone else "never" if age_s is None else f"{units.age(age_s)} ago",
        ),
        ("cpu", "" if cpu is None else f"{cpu * 100:.1f}% of one core"),
        ("dropped", f"{agent.drops:,} records"),
        ("probes off", clean(", ".join(agent.probes_off))),
        ("recorder", clean(agent.recorder or "")),
        ("host's clock", clock_words(host)),
    )


def _environment(page: Page, _: Snapshot, rank: RankFacts) -> None:
    hello = rank.hello
    if hello is None:
        return
    page.heading(
        "started as",
        ("command", clean(" ".join(hello.argv) or hello.script)),
        ("python", clean(hello.python)),
        ("torch", clean(hello.torch or "")),
        ("backend", clean(hello.backend or "")),
        ("number from", clean(hello.claim)),
    )
    if hello.environment:
        page.heading("environment")
    for name, value in sorted(hello.environment.items()):
        page.text(clean(f"{name}={value}"), "", "  ")


# -- Texts that a person may want to copy: facts of a rank, and the findings


STACK_WIDTH = 160


@dataclass(frozen=True, slots=True)
class CopyItem:
    """One thing that can be copied: the `key` that does it, a word for it, and the text."""

    key: str
    label: str
    text: str


def copies_of(snapshot: Snapshot, verdict: Verdict, number: int | None) -> tuple[CopyItem, ...]:
    """The texts about this rank and the job that can be copied; unknown ones are left out."""
    found = [CopyItem("s", "sentence", _sentence(verdict))]
    if number is not None:
        rank = snapshot.rank(number)
        hello, place = rank.hello, rank.reported.place
        found += [
            CopyItem("p", "pid", "" if rank.pid is None else str(rank.pid)),
            CopyItem("h", "host", clean(rank.host or "")),
            CopyItem("c", "command", clean(shlex.join(hello.argv)) if hello else ""),
            CopyItem("l", "line", clean(f"{place.file}:{place.line}") if place else ""),
            CopyItem("k", "stack", _stack(rank)),
        ]
    return tuple(item for item in found if item.text)


def _sentence(verdict: Verdict) -> str:
    if not verdict.findings:
        return clean(verdict.calm)
    worst = verdict.findings[0]
    return "\n".join(clean(text) for text in (worst.summary, *worst.evidence, worst.advice) if text)


def _stack(rank: RankFacts) -> str:
    taken = rank.dump.stacks
    if taken is None or not taken.method:
        return ""
    merged = merge([taken, *rank.dump.worker_stacks])
    lines = stacks_lines(merged, STACK_WIDTH, ASCII, Around(), Shape())
    return "\n".join(plain(line) for line in lines)
