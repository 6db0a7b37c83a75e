"""Slurm: `squeue` says where a job runs, a step of it that overlaps runs the bridge.

Source: the manual pages of squeue (`--Format`, JOB STATE CODES), scontrol and srun.
"""

from __future__ import annotations

import getpass
import os
import re
import time
from dataclasses import dataclass, replace

from ddtop.viewer.routes.relay import NoContactError
from ddtop.viewer.routes.schedulers.scheduler import (
    NoSuchJobError,
    NotYetError,
    SchedulerTarget,
    WrongNameError,
    asked,
    last_line,
)

_JOB = re.compile(r"\d+(?:_\d+|\+\d+)?")
_FORMAT = "%A|%i|%T|%r|%u|%N"
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")
_RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING")
_NOT_THERE = "Invalid job id"


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job that runs: its id as it is typed, its name, its nodes as Slurm writes them, and since
    when it runs (unix ns).
    """

    number: str
    name: str
    nodes: str
    started_unix_ns: int


def running(user: str) -> list[SlurmJob]:
    """The running jobs of this user, the newest first.

    Source: squeue with `%i|%M|%N|%j`; `%M` is the time that a job has used, D-HH:MM:SS.

    Raises:
        NoContactError: Slurm is not here, or does not answer.
    """
    code, out, err = asked(
        "squeue", "--noheader", f"--user={user}", "--states=RUNNING", "--format=%i|%M|%N|%j"
    )
    if code:
        raise NoContactError(f"squeue does not answer: {last_line(err)}")
    rows = [row.split("|", 3) for row in out.splitlines() if row.count("|") >= 3]
    now = time.time_ns()
    found = [
        SlurmJob(number, name.strip(), nodes, now - int(used_s(used) * 1e9))
        for number, used, nodes, name in rows
    ]
    return sorted(found, key=lambda one: -one.started_unix_ns)


def used_s(text: str) -> float:
    """Seconds of Slurm's `D-HH:MM:SS`; 0 for anything else."""
    days, dash, rest = text.strip().rpartition("-")
    parts = [*([days] if dash else ["0"]), *["0"] * (2 - rest.count(":")), *rest.split(":")]
    if len(parts) != 4 or not all(one.isascii() and one.isdigit() for one in parts):
        return 0.0
    return float(sum(int(one) * s for one, s in zip(parts, (86400, 3600, 60, 1), strict=True)))


class Slurm:
    """`--slurm JOBID`."""

    name, option = "Slurm", "--slurm"

    def find(self, job: str, ddtop: str | None) -> SchedulerTarget:
        """A step on the first node, beside those of the job."""
        if not _JOB.fullmatch(job):
            raise WrongNameError(f"{job!r} is not a Slurm job id, such as 4711 or 4711_3")
        code, out, err = asked(
            "squeue", "--noheader", "--states=all", f"--jobs={job}", f"--format={_FORMAT}"
        )
        if code and _NOT_THERE not in err:
            raise NoContactError(f"squeue does not answer: {last_line(err)}")
        rows = [row.split("|") for row in out.splitlines() if row.count("|") == 5]
        if not rows:
            raise NoSuchJobError(
                f"there is no Slurm job {job}, or it has been over for a while: ddtop jobs lists"
                " what was watched"
            )
        running = [row for row in rows if row[2] in _RUNNING and row[5].strip()]
        if len(running) > 1:
            tasks = ", ".join(row[1] for row in running[:4])
            raise WrongNameError(f"Slurm job {job} has several tasks that run: name one of {tasks}")
        if not running:
            raise _not_running(job, rows[0])
        raw, _, _, _, user, nodes = running[0]
        if os.getuid() != 0 and user != getpass.getuser():
            raise NoSuchJobError(f"Slurm job {job} is {user}'s, and only {user} can look into it")
        names = _names(nodes.strip())
        # Without these a step waits for memory or GPUs that the job's own steps hold.
        beside = ("--overlap", "--mem-per-cpu=0", "--gpus=0", "--immediate", "--wait=0")
        step = ("srun", f"--jobid={raw}", *beside, "--nodes=1", "--ntasks=1", "--input=all")
        nodes_of_job, prefix, typed = frozenset(names), f"{raw}.", f"--slurm {job}"
        each = tuple(
            SchedulerTarget(name, typed, (*step, f"--nodelist={name}"), nodes_of_job, prefix, ddtop)
            for name in names
        )
        return replace(each[0], name=f"Slurm job {job} on {names[0]}", each=each)


def _not_running(job: str, row: list[str]) -> NoSuchJobError:
    state, reason = row[2], row[3]
    if state in _WAITING:
        because = f" ({reason})" if reason not in ("", "None") else ""
        return NotYetError(f"Slurm job {job} has no nodes yet: {state}{because}")
    if state in ("SUSPENDED", "STOPPED"):
        return NoSuchJobError(f"Slurm job {job} is {state}: scontrol resume {job} continues it")
    return NoSuchJobError(
        f"Slurm job {job} is over: {state}; ddtop jobs lists what it has left, where it was watched"
    )


def _names(nodes: str) -> list[str]:
    """`node[0-1]` as its names."""
    code, out, err = asked("scontrol", "show", "hostnames", nodes)
    if code or not out.split():
        raise NoContactError(f"scontrol does not know the nodes {nodes}: {last_line(err)}")
    return out.split()
