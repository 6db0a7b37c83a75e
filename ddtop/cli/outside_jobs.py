"""The jobs of this host that were started without ddtop, for lists and messages."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ddtop import registry
from ddtop.diagnosis.finding import UNKNOWN, Verdict
from ddtop.model.facts import Snapshot
from ddtop.present.text import clean
from ddtop.words.units import duration

if TYPE_CHECKING:
    from ddtop.feeds.outside.jobs import OutsideJob

NOT_STARTED = "not started with ddtop"
_RUN = "outside-"
"""How the name of the run begins in the entry of such a job; no relay writes such an entry."""
PIDS_MAX = 8


def find_jobs(waiting: bool = False) -> list[OutsideJob]:
    """Jobs of this user's processes (root: of all processes), the newest first.

    `waiting`: then also the launchers that have not started a rank, as jobs without ranks.
    """
    from ddtop.feeds.outside.jobs import jobs_of, read
    from ddtop.feeds.outside.targets import without_ranks

    with contextlib.suppress(OSError):
        host = read(os.getuid())
        return [*jobs_of(host), *(without_ranks(host) if waiting else ())]
    return []


def before_ranks(name: str) -> list[OutsideJob]:
    """The launchers that were started with ddtop under this name (its beginning suffices if no
    other begins so), and have not started a rank. A live job of that name is what is meant, and
    then there are none."""
    found = [
        job
        for job in find_jobs(waiting=True)
        if job.announced and not job.ranks and job.name.startswith(name)
    ]
    named = [job for job in found if job.name == name]
    with contextlib.suppress(registry.RegistryError, registry.UnknownJobError):
        known, now = registry.find_job(name, time.time_ns()), time.time_ns()
        if known.live(now) and (known.job == name or not named):
            return []
    named = named or found
    return named if len({job.name for job in named}) == 1 else []


def waiting_pids() -> str:
    """The value of `--pid` for the launchers that wait for nodes or for their store."""
    idle = [job.launchers[0] for job in find_jobs(waiting=True) if not job.ranks]
    looks = {pid: judge_launchers("", [pid]) for pid in idle}
    return ",".join(str(pid) for pid, look in looks.items() if look and look[1].findings)


def judge_launchers(name: str, pids: Sequence[int]) -> tuple[Snapshot, Verdict] | None:
    """The verdict on those of these processes that are launchers without ranks; None if there are
    none."""
    from ddtop.diagnosis.diagnoses import conclude, diagnose
    from ddtop.feeds.outside.targets import announced_ranks, waiting_launchers
    from ddtop.model.job import Job
    from ddtop.say.told import told
    from ddtop.thresholds import chosen

    launchers, policy = waiting_launchers(pids), chosen()
    if not launchers:
        return None
    snapshot = replace(Job(name, policy).snapshot(time.time_ns()), launchers=launchers)
    verdict = told(conclude(diagnose(snapshot, policy), snapshot), snapshot, policy)
    snapshot = replace(snapshot, world_size=max(map(announced_ranks, pids)))
    return snapshot, verdict if verdict.findings else replace(verdict, health=UNKNOWN)


def pids_of(job: OutsideJob) -> str:
    """The value for `--pid`: the job's launchers, or its ranks if their shell has also started
    other processes."""
    from ddtop.feeds.outside.jobs import read_one

    launchers = [read_one(pid) for pid in job.launchers]
    # A shell at its prompt may have started anything.
    if launchers and all(
        process is not None and (process.python or len(process.argv) > 1) for process in launchers
    ):
        return ",".join(str(pid) for pid in job.launchers)
    return ",".join(str(target.pid) for target in job.ranks)


def table(jobs: list[OutsideJob]) -> list[str]:
    """Titles, and a line for each job: what to type to look at it."""
    now, lines = time.time_ns(), []
    for title, some in (
        (NOT_STARTED, [job for job in jobs if job.ranks]),
        ("launchers without a rank", [job for job in jobs if not job.ranks]),
    ):
        lines += [f"{title}:"] if some else []
        for job in some:
            age = duration(max(now - job.started_unix_ns, 0) / 1e9)
            seen = f"{len(job.ranks)} of {job.world_size} ranks, " if job.ranks else ""
            pids = pids_of(job)
            shown = pids if pids.count(",") < PIDS_MAX else f"{job.ranks[0].pid},..."
            what = clean(job.name) if job.announced else f"--pid {shown}"
            lines.append(f"  {clean(job.script)}, {seen}started {age} ago: ddtop diagnose {what}")
    return lines


def as_json(jobs: list[OutsideJob]) -> list[dict[str, object]]:
    """One object a job, for `ddtop jobs --json`."""
    return [
        {
            "job": job.name,
            "script": job.script,
            "world_size": job.world_size,
            "launchers": list(job.launchers),
            "ranks": [{"rank": target.rank, "pid": target.pid} for target in job.ranks],
            "started_unix_ns": job.started_unix_ns,
            "notes": list(job.notes),
        }
        for job in jobs
    ]


def entry_of(job: OutsideJob) -> registry.JobEntry:
    """The job as an entry of a list. It has no relay: `pids_in` returns the processes to look
    at."""
    now = time.time_ns()
    ranks = tuple((target.pid, target.start_ticks) for target in job.ranks)
    return registry.JobEntry(
        registry.SCHEMA,
        job.name,
        _RUN + pids_of(job),
        socket.gethostname(),
        registry.host_identity(),
        0,
        0,
        "",
        0,
        "",
        job.script,
        job.world_size,
        len(job.ranks),
        job.started_unix_ns,
        now,
        ranks=ranks,
    )


def pids_in(entry: registry.JobEntry) -> str | None:
    """The value of `--pid` for the entry of such a job; None for all other entries."""
    return entry.run[len(_RUN) :] if entry.relay_pid == 0 and entry.run.startswith(_RUN) else None
