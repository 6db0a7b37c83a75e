"""Finds the job that the user means, and tells what to do if there is none."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

import msgspec

from ddtop import registry
from ddtop.cli import outside_jobs
from ddtop.cli.errors import ELSEWHERE, UNREACHABLE, USAGE, CommandError
from ddtop.cli.interpreter import install_advice
from ddtop.cli.job_list import healths, table
from ddtop.cli.output import echo
from ddtop.cli.routing import asked_at, from_here
from ddtop.feeds.outside.jobs import Process, launchers_of, read
from ddtop.present.jobs import Health, Listed
from ddtop.present.text import clean
from ddtop.words.units import duration

HUB_VARIABLE = "DDTOP_HUB"
LISTED = 10
"""At most so many jobs are listed in an error message."""
READ_AGAIN_S = 0.25
LAUNCHERS_EVERY_S, LAUNCHER_ENDED_S = 1.0, 5.0
"""A launcher that fails is often started again by what called it, and a job file is written about a
second after the first rank has begun.
"""
JUST_ENDED_S = 30.0
"""A job that ended so long before it was waited for is the one that was meant: it failed at once.
An older one of the same name is the last run in CI."""
ENDED_WITHIN_S = 3600.0
"""A command that takes the job that ended last does so if that was at most so long ago."""


def find(
    name: str | None, wait_s: float = 0.0, *, asked_by: str, of_ended: bool = False
) -> registry.JobEntry:
    """The job's entry, at an address that can be asked from here.

    `name`: its name or the beginning of it, None for the one live job; without such a job the relay
    at $DDTOP_HUB is asked. `wait_s`: how long to wait for the job to appear. `asked_by`: the
    command's name. `of_ended`: without a name and a live job, take the one that ended last.

    Raises:
        CommandError: 2, several jobs could be meant; 3, no such job, or none that can be asked from
            here.
    """
    try:
        entry = entry_of(name, wait_s)
    except CommandError as error:
        ended = _ended_last() if name is None and of_ended else None
        if ended is None or error.code != UNREACHABLE:
            raise
        ago = duration((time.time_ns() - (ended.ended_unix_ns or 0)) / 1e9)
        echo(f"ddtop: no live job; this is {clean(ended.job)}, which ended {ago} ago", err=True)
        entry = ended
    return from_here(entry, asked_by)


def _ended_last() -> registry.JobEntry | None:
    """The job that ended last, if that was within the last hour."""
    try:
        ended = [entry for entry in registry.read_entries() if entry.ended_unix_ns is not None]
    except registry.RegistryError:
        return None
    last = max(ended, key=lambda entry: entry.ended_unix_ns or 0, default=None)
    if last is None or time.time_ns() - (last.ended_unix_ns or 0) > ENDED_WITHIN_S * 1e9:
        return None
    return last


def entry_of(name: str | None, wait_s: float = 0.0) -> registry.JobEntry:
    """The job's entry as its file has it, or as the relay at $DDTOP_HUB says if there is no file.

    Raises:
        CommandError: 2, several jobs could be meant; 3, no such job.
    """
    if not sys.platform.startswith("linux"):
        raise CommandError(ELSEWHERE, UNREACHABLE)
    until, launchers = time.monotonic() + wait_s, Launchers(name)
    since_unix_ns = time.time_ns() - int(JUST_ENDED_S * 1e9)
    while True:
        try:
            entry = registry.find_job(name, time.time_ns())
            ended_unix_ns = entry.ended_unix_ns or entry.heartbeat_unix_ns
            if not wait_s or ended_unix_ns > since_unix_ns or entry.live(time.time_ns()):
                return entry
            raise registry.UnknownJobError(f"no job named {entry.job} has started since", [entry])
        except registry.RegistryError as error:
            raise CommandError(str(error), UNREACHABLE) from None
        except registry.UnknownJobError as error:
            launcher = launchers.ended_launcher() if wait_s else None
            if launcher is not None:
                text = f"its launcher, {launcher}, has ended, and no rank was seen"
                raise CommandError(f"ddtop: {error}: {text}", UNREACHABLE) from None
            if error.ambiguous or time.monotonic() >= until:
                hub = os.environ.get(HUB_VARIABLE)
                if name is None and not error.ambiguous and hub:
                    return asked_at(hub, HUB_VARIABLE)
                raise unknown_job_error(name, error) from None
        time.sleep(READ_AGAIN_S)


class Launchers:
    """The launchers of a job that is waited for, as far as this process has seen them."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._seen: dict[tuple[int, int], Process] = {}
        self._lived_s = self._looked_s = float("-inf")

    def ended_launcher(self) -> str | None:
        """`timeout (pid 4711)`: one of them, if all have ended."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LAUNCHERS_EVERY_S:
            self._looked_s = now_s
            self._seen |= launchers_of(read(os.getuid()), self._name, os.getpid())
            if any(registry.start_ticks(pid) == ticks for pid, ticks in self._seen):
                self._lived_s = now_s
        if not self._seen or now_s - self._lived_s < LAUNCHER_ENDED_S:
            return None
        process = next(iter(self._seen.values()))
        return f"{os.path.basename(process.argv[0])} (pid {process.pid})"


def unknown_job_error(
    name: str | None, error: registry.UnknownJobError, there: str = ""
) -> CommandError:
    """The error for a name that no job, or more than one, has: 3, or 2.

    `there`: the options that lead to the jobs of another host, for the command that it proposes.
    """
    lines = [f"ddtop: {error}"]
    if error.entries:
        lines.append("jobs:" if not error.ambiguous else "they are:")
        lines += [f"  {line}" for line in table(error.entries[:LISTED])]
        if len(error.entries) > LISTED:
            lines.append(f"  and {len(error.entries) - LISTED} more: ddtop jobs")
    if error.ambiguous:
        return CommandError("\n".join(lines), USAGE)
    if name is None and error.entries:
        example = f"ddtop attach {there}{error.entries[0].job}"
        lines.append(f"open an ended one by its name: {example}")
    lines.append("start one with: DDTOP=1 torchrun --nproc-per-node 4 train.py")
    if not there:
        lines += outside_jobs.table(outside_jobs.find_jobs(waiting=True)[:LISTED])
    hint = install_advice(sys.executable) if not there else None
    if hint:
        lines.append(hint)
    return CommandError("\n".join(lines), UNREACHABLE)


# -- `ddtop jobs --hub HOST:PORT`: the jobs whose relays listen at these ports


def hub_jobs(hubs: Iterable[str]) -> list[tuple[Listed, Health]]:
    """The job at each of these, as it is now.

    Raises:
        CommandError: 2, one of them is not a HOST:PORT; 3, no relay of this user answers there.
    """
    # Only its job file says when it started.
    found = [
        msgspec.structs.replace(asked_at(hub), started_unix_ns=0) for hub in dict.fromkeys(hubs)
    ]
    return [
        (Listed(entry, True, health.reporting or 0, (entry.host,)), health)
        for entry, health in zip(found, healths(found), strict=True)
    ]
