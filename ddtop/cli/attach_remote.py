"""`attach --ssh HOST` and `attach --hub HOST:PORT`: the dashboard on a job of another host."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Iterator

import click

from ddtop import registry
from ddtop.cli import dashboard, pick_job, recordings
from ddtop.cli.errors import UNREACHABLE, CommandError
from ddtop.cli.find_job import unknown_job_error
from ddtop.diagnosis.finding import UNKNOWN
from ddtop.feeds import bridge
from ddtop.feeds.bridge import RemoteJob, RemoteTarget, SshRoute, fetch, jobs_there
from ddtop.follow.engine import UnreachableError
from ddtop.follow.live import LiveSource
from ddtop.follow.looks import BRIEF_S, joined
from ddtop.link.ssh_pipe import Pipe, PipeError
from ddtop.present.jobs import Health, health_of

HEALTH_LOOK_S, HEALTH_JOIN_S = 0.6, 1.2
"""Two snapshots half a second apart confirm a finding. A relay that does not answer meanwhile must
not hold up the list, nor who leaves it."""
ASK_AGAIN_S = 1.0
"""How often the other host is asked for a job that does not exist yet."""


class NoJobThereError(CommandError):
    """That host has no job of ddtop at all: its jobs were started without ddtop."""


@contextlib.contextmanager
def open_bridge(host: RemoteTarget) -> Iterator[_There]:
    """The bridge on that host, which has greeted; it is closed at the end.

    Raises:
        CommandError: 3, no contact later. NoContactError: none now.
    """
    there = _There(host, host.start(asks=True, on_words=_echo))
    try:
        there.greeted = asyncio.run(there.pipe.wait_for_greeting(None)).host
        yield there
    except PipeError as error:
        words = [] if sys.stderr.isatty() else there.pipe.words
        raise CommandError(f"ddtop: {host.sentence(error, words)}", UNREACHABLE) from None
    finally:
        there.pipe.close()


def attach_through(host: RemoteTarget, name: str | None, wait_s: float, readonly: bool) -> None:
    """The dashboard on a job there.

    `wait_s`: how long to wait for the job.

    Raises:
        CommandError: 2, several jobs could be meant; 3, no contact, or no such job.
    """
    with open_bridge(host) as there:
        if name is None and there.several_live():
            _show_picked(there, readonly)
        else:
            _show_job(there, asyncio.run(_choose(there, name, wait_s)), readonly)


def job_there(host: RemoteTarget, name: str | None, wait_s: float) -> str:
    """The name of the job on that host that the user means.

    Raises:
        CommandError: as `attach_through`.
    """
    with open_bridge(host) as there:
        return asyncio.run(_choose(there, name, wait_s)).entry.job


@contextlib.contextmanager
def live_there(
    host: RemoteTarget, name: str | None, wait_s: float, controller: bool
) -> Iterator[tuple[LiveSource, str]]:
    """The live job there that the user means, as a source, and its name.

    Raises:
        CommandError: 2 and 3, as `attach_through`; 3 also if the job has ended.
    """
    with open_bridge(host) as there:
        job = asyncio.run(_choose(there, name, wait_s))
        if job.over:
            raise CommandError(
                f"ddtop: {job.entry.job} has ended; what it left: ddtop diagnose {host.option}"
                f" {job.entry.job}",
                UNREACHABLE,
            )
        route = SshRoute(host, job.entry, there.pipe)
        try:
            yield LiveSource(route, controller), job.entry.job
        finally:
            there.pipe = route.pipe


class _There:
    """The jobs of the other host.

    The list of jobs asks on several threads. The pipe takes one question at a time.
    """

    def __init__(self, host: RemoteTarget, pipe: Pipe) -> None:
        self.host, self.pipe = host, pipe
        self.found: list[RemoteJob] = []
        self.greeted = ""
        """How the bridge calls its host."""
        self.one_at_a_time = threading.Lock()
        self.to_list = False
        """True after a dashboard if the user wants to go back to the list of jobs."""

    def read(self) -> list[registry.JobEntry]:
        """The jobs of that host now.

        Raises:
            RegistryError: no answer.
        """
        with self.one_at_a_time:
            try:
                self.found = self.host.select(asyncio.run(jobs_there(self.pipe)), self.greeted)
            except PipeError as error:
                raise registry.RegistryError(self.host.sentence(error, self.pipe.words)) from None
        return [job.entry for job in self.found]

    def several_live(self) -> bool:
        """True if more than one job could be meant."""
        now = time.time_ns()
        return len({entry.job for entry in self.read() if entry.live(now)}) > 1

    def health(self, entry: registry.JobEntry) -> Health:
        """The health of a job, by a short look."""

        async def look(route: SshRoute) -> Health:
            async with joined(LiveSource(route, history_s=BRIEF_S), HEALTH_JOIN_S) as job:
                return health_of((await job.watch(HEALTH_LOOK_S))[1])

        with self.one_at_a_time:
            route = SshRoute(self.host, entry, self.pipe)
            try:
                return asyncio.run(look(route))
            except UnreachableError:
                return Health(UNKNOWN)
            finally:
                self.pipe = route.pipe

    def entry_of(self, picked: registry.JobEntry | None) -> RemoteJob | None:
        """The job of that entry, as it was read last; None if it is gone, or None was picked."""
        # A thread of the list may still be waiting for an answer on the pipe.
        with self.one_at_a_time:
            if picked is None:
                return None
            # An MPI launcher gives the run the same name on all hosts, so the sender counts too.
            meant = picked.job, picked.run, picked.sender
            return next(
                (
                    job
                    for job in self.found
                    if (job.entry.job, job.entry.run, job.entry.sender) == meant
                ),
                None,
            )


def _show_picked(there: _There, readonly: bool) -> None:
    """Show the list of jobs and the dashboard on the chosen job, alternately."""
    pick = pick_job.picker(there.read, there.health, of_this_host=False)
    while (picked := there.entry_of(pick())) is not None:
        _show_job(there, picked, readonly, from_list=True)
        if not there.to_list:
            return


def _show_job(there: _There, job: RemoteJob, readonly: bool, from_list: bool = False) -> None:
    """The dashboard on a live job, or on the journal of one that is over."""
    if job.over:
        there.to_list = _show_left(there, job, from_list)
        return
    route = SshRoute(there.host, job.entry, there.pipe)
    source = LiveSource(route, controller=not readonly)
    try:
        there.to_list = dashboard.show(source, route.job, readonly=readonly, from_list=from_list)
    finally:
        there.pipe = route.pipe


def _echo(line: str) -> None:
    """Print what ssh prints before it has connected: a banner may tell where to log in."""
    if sys.stderr.isatty():
        click.echo(line, err=True)


async def _choose(there: _There, name: str | None, wait_s: float) -> RemoteJob:
    """The job that the user means, by the rules for local jobs."""
    until = time.monotonic() + wait_s
    while True:
        jobs = there.host.select(await jobs_there(there.pipe), there.greeted)
        try:
            entry = registry.choose_job([job.entry for job in jobs], name, time.time_ns())
        except registry.UnknownJobError as error:
            if not jobs and name is None and time.monotonic() >= until:
                none = unknown_job_error(name, error, f"{there.host.option} ")
                raise NoJobThereError(str(none), UNREACHABLE) from None
            if error.ambiguous or time.monotonic() >= until:
                raise unknown_job_error(name, error, f"{there.host.option} ") from None
            await asyncio.sleep(ASK_AGAIN_S)
            continue
        return next(job for job in jobs if job.entry is entry)


def _show_left(there: _There, job: RemoteJob, from_list: bool) -> bool:
    """Show the journal of an ended job from a copy that is removed afterwards."""
    with bridge.folder() as folder:
        try:
            path = asyncio.run(fetch(there.pipe, job.entry, folder, last=False, progress=_progress))
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            raise CommandError(
                f"ddtop: cannot write to {folder}: {error.strerror}", UNREACHABLE
            ) from None
        if path is None:
            left = f"the relay of {job.entry.job} is gone and left nothing on {there.host.name}"
            raise CommandError(f"ddtop: {left}", UNREACHABLE)
        if not from_list:
            there.pipe.close()
        return recordings.open_journal(recordings.Recorded(path, job.entry.job, None), from_list)


def _progress(ratio: float) -> None:
    if sys.stderr.isatty():
        click.echo(f"\rcopying its journal, {ratio:.0%} ", nl=ratio >= 1, err=True)
