"""`--slurm`, `--k8s`, `--pbs` and `--lsf`: reach a job that a scheduler runs."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

import click

from ddtop.cli.attach_remote import NoJobThereError, job_there, through
from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError
from ddtop.cli.output import printable, width
from ddtop.cli.over_ssh import copied
from ddtop.feeds.relay import NoContactError
from ddtop.feeds.schedulers import (
    Kubernetes,
    Lsf,
    NoSuchJobError,
    NotYetError,
    Pbs,
    Scheduler,
    SchedulerTarget,
    Slurm,
    WrongNameError,
)
from ddtop.words.units import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

_FROM_OUTSIDE = ("diagnose", "status")
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
    there = target(given, ddtop, wait_s)
    try:
        return through(there, name, wait_s, readonly)
    except NoJobThereError as error:
        hosts, note = _each(there, error)
    from ddtop.cli import outside_hosts

    click.echo(printable(note), err=True)
    return outside_hosts.attach(hosts, " ".join(given), readonly)


def run(
    given: tuple[str, str],
    ddtop: str | None,
    name: str | None,
    wait_s: float,
    words: Sequence[str],
) -> int:
    """Run this command on a node of the scheduler's job. Returns its exit code.

    Where nothing watches that job, `diagnose` and `status` look at it from outside, on each of its
    nodes.

    Raises:
        CommandError: as `attach`.
    """
    there = target(given, ddtop, wait_s)
    try:
        job = job_there(there, name, wait_s)
    except NoJobThereError as error:
        if words[0] not in _FROM_OUTSIDE:
            raise
        hosts, note = _each(there, error)
        click.echo(printable(note), err=True)
        return _from_outside(hosts, words)
    process = subprocess.Popen(
        there.words(*words, "--", job, columns=width()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    return copied(process)


def unwatched(
    given: tuple[str, str], ddtop: str | None, name: str | None, wait_s: float
) -> tuple[SchedulerTarget, ...]:
    """The nodes of the scheduler's job if nothing watches it; empty if something does.

    Raises:
        CommandError: as `attach`.
    """
    there = target(given, ddtop, wait_s)
    try:
        job_there(there, name, wait_s)
    except NoJobThereError as error:
        hosts, note = _each(there, error)
        click.echo(printable(note), err=True)
        return hosts
    return ()


def _each(
    there: SchedulerTarget, error: NoJobThereError
) -> tuple[tuple[SchedulerTarget, ...], str]:
    """The nodes of a job that nothing watches, and a sentence about it.

    Raises:
        NoJobThereError: `error`, if not every node can be reached.
    """
    if not there.each:
        raise error
    nodes = plural(len(there.each), "node")
    return there.each, f"note: no ddtop runs in {there.name}: looking from outside, on {nodes}"


def _from_outside(hosts: Sequence[SchedulerTarget], words: Sequence[str]) -> int:
    from ddtop.cli import outside_hosts

    as_json = "--json" in words
    if words[0] == "status":
        return outside_hosts.status(hosts, as_json)
    seconds = next((word[6:] for word in words if word.startswith("--for=")), "2.0")
    return outside_hosts.diagnose(hosts, as_json, float(seconds))


def target(given: tuple[str, str], ddtop: str | None, wait_s: float) -> SchedulerTarget:
    """The route into the job.

    `wait_s`: how long to wait for its nodes. Raises: CommandError: 2, that is not the name of a
    job; 3, there is no route into it.
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
