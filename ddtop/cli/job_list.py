"""The jobs of this user as a table and as JSON, from this host and from Slurm."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import pwd
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import msgspec

from ddtop import registry
from ddtop.cli import outside_jobs
from ddtop.cli.routing import asked_at
from ddtop.cli.systems import row_of, rows_with_roles
from ddtop.diagnosis.finding import HEALTHS, OK, UNKNOWN, Verdict
from ddtop.feeds.outside.jobs import OutsideJob
from ddtop.feeds.route import NoContactError
from ddtop.feeds.schedulers import (
    NoSuchJobError,
    SchedulerTarget,
    SlurmJob,
    WrongNameError,
    ask,
    last_line,
    running_jobs,
    slurm_job,
)
from ddtop.feeds.systems import own_systems, system_of
from ddtop.follow.engine import UnreachableError, last_state, with_what_stood
from ddtop.follow.fleet import Fleet, FleetJob, Tally, Target, own_jobs, tally_of
from ddtop.model.facts import Snapshot
from ddtop.present.documents import system_json
from ddtop.present.jobs import (
    CANCELLED,
    JOBS_SCHEMA,
    Health,
    Listed,
    Row,
    health_of,
    hosts_text,
    listed,
    table_lines,
    with_roles,
)
from ddtop.present.series import Sample, series_of
from ddtop.present.text import Glyphs, cell_width, clean, fit, plain
from ddtop.thresholds import chosen
from ddtop.wire.records import ALONE
from ddtop.words.units import duration

# -- `ddtop jobs --slurm`: all running Slurm jobs of this user, each asked on its own node


ANSWER_S = 30.0
"""The time for a step on a busy node, including the start of Python from a shared file system."""
AT_ONCE = 8
"""Steps that are started at the same time: each is a request to the controller."""
OUTPUT_MAX = 4 << 20
"""Characters."""
SENTENCE_MAX = 300


class _Job(msgspec.Struct):
    """The used fields of an object in `jobs` of `ddtop.jobs/1`."""

    job: str
    live: bool
    world_size: int
    reporting: int
    hosts: tuple[str, ...]
    script: str
    health: str
    kind: str | None
    summary: str | None
    steps_per_s: float | None
    no_progress_s: float | None
    health_age_s: float | None
    started_unix_ns: int


class _Jobs(msgspec.Struct):
    jobs: tuple[_Job, ...]


def slurm_jobs(ddtop: str | None) -> list[tuple[Listed, Health]]:
    """The jobs that ddtop knows in the running jobs of Slurm of this user. A Slurm job without any
    also has a row, with the reason.

    `ddtop`: how ddtop is called there, None to look for it.

    Raises:
        NoContactError: Slurm is not here, or does not answer.
    """
    jobs = running_jobs(getpass.getuser())
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [
            row
            for rows in pool.map(lambda slurm_job: _look_into(slurm_job, ddtop), jobs)
            for row in rows
        ]


def _look_into(job: SlurmJob, ddtop: str | None) -> list[tuple[Listed, Health]]:
    try:
        found = [_row(one) for one in _jobs_inside(slurm_job(job.number, ddtop))]
    except (NoSuchJobError, WrongNameError, NoContactError) as error:
        return [_without_contact(job, str(error))]
    return found or [_without_contact(job, "not watched: start its ranks with DDTOP=1")]


def _jobs_inside(target: SchedulerTarget) -> list[_Job]:
    """The live jobs of ddtop that belong to this job of Slurm.

    Raises:
        NoContactError: there is no route into it.
    """
    _, out, err = ask(*target.words("jobs", "--json"), seconds=ANSWER_S, who=target.name)
    try:
        jobs = msgspec.json.decode(out[:OUTPUT_MAX], type=_Jobs).jobs
    except (msgspec.MsgspecError, ValueError):
        raise NoContactError(f"no way into {target.name}: {last_line(err)}") from None
    nodes = {name.partition(".")[0] for name in target.nodes}
    return [
        job
        for job in jobs
        if job.live
        and (
            job.job.startswith(target.job_name)
            or nodes & {name.partition(".")[0] for name in job.hosts}
        )
    ]


def _row(job: _Job) -> tuple[Listed, Health]:
    entry = _entry(job.job, job.hosts, job.script, job.world_size, job.started_unix_ns)
    health = Health(
        job.health if job.health in HEALTHS else UNKNOWN,
        job.kind,
        clean(job.summary)[:SENTENCE_MAX] if job.summary else None,
        job.reporting,
        job.world_size,
        job.steps_per_s,
        job.no_progress_s,
        job.health_age_s,
    )
    return Listed(entry, True, job.reporting, job.hosts or ("?",)), health


def _without_contact(job: SlurmJob, why: str) -> tuple[Listed, Health]:
    entry = _entry(job.number, (job.nodes,), job.name, 0, job.started_unix_ns)
    return Listed(entry, True, 0, (job.nodes,)), Health(UNKNOWN, sentence=why[:SENTENCE_MAX])


def _entry(
    job: str, hosts: tuple[str, ...], script: str, world_size: int, started_unix_ns: int
) -> registry.JobEntry:
    return registry.JobEntry(
        schema=registry.SCHEMA,
        job=registry.clean_job_name(job),
        run="",
        host=hosts[0] if hosts else "",
        sender=registry.ELSEWHERE,
        relay_pid=0,
        relay_start_ticks=0,
        address="",
        port=0,
        socket="",
        script=script,
        world_size=world_size,
        reporting=0,
        started_unix_ns=started_unix_ns,
        heartbeat_unix_ns=time.time_ns(),
    )


# -- Which jobs the fleet follows: all jobs of this user, or the one at a hub


def targets(hub: str | None) -> Callable[[], list[Target]]:
    """A function that returns the jobs. `hub`: the value of `--hub`.

    Raises:
        CommandError: 2, `hub` is not a HOST:PORT; 3, no relay of this user answers there.
    """
    if hub is None:
        return own_jobs
    entry, secret = asked_at(hub), registry.secret()

    def the_one() -> list[Target]:
        # No job file renews the heartbeat of a relay that is known by its port.
        return [Target(msgspec.structs.replace(entry, heartbeat_unix_ns=time.time_ns()), secret)]

    return the_one


# -- The parts of a look that a list of jobs and the exporter keep, made where the job is followed


@dataclass(frozen=True, slots=True)
class JobSeries:
    """The parts of one look that the exporter keeps."""

    tally: Tally
    samples: tuple[Sample, ...]


def health_digest(
    _entry: registry.JobEntry, snapshot: Snapshot, verdict: Verdict, _before: Health | None
) -> Health:
    """The health of a job, for a list."""
    return health_of(verdict, snapshot)


def series_digest(
    entry: registry.JobEntry, snapshot: Snapshot, verdict: Verdict, before: JobSeries | None
) -> JobSeries:
    """The series of one job, made on the thread of the fleet; a scrape only reads them."""
    tally = tally_of(snapshot, before.tally if before is not None else None, chosen())
    about = {"script": os.path.basename(entry.script), "host": entry.host, "user": own_user()}
    if entry.sender != registry.ELSEWHERE:
        about["started_unix_ns"] = str(entry.started_unix_ns)
    return JobSeries(tally, series_of(snapshot, verdict, tally, about, len(verdict.muted)))


@functools.cache
def own_user() -> str:
    """The name of the user who runs this process."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


# -- The health of all live jobs, for the list of jobs and for `ddtop jobs`


HEALTH_ANSWER_S = 7.0
"""The time for the first looks at all jobs, on a busy host. A relay that does not answer counts as
not heard earlier."""


@contextlib.contextmanager
def follow_jobs() -> Iterator[Callable[[], Mapping[tuple[str, str], Health]]]:
    """Follow the live jobs while the block runs. The health of each, by name and run; called from
    any thread."""
    with Fleet(own_jobs, health_digest) as fleet:
        yield lambda: {
            (job.entry.job, job.entry.run): health_now(job)
            for job in jobs_with_health(fleet.jobs())
        }


@contextlib.contextmanager
def follow_system(
    entry: registry.JobEntry,
) -> Iterator[Callable[[Verdict, Snapshot | None], Rows]]:
    """Follow the other programs of the job's system while the block runs. Yields a function that
    gets what is known of the job itself and returns all programs; none if the job stands alone.

    A program stays in the system while it lives, also after the connection has ended.
    """
    joined: set[tuple[str, str]] = set()

    def read() -> Iterable[Target]:
        joined.update((one.job, one.run) for one in system_of(entry, own_systems()))
        joined.discard((entry.job, entry.run))
        jobs = own_jobs() if joined else ()
        return [one for one in jobs if (one.entry.job, one.entry.run) in joined]

    def rows(verdict: Verdict, snapshot: Snapshot | None) -> Rows:
        others = [row_of(job.entry, health_now(job)) for job in fleet.jobs()]
        own = row_of(entry, health_of(verdict, snapshot)) if others else None
        return with_roles([own, *others]) if own is not None else []

    with Fleet(read, health_digest) as fleet:
        yield rows


def jobs_with_health(jobs: Iterable[FleetJob[Health]]) -> Iterable[FleetJob[Health]]:
    """The jobs with known health."""
    return [job for job in jobs if job.settled or job.contact is not None]


def health_now(job: FleetJob[Health]) -> Health:
    """The health of one job; unknown while its relay is not heard."""
    if job.contact is not None or job.value is None:
        return Health(UNKNOWN, sentence=job.contact, age_s=job.age_s if job.looks else None)
    if not job.settled and job.value.word == OK:
        # The first looks at a hanging job find nothing.
        return Health(UNKNOWN, sentence="not known yet: it is being looked at", age_s=job.age_s)
    return replace(job.value, age_s=job.age_s)


TOLD_IN_FULL = 8
"""So many ended jobs are told with what was wrong before somebody cancelled them."""


def healths(entries: Iterable[registry.JobEntry]) -> list[Health]:
    """The health of each of these jobs, or its health when it ended. Live ones are asked in
    parallel."""
    entries, now = list(entries), time.time_ns()
    living = [entry for entry in entries if entry.live(now) or entry.reachable(now)]
    found: dict[registry.JobEntry, Health] = {}
    if living:
        targets = [Target(entry, secret) for secret in [registry.secret()] for entry in living]
        with Fleet(lambda: targets, health_digest) as fleet:
            found = {job.entry: health_now(job) for job in fleet.wait(HEALTH_ANSWER_S)}
    asked = {id(process) for process in living}
    over = [entry for entry in entries if id(entry) not in asked]
    newest = sorted(over, key=lambda entry: -entry.started_unix_ns)[:TOLD_IN_FULL]
    return [
        found.get(entry, Health(UNKNOWN))
        if id(entry) in asked
        else health(entry, what_stood=any(entry is one for one in newest))
        for entry in entries
    ]


def health(entry: registry.JobEntry, *, what_stood: bool = True) -> Health:
    """How a job that nobody follows has ended, or what was wrong with it then. Unknown if its relay
    has left nothing. `what_stood`: of a cancelled one also what was wrong before, which is read
    from its journal: a second for 20 MiB."""
    with contextlib.suppress(UnreachableError):
        snapshot, verdict = last_state(entry, from_journal=False)
        if what_stood and snapshot.ended is not None and snapshot.ended.reason == CANCELLED:
            verdict = with_what_stood(entry, snapshot, verdict)
        if how := snapshot.ended and snapshot.ended.reason:
            return replace(health_of(verdict), ended=how, findings=verdict.findings)
    return Health(UNKNOWN)


# -- The jobs of this user as a table and as JSON


Rows = list[tuple[Listed, Health]]

NAME_SHOWN = 40
"""Characters of a job's name in the table: a unique prefix is enough to attach."""


def table(entries: list[registry.JobEntry], parts: bool = False) -> list[str]:
    """One line per job: name, live or how it ended, ranks, host or number of hosts, script, age.

    `parts`: one line for each host of a job.
    """
    now = time.time_ns()
    rows = [("JOB", "STATE", "RANKS", "HOST", "SCRIPT", "STARTED")]
    for job in _list_entries(entries, parts, now):
        entry = job.entry
        ended = entry.ended_reason or ("ended" if entry.ended_unix_ns else "lost")
        ranks = f"{job.reporting}/{entry.world_size}" if job.live else str(entry.world_size)
        alone = not parts or entry.role == ALONE
        host = hosts_text(job) if alone else f"{entry.host} ({entry.role})"
        age = f"{duration((now - entry.started_unix_ns) / 1e9)} ago"
        state = "live" if job.live else ended
        rows.append((entry.job[:NAME_SHOWN], state, ranks, host, entry.script, age))
    cleaned = [tuple(clean(cell) for cell in row) for row in rows]
    widths = [max(cell_width(row[column]) for row in cleaned) for column in range(len(rows[0]))]
    return [
        "  ".join(fit(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cleaned
    ]


def rows_as_table(rows: Rows, width: int | None, glyphs: Glyphs) -> list[str]:
    """One line a job below the titles, at most so many columns wide; None: with nothing cut."""
    return [plain(line).rstrip() for line in table_lines(rows, width, time.time_ns(), glyphs)]


def rows_of(entries: Iterable[registry.JobEntry], parts: bool = False) -> Rows:
    """The jobs with their health. `parts`: one row for each host of a job."""
    jobs = _list_entries(entries, parts, time.time_ns())
    return rows_with_roles(list(zip(jobs, healths(job.entry for job in jobs), strict=True)))


def rows_before_ranks(jobs: Iterable[OutsideJob]) -> Rows:
    """Those of these jobs that have a name and no rank yet, with what their launchers wait for."""
    return [_before_ranks(job) for job in jobs if job.announced and not job.ranks]


def _before_ranks(job: OutsideJob) -> Row:
    entry, health = outside_jobs.entry_of(job), Health(UNKNOWN)
    if judged := outside_jobs.judge_launchers(job.name, job.launchers):
        found = health_of(judged[1])
        health = replace(found, sentence=found.sentence or judged[1].calm, reporting=0)
    return Listed(entry, True, 0, (entry.host,)), health


def json_of(rows: Rows) -> dict[str, object]:
    """The schema `ddtop.jobs/1` of these jobs: one object a row."""
    return {"schema": JOBS_SCHEMA, "jobs": [_job(job, health) for job, health in rows]}


def _job(job: Listed, health: Health) -> dict[str, object]:
    reporting = job.reporting if health.reporting is None else health.reporting
    return {
        "job": job.entry.job,
        "user": own_user(),
        "live": job.live,
        "world_size": health.world_size or job.entry.world_size,
        "reporting": reporting if job.live else 0,
        "hosts": list(job.hosts),
        "script": job.entry.script,
        "health": health.word,
        "kind": health.kind,
        "summary": None if health.word == OK else health.sentence,
        "steps_per_s": health.steps_per_s,
        "no_progress_s": health.still_s,
        "health_age_s": health.age_s,
        "started_unix_ns": job.entry.started_unix_ns,
        "role": job.entry.role,
        "system": system_json(job.system, job.role) if job.system else None,
    }


def _list_entries(
    entries: Iterable[registry.JobEntry], parts: bool, now_unix_ns: int
) -> list[Listed]:
    if not parts:
        return listed(entries, now_unix_ns)
    return [
        Listed(entry, entry.live(now_unix_ns), entry.reporting, (entry.host,)) for entry in entries
    ]
