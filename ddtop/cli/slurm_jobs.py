"""`ddtop jobs --slurm`: all running Slurm jobs of this user, each asked on its own node."""

from __future__ import annotations

import getpass
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from ddtop import registry
from ddtop.cli.errors import UNREACHABLE, CommandError
from ddtop.diagnosis.finding import HEALTHS, UNKNOWN
from ddtop.present.hosts.jobs import Health, Listed
from ddtop.present.text import clean
from ddtop.viewer.routes.relay import NoContactError
from ddtop.viewer.routes.schedulers.scheduler import (
    NoSuchJobError,
    SchedulerTarget,
    WrongNameError,
    last_line,
)
from ddtop.viewer.routes.schedulers.slurm import Slurm, SlurmJob, running

ANSWER_S = 30.0
"""The time for a step on a busy node, including the start of Python from a shared file system."""
AT_ONCE = 8
"""Steps that are started at the same time: each is a request to the controller."""
OUTPUT_BYTES_MAX = 4 << 20
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
        CommandError: 3, Slurm is not here, or does not answer.
    """
    try:
        mine = running(getpass.getuser())
    except NoContactError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [row for rows in pool.map(lambda one: _asked(one, ddtop), mine) for row in rows]


def _asked(job: SlurmJob, ddtop: str | None) -> list[tuple[Listed, Health]]:
    try:
        target = Slurm().find(job.number, ddtop)
        found = [_row(one) for one in _there(target)]
    except (NoSuchJobError, WrongNameError, NoContactError) as error:
        return [_without(job, str(error))]
    return found or [_without(job, "not watched: start its ranks with DDTOP=1")]


def _there(target: SchedulerTarget) -> list[_Job]:
    """The live jobs of ddtop that belong to this job of Slurm.

    Raises:
        NoContactError: there is no route into it.
    """
    command = target.words("jobs", "--json")
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, check=False
        )
    except OSError as error:
        raise NoContactError(f"cannot start {command[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise NoContactError(f"{target.name} has not answered for {ANSWER_S:g} s") from None
    try:
        jobs = msgspec.json.decode(done.stdout[:OUTPUT_BYTES_MAX], type=_Jobs).jobs
    except (msgspec.MsgspecError, ValueError):
        problem = last_line(done.stderr.decode(errors="replace"))
        raise NoContactError(f"no way into {target.name}: {problem}") from None
    nodes = {name.partition(".")[0] for name in target.nodes}
    return [
        one
        for one in jobs
        if one.live
        and (
            one.job.startswith(target.job_name)
            or nodes & {name.partition(".")[0] for name in one.hosts}
        )
    ]


def _row(one: _Job) -> tuple[Listed, Health]:
    entry = _entry(one.job, one.hosts, one.script, one.world_size, one.started_unix_ns)
    health = Health(
        one.health if one.health in HEALTHS else UNKNOWN,
        one.kind,
        clean(one.summary)[:SENTENCE_MAX] if one.summary else None,
        one.reporting,
        one.world_size,
        one.steps_per_s,
        one.no_progress_s,
        one.health_age_s,
    )
    return Listed(entry, True, one.reporting, one.hosts or ("?",)), health


def _without(job: SlurmJob, why: str) -> tuple[Listed, Health]:
    entry = _entry(job.number, (job.nodes,), job.name, 0, job.started_unix_ns)
    return Listed(entry, True, 0, (job.nodes,)), Health(UNKNOWN, sentence=why[:SENTENCE_MAX])


def _entry(
    job: str, hosts: tuple[str, ...], script: str, world_size: int, started_unix_ns: int
) -> registry.JobEntry:
    known: dict[str, Any] = {
        "schema": registry.SCHEMA,
        "job": registry.clean_job_name(job),
        "run": "",
        "host": hosts[0] if hosts else "",
        "sender": registry.ELSEWHERE,
        "relay_pid": 0,
        "relay_start_ticks": 0,
        "address": "",
        "port": 0,
        "socket": "",
        "script": script,
        "world_size": world_size,
        "reporting": 0,
        "started_unix_ns": started_unix_ns,
        "heartbeat_unix_ns": time.time_ns(),
    }
    return registry.JobEntry(**known)
