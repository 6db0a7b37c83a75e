"""The jobs of this user as a table and as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from ddtop import registry
from ddtop.cli.digests import own_user
from ddtop.cli.fleet_health import health_now, healths, others
from ddtop.cli.host_jobs import user_of
from ddtop.wire.hosts import ALONE

if TYPE_CHECKING:
    from ddtop.present.glyphs import Glyphs
    from ddtop.present.hosts.jobs import Health, Listed

if TYPE_CHECKING:
    Rows = list[tuple[Listed, Health]]

OTHERS_S = 10.0
"""The time for other users' jobs: for each user a process is started that looks at them, which
takes 2 s."""
NAME_SHOWN = 40
"""Characters of a job's name in the table: a unique prefix is enough to attach."""


def table(entries: list[registry.JobEntry], parts: bool = False) -> list[str]:
    """One line per job: name, live or how it ended, ranks, host or number of hosts, script, age.

    `parts`: one line for each host of a job.
    """
    from ddtop.present.hosts.jobs import hosts_text
    from ddtop.present.text import cell_width, clean, fit
    from ddtop.words.units import duration

    now = time.time_ns()
    rows = [("JOB", "STATE", "RANKS", "HOST", "SCRIPT", "STARTED")]
    for one in _listed(entries, parts, now):
        entry = one.entry
        ended = entry.ended_reason or ("ended" if entry.ended_unix_ns else "lost")
        ranks = f"{one.reporting}/{entry.world_size}" if one.live else str(entry.world_size)
        alone = not parts or entry.role == ALONE
        host = hosts_text(one) if alone else f"{entry.host} ({entry.role})"
        age = f"{duration((now - entry.started_unix_ns) / 1e9)} ago"
        state = "live" if one.live else ended
        rows.append((entry.job[:NAME_SHOWN], state, ranks, host, entry.script, age))
    cleaned = [tuple(clean(cell) for cell in row) for row in rows]
    widths = [max(cell_width(row[column]) for row in cleaned) for column in range(len(rows[0]))]
    return [
        "  ".join(fit(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cleaned
    ]


def table_with_health(entries: list[registry.JobEntry], width: int, glyphs: Glyphs) -> list[str]:
    """The same with the health of each job: one row per job, at most so many columns wide."""
    from ddtop.present.hosts import jobs

    rows, problems = _with_others(jobs.listed(entries, time.time_ns()))
    return [*rows_as_table(rows, width, glyphs), *problems]


def rows_as_table(rows: Rows, width: int, glyphs: Glyphs) -> list[str]:
    """One line a job below the titles, at most so many columns wide."""
    from ddtop.present.hosts import jobs
    from ddtop.present.text import plain

    now = time.time_ns()
    shown = jobs.columns([one for one, _ in rows], width)
    lines = [shown.titles()]
    lines += [jobs.row(one, shown, health, now, glyphs) for one, health in rows]
    return [plain(line).rstrip() for line in lines]


def _with_others(own: list[Listed]) -> tuple[Rows, list[str]]:
    """These jobs with their health; for root, the jobs of this host's other users follow the live
    ones. Also a sentence for each user whose jobs are not known.
    """
    from ddtop.present.hosts.jobs import Listed

    with others() as elsewhere:
        rows = list(zip(own, healths(one.entry for one in own), strict=True))
        if elsewhere is None:
            return rows, []
        known = elsewhere.wait(OTHERS_S)
        problems = elsewhere.problems
    theirs = [
        (Listed(one.entry, True, one.entry.reporting, (one.entry.host,)), health_now(one))
        for one in known
    ]
    live = sum(one.live for one in own)
    return [*rows[:live], *theirs, *rows[live:]], problems


def jobs_json(parts: bool = False) -> dict[str, object]:
    """The schema `ddtop.jobs/1`: one object a job. `parts`: one object a host of a job."""
    rows, problems = _with_others(_listed(registry.read_entries(), parts, time.time_ns()))
    for problem in problems:
        click.echo(problem, err=True)
    return json_of(rows)


def json_of(rows: Rows) -> dict[str, object]:
    """The schema `ddtop.jobs/1` of these jobs."""
    from ddtop.present.hosts.jobs import JOBS_SCHEMA

    return {"schema": JOBS_SCHEMA, "jobs": [_job(one, health) for one, health in rows]}


def _job(one: Listed, health: Health) -> dict[str, object]:
    live = one.live
    user, name = user_of(one.entry.job)
    return {
        "job": name,
        "user": user or own_user(),
        "live": live,
        "world_size": health.world_size or one.entry.world_size,
        "reporting": (one.reporting if health.reporting is None else health.reporting)
        if live
        else 0,
        "hosts": list(one.hosts),
        "script": one.entry.script,
        "health": health.word,
        "kind": health.kind,
        "summary": health.sentence,
        "steps_per_s": health.steps_per_s,
        "no_progress_s": health.still_s,
        "health_age_s": health.age_s,
        "started_unix_ns": one.entry.started_unix_ns,
        "role": one.entry.role,
    }


def _listed(entries: Iterable[registry.JobEntry], parts: bool, now_unix_ns: int) -> list[Listed]:
    from ddtop.present.hosts.jobs import Listed, listed

    if not parts:
        return listed(entries, now_unix_ns)
    return [Listed(one, one.live(now_unix_ns), one.reporting, (one.host,)) for one in entries]
