"""The jobs of this user as rows of a list: live jobs first, then those that have ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ddtop import registry
from ddtop.diagnosis.finding import (
    CRITICAL,
    INFO,
    OK,
    UNKNOWN,
    WARNING,
    Finding,
    Verdict,
)
from ddtop.diagnosis.kinds import Kind
from ddtop.grouped import grouped
from ddtop.model.facts import Snapshot
from ddtop.present.text import Field, Glyphs, Line, Span, Table, cell_width, clean, table_for
from ddtop.wire.records import HUB
from ddtop.words import units

JOBS_SCHEMA = "ddtop.jobs/1"
ASKING = "asking ..."
CANCELLED = "cancelled"
STARTING = "starting: "
"""How a job ended, and how the sentence of one begins that makes no steps yet, in the words of the
model."""
UNTIL = ". Until then: "
"""Between how a job ended and what stood before."""
HOW_TO_START = "no jobs; start one with: DDTOP=1 torchrun --nproc-per-node 4 train.py"
LEAST_JOB, MOST_JOB = 18, 48
LEAST_ROLE = 12


@dataclass(frozen=True, slots=True)
class Health:
    """The result of a look at a job. `word` is one of `finding.HEALTHS`; unknown if no relay
    answered.

    `sentence`: of the worst finding, of a healthy job the calm one, or why nothing is known.
    `ended`: how the job ended, in the words of the dashboard. `reporting`, `world_size`:
    from the look; the job file may be 15 s old. `still_s`: how long no rank has made progress (s).
    `age_s`: how old these values are (s). `role`: what its ranks call themselves, if all of them
    use one word. `findings`: all of them, worst first.
    """

    word: str
    kind: str | None = None
    sentence: str | None = None
    reporting: int | None = None
    world_size: int | None = None
    steps_per_s: float | None = None
    still_s: float | None = None
    age_s: float | None = None
    ended: str | None = None
    role: str | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Listed:
    """One run of a job, on all its hosts. `entry`: the relay that a viewer attaches to. `role`: its
    name in its `system`, empty if it belongs to none."""

    entry: registry.JobEntry
    live: bool
    reporting: int
    hosts: tuple[str, ...]
    role: str = ""
    system: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What identifies the run among all jobs."""
        return self.entry.job, self.entry.run


def health_of(verdict: Verdict, snapshot: Snapshot | None = None) -> Health:
    """The verdict in a word or two, and with a snapshot the progress of the job."""
    known = verdict.health != UNKNOWN
    worst = next(
        (finding for finding in verdict.findings if finding.severity in (CRITICAL, WARNING)), None
    )
    kind = worst.kind if worst and known else None
    sentence = (worst.summary if worst else verdict.calm) if known else verdict.unheard
    if snapshot is None or not known:
        return Health(verdict.health, kind, sentence)
    still = snapshot.still_since_unix_ns
    roles = {rank.hello.role for rank in snapshot.ranks if rank.hello is not None}
    return Health(
        verdict.health,
        kind,
        sentence,
        snapshot.reporting,
        snapshot.world_size,
        snapshot.iterations_per_s,
        max(snapshot.time_unix_ns - still, 0) / units.SECOND_NS if still is not None else 0.0,
        role=roles.pop() if len(roles) == 1 else None,
        findings=verdict.findings,
    )


Row = tuple[Listed, Health]


def with_roles(programs: Sequence[Row], system: str = "") -> list[Row]:
    """The programs of one system with their roles: what their ranks call themselves, else the name
    of the script, and the name of the job where two would be called the same. The worst comes
    first, and those that wait for another program come after it."""
    roles = [known.role or _script(job).removesuffix(".py") for job, known in programs]
    named = [
        (
            replace(job, system=system, role=role if roles.count(role) == 1 else job.entry.job),
            known,
        )
        for (job, known), role in zip(programs, roles, strict=True)
    ]
    return sorted(named, key=lambda one: (_badness(one[1]), one[1].kind == Kind.WAITS_FOR_JOB))


def findings_beside(programs: Sequence[Row]) -> list[tuple[str, Finding]]:
    """The findings of these programs, each with the program's role: critical ones first."""
    found = [(job.role, finding) for job, known in programs for finding in known.findings]
    return sorted(found, key=lambda one: _WORST_FIRST.index(one[1].severity))


def listed(entries: Iterable[registry.JobEntry], now_unix_ns: int) -> list[Listed]:
    """The runs: live ones first, and in both parts the newest start first. A leaf is a part of its
    hub's run."""
    runs = grouped(((entry.job, entry.part_of or entry.run), entry) for entry in entries)
    jobs = [_one_run(parts, now_unix_ns) for parts in runs.values()]
    return sorted(jobs, key=lambda job: (not job.live, -job.entry.started_unix_ns, job.key))


def _one_run(parts: list[registry.JobEntry], now_unix_ns: int) -> Listed:
    # The hub first: it knows all hosts, and when the job has ended.
    parts = sorted(parts, key=lambda entry: entry.role != HUB)
    first = parts[0]
    living = [entry for entry in parts if entry.live(now_unix_ns)]
    if first.role == HUB and first.ended_unix_ns is not None:
        living = []
    # A hub counts the ranks of all hosts, each other relay its own.
    counting = living[:1] if living and living[0].role == HUB else living
    reporting = sum(entry.reporting for entry in counting)
    names = dict.fromkeys(name for entry in parts for name in (entry.host, *entry.hosts))
    return Listed((living or parts)[0], bool(living), reporting, tuple(names))


def passing(jobs: Iterable[Listed], text: str) -> list[Listed]:
    """The jobs that have every word of the text in their name, script or hosts."""
    words = text.casefold().split()
    texts = ((job, " ".join((job.entry.job, job.entry.script, *job.hosts))) for job in jobs)
    return [job for job, text in texts if all(word in text.casefold() for word in words)]


NEWEST, WORST, NAME, SLOWEST, STUCK = "newest", "health", "name", "step/s", "no progress"
SORTS = (WORST, NEWEST, NAME, SLOWEST, STUCK)
"""Orders of the list; live jobs come first in each."""
_WORST_FIRST = (CRITICAL, WARNING, UNKNOWN, OK, INFO)


def _badness(health: Health) -> float:
    return float(_WORST_FIRST.index(health.word)) if health.word in _WORST_FIRST else 9.0


def in_order(
    jobs: Sequence[Listed], health: Mapping[tuple[str, str], Health], by: str
) -> list[Listed]:
    """The jobs in one of the orders of `SORTS`; equal ones keep their order, the newest first."""

    def place(job: Listed) -> tuple[bool, float, str]:
        known = health.get(job.key, Health(UNKNOWN)) if job.live else Health(UNKNOWN)
        number = {
            WORST: _badness(known),
            SLOWEST: known.steps_per_s if known.steps_per_s is not None else float("inf"),
            STUCK: -(known.still_s or 0.0),
        }.get(by, 0.0)
        return not job.live, number, job.entry.job if by == NAME else ""

    return sorted(jobs, key=place)


def heading(jobs: Sequence[Listed]) -> str:
    """`2 live jobs, 14 that have ended`."""
    live = sum(job.live for job in jobs)
    ended = len(jobs) - live
    text = f"{live} live {'job' if live == 1 else 'jobs'}" if live else "no live job"
    return f"{text}, {ended} ended" if ended else text


def columns(jobs: Sequence[Listed], width: int, empty: Collection[str] = ()) -> Table[Field]:
    """The columns of these jobs for this width. Columns that help least to recognise a job are
    dropped first. `empty`: columns without a text."""
    ranks = max([len("RANKS"), *(len(_ranks(job)) for job in jobs)])
    name = min(max([10, *(cell_width(clean(job.entry.job)) for job in jobs)]), MOST_JOB)
    script = min(max([6, *(cell_width(_script(job)) for job in jobs)]), 40)
    host = min(max([4, *(cell_width(hosts_text(job)) for job in jobs)]), 24)
    role = max(cell_width(clean(job.role)) for job in jobs) if jobs else 0
    fields = (
        *([Field("role", "ROLE", min(role, LEAST_ROLE), grows=60, most=role)] if role else ()),
        Field("job", "JOB", min(name, LEAST_JOB, max(width // 4, 10)), grows=40, most=name),
        Field("health", "HEALTH", 14, grows=20, most=22),
        Field("ranks", "RANKS", ranks, right=True),
        Field("steps", "STEP/S", 6, right=True, rank=3),
        Field("still", "STUCK", 6, right=True, rank=4),
        Field("started", "STARTED", 11, right=True, rank=1),
        Field("finding", "FINDING", 24, grows=8, rank=2),
        Field("host", "HOST", min(host, 8), grows=1, most=host, rank=5),
        Field("script", "SCRIPT", min(script, 8), grows=1, most=script, rank=6),
    )
    return table_for([field for field in fields if field.key not in empty], width)


def table_lines(
    rows: Sequence[Row], width: int | None, now_unix_ns: int, glyphs: Glyphs
) -> list[Line]:
    """Titles and a row for each job, in so many columns; None: each text in full, for pipes."""
    cells = [_cells(job, health, now_unix_ns, glyphs) for job, health in rows]
    empty = {key for row in cells for key in row if not any(other[key][0] for other in cells)}
    table = columns([job for job, _ in rows], width or 999, empty)
    if width is None:
        keys = [(field.key, field.title) for field in table.fields]
        texts = [[title, *(row[key][0] for row in cells)] for key, title in keys]
        table = replace(table, widths=tuple(max(map(cell_width, column)) for column in texts))
    return [table.titles(), *(table.line(row, glyphs.ellipsis) for row in cells)]


def row(
    job: Listed, table: Table[Field], health: Health | None, now_unix_ns: int, glyphs: Glyphs
) -> Line:
    """One job. `health` None: its relay has not answered yet."""
    return table.line(_cells(job, health, now_unix_ns, glyphs), glyphs.ellipsis)


def _cells(job: Listed, health: Health | None, now_unix_ns: int, glyphs: Glyphs) -> dict[str, Span]:
    known = health if job.live else None
    told = known.sentence if known is not None else _last_word(health)
    health_text, style = _health(job, health, glyphs)
    texts = {
        "role": clean(job.role),
        "job": clean(job.entry.job),
        "ranks": _ranks(job, known),
        "steps": _steps(known),
        # Nothing while some rank makes progress.
        "still": units.age(known.still_s) if known is not None and known.still_s else "",
        "host": hosts_text(job),
        "script": _script(job),
        "started": _started(job, now_unix_ns),
        "finding": clean(told or "").removeprefix(f"{OK}: ").removeprefix(STARTING),
    }
    cells = {key: (text, "" if job.live else "dim") for key, text in texts.items()}
    return {
        **cells,
        "job": (texts["job"], "bold" if job.live else "dim"),
        "health": (health_text, style if job.live else "dim"),
    }


def _last_word(health: Health | None) -> str | None:
    """What was wrong until a job ended, else how it ended: somebody who ends a job by hand does so
    for a reason."""
    if health is None:
        return None
    before = next((found for found in health.findings if found.until_then), None)
    return before.summary.partition(UNTIL)[2] or health.ended if before else health.ended


def program_lines(
    programs: Sequence[Row], job: str, width: int, now_unix_ns: int, glyphs: Glyphs
) -> list[Line]:
    """The titles and a line for each program of a system; that of `job` has a sign."""
    lines = table_lines(programs, width - 2, now_unix_ns, glyphs)
    marks = ["", *(glyphs.then if one.entry.job == job else "" for one, _ in programs)]
    return [((f"{mark:<2}", "title"), *line) for mark, line in zip(marks, lines, strict=True)]


def _ranks(job: Listed, health: Health | None = None) -> str:
    world, reporting = job.entry.world_size, job.reporting
    if health is not None and health.world_size is not None and health.reporting is not None:
        # The job file may be 15 s old.
        world, reporting = health.world_size, health.reporting
    return f"{reporting:,}/{world:,}" if job.live else f"{world:,}"


def _steps(health: Health | None) -> str:
    if health is None or health.steps_per_s is None or health.reporting == 0:
        return "-" if health is not None else ""
    return f"{health.steps_per_s:.{2 if health.steps_per_s < 10 else 0}f}"


def hosts_text(job: Listed) -> str:
    """Its host, or how many it has."""
    return clean(job.hosts[0]) if len(job.hosts) == 1 else f"{len(job.hosts)} hosts"


def _script(job: Listed) -> str:
    return clean(job.entry.script).rpartition("/")[2]


def _started(job: Listed, now_unix_ns: int) -> str:
    if not job.entry.started_unix_ns:
        return ""
    seconds = (now_unix_ns - job.entry.started_unix_ns) / units.SECOND_NS
    # Only one unit, because a number that changes every second distracts.
    for limit, size, unit in ((60, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{max(int(seconds / size), 0)} {unit} ago"
    return f"{int(seconds / 86400):,} d ago"


def _health(job: Listed, health: Health | None, glyphs: Glyphs) -> Span:
    if not job.live:
        ended = "ended" if job.entry.ended_unix_ns else "lost"
        cancelled = health is not None and health.ended == CANCELLED
        told = CANCELLED if cancelled else job.entry.ended_reason
        return clean(told or ended), "dim"
    if health is None:
        return ASKING, "dim"
    if health.word == UNKNOWN:
        return UNKNOWN, "silent"
    if health.word in (CRITICAL, WARNING):
        mark = glyphs.critical if health.word == CRITICAL else glyphs.warning
        return f"{mark} {health.kind or health.word}", health.word
    if (health.sentence or "").startswith(STARTING):
        return STARTING.rstrip(": "), "starting"
    return health.word, "calm"
