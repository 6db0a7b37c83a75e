"""`--slurm`, `--k8s`, `--pbs` and `--lsf`: into a job that a scheduler runs."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

from ddtop.cli.attach_remote import job_there, through
from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError
from ddtop.cli.foreign_text import copied
from ddtop.cli.output import width
from ddtop.viewer.routes.relay import NoContactError
from ddtop.viewer.routes.schedulers.kubernetes import Kubernetes
from ddtop.viewer.routes.schedulers.lsf import Lsf
from ddtop.viewer.routes.schedulers.pbs import Pbs
from ddtop.viewer.routes.schedulers.scheduler import (
    NoSuchJobError,
    NotYetError,
    Scheduler,
    SchedulerTarget,
    WrongNameError,
)
from ddtop.viewer.routes.schedulers.slurm import Slurm

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEDULERS: dict[str, Scheduler] = {
    one.option: one for one in (Slurm(), Kubernetes(), Pbs(), Lsf())
}
ASK_AGAIN_S = 5.0
"""A controller that serves a whole cluster must not be asked more often."""


def attach(
    given: tuple[str, str], ddtop: str | None, name: str | None, wait_s: float, readonly: bool
) -> int:
    """The dashboard on the scheduler's job.

    `given`: the option and its value. `ddtop`: how ddtop is called there, None to look for it.
    `name`: the job's name for ddtop, where the scheduler's job has several.

    Returns:
        0; without a terminal 4 if the relay is not heard.

    Raises:
        CommandError: 2, no such name, or several jobs could be meant; 3, no contact, or no such
            job.
    """
    return through(target(given, ddtop, wait_s), name, wait_s, readonly)


def run(
    given: tuple[str, str],
    ddtop: str | None,
    name: str | None,
    wait_s: float,
    words: Sequence[str],
) -> int:
    """Run this command on a node of the scheduler's job. Returns its exit code.

    Raises:
        CommandError: as `attach`.
    """
    there = target(given, ddtop, wait_s)
    job = job_there(there, name, wait_s)
    process = subprocess.Popen(
        there.words(*words, "--", job, columns=width()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    return copied(process)


def target(given: tuple[str, str], ddtop: str | None, wait_s: float) -> SchedulerTarget:
    """The way into the job.

    `wait_s`: how long to wait for its nodes.

    Raises:
        CommandError: 2, that is no name of a job; 3, no way into it.
    """
    option, job = given
    until = time.monotonic() + wait_s
    while True:
        try:
            return SCHEDULERS[option].find(job, ddtop)
        except WrongNameError as error:
            raise CommandError(f"ddtop: {option}: {error}", USAGE) from None
        except NotYetError as error:
            if time.monotonic() >= until:
                raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
        except (NoSuchJobError, NoContactError) as error:
            raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
        time.sleep(ASK_AGAIN_S)
