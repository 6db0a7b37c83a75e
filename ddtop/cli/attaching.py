"""`attach --ssh HOST` and `attach --hub HOST:PORT`: the dashboard on a job of another host."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import TYPE_CHECKING

import click

from ddtop import registry
from ddtop.cli import reaching
from ddtop.cli.jobs import HEALTH_LOOK_S, UNREACHABLE, USAGE, CommandError, unknown
from ddtop.cli.looking import STATUS_S, plain_terminal
from ddtop.diagnosis.finding import UNKNOWN
from ddtop.viewer.routes.relay import NoContactError, PortWay, Way

if TYPE_CHECKING:
    from ddtop.link.ssh_pipe import Pipe
    from ddtop.present.hosts.jobs import Health
    from ddtop.viewer.live import LiveSource
    from ddtop.viewer.routes.ssh import Found, Host

ASK_AGAIN_S = 1.0
LOOK_S = 0.5


def over_ssh(host_name: str, ddtop: str | None, name: str | None, wait_s: float, readonly: bool) -> None:
    """The dashboard on a job of that host.

    Raises:
        CommandError: 2, no host name, or several jobs could be meant; 3, no contact, or no such job.
    """
    from ddtop.link.ssh_pipe import PipeError
    from ddtop.viewer.routes.ssh import Host

    host = Host(host_called(host_name), ddtop)
    try:
        there = _There(host, host.start(asks=True, on_words=_echo))
    except NoContactError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
    try:
        asyncio.run(there.pipe.greeted(None))
        if name is None and plain_terminal() is None and there.several_live():
            while (picked := _pick(there)) is not None and _show_job(there, picked, readonly, from_list=True):
                pass
        else:
            _show_job(there, asyncio.run(_choose(there.pipe, host.name, name, wait_s)), readonly)
    except PipeError as error:
        words = [] if sys.stderr.isatty() else there.pipe.words
        raise CommandError(f"ddtop: {host.why(error, words)}", UNREACHABLE) from None
    finally:
        there.pipe.close()


class _There:
    """The jobs of the other host, for a list of them. One asks at a time: the list does so from several threads."""

    def __init__(self, host: Host, pipe: Pipe) -> None:
        self.host, self.pipe = host, pipe
        self.found: list[Found] = []
        self.one_at_a_time = threading.Lock()

    def read(self) -> list[registry.JobEntry]:
        """What is there now.

        Raises:
            RegistryError: no answer.
        """
        from ddtop.link.ssh_pipe import PipeError
        from ddtop.viewer.routes.ssh import jobs_there

        with self.one_at_a_time:
            try:
                self.found = asyncio.run(jobs_there(self.pipe))
            except PipeError as error:
                raise registry.RegistryError(self.host.why(error, self.pipe.words)) from None
        return [one.entry for one in self.found]

    def several_live(self) -> bool:
        """More than one job could be meant."""
        now = time.time_ns()
        return len({(one.job) for one in self.read() if one.live(now)}) > 1

    def ask(self, entry: registry.JobEntry) -> Health:
        """How a job is doing, by a short look."""
        from ddtop.link.ssh_pipe import PipeError
        from ddtop.present.hosts.jobs import Health, health_of
        from ddtop.viewer.routes.ssh import verdict_there

        with self.one_at_a_time:
            try:
                verdict = asyncio.run(verdict_there(self.pipe, entry, HEALTH_LOOK_S))
            except PipeError:
                return Health(UNKNOWN)
        return health_of(verdict) if verdict is not None else Health(UNKNOWN)


def _pick(there: _There) -> Found | None:
    """The job that a person chooses from the list; None where the list was quit."""
    from ddtop.ui import picker
    from ddtop.ui.settings import kept

    app = picker.PickerApp(picker.Found(there.read, there.ask), kept=kept())
    app.run()
    # Who was being asked when the list was left may still answer.
    with there.one_at_a_time:
        picked = app.picked
        # Launchers of MPI give one name to the run on all hosts.
        meant = (picked.job, picked.run, picked.sender) if picked is not None else None
        return next((one for one in there.found if (one.entry.job, one.entry.run, one.entry.sender) == meant), None)


def _show_job(there: _There, found: Found, readonly: bool, from_list: bool = False) -> bool:
    """True where the list of jobs is wanted after it."""
    from ddtop.viewer.routes.ssh import SshWay

    if found.over:
        return _show_left(there, found, from_list)
    way = SshWay(there.host, found.entry, there.pipe)
    try:
        return show(way, readonly, from_list)
    finally:
        there.pipe = way.pipe


def host_called(name: str) -> str:
    """The name, if ssh will take it for one.

    Raises:
        CommandError: 2, it will not.
    """
    # ssh would take it for an option, and an option can run a command.
    if not name.strip() or name.startswith("-") or not name.isprintable():
        raise CommandError(f"ddtop: --ssh {name!r} is not the name of a host", USAGE)
    return name


def _echo(line: str) -> None:
    """What ssh says before it has connected, as ssh itself would show it: a banner may tell where to log in."""
    if sys.stderr.isatty():
        click.echo(line, err=True)


async def _choose(pipe: Pipe, host: str, name: str | None, wait_s: float) -> Found:
    """The job that is meant, by the rules for a local one."""
    from ddtop.viewer.routes.ssh import jobs_there

    until = time.monotonic() + wait_s
    while True:
        jobs = await jobs_there(pipe)
        try:
            entry = registry.choose_job([one.entry for one in jobs], name, time.time_ns())
        except registry.UnknownJobError as error:
            if error.ambiguous or time.monotonic() >= until:
                raise unknown(name, error, f"--ssh {host} ") from None
            await asyncio.sleep(ASK_AGAIN_S)
            continue
        return next(one for one in jobs if one.entry is entry)


def _show_left(there: _There, found: Found, from_list: bool) -> bool:
    """A job that is over: its journal, copied for as long as it is looked at."""
    from ddtop.cli import replaying
    from ddtop.viewer import temp_journals
    from ddtop.viewer.routes.ssh import fetch

    with temp_journals.folder() as folder:
        try:
            path = asyncio.run(fetch(there.pipe, found.entry, folder, last=False, progress=_progress))
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            raise CommandError(f"ddtop: cannot write to {folder}: {error.strerror}", UNREACHABLE) from None
        if path is None:
            left = f"the relay of {found.entry.job} is gone and left nothing on {there.host.name}"
            raise CommandError(f"ddtop: {left}", UNREACHABLE)
        if not from_list:
            there.pipe.close()
        return replaying.open_journal(replaying.Recorded(path, found.entry.job, None), from_list)


def _progress(ratio: float) -> None:
    if sys.stderr.isatty():
        click.echo(f"\rcopying its journal, {ratio:.0%} ", nl=ratio >= 1, err=True)


def to_hub(where: str, readonly: bool, said: str = "--hub") -> None:
    """The dashboard on whatever job's relay listens there, with the user's key. `said`: who named the place.

    Raises:
        CommandError: 2, no HOST:PORT; 3, no answer.
    """
    entry = reaching.asked_at(where, said)
    show(PortWay(entry.job, entry.address, entry.port), readonly)


def show(way: Way, readonly: bool, from_list: bool = False) -> bool:
    """The dashboard on the job at the end of this way, the status table where there is no terminal; True where the list of jobs is
    wanted after it."""
    from ddtop.ui.app import DdtopApp
    from ddtop.ui.settings import kept
    from ddtop.viewer.live import LiveSource

    source = LiveSource(way, controller=not readonly)
    why = plain_terminal()
    if why is None:
        app = DdtopApp(source, way.job, readonly=readonly, from_list=from_list, kept=kept())
        app.run()
        return app.to_list
    click.echo(f"ddtop: {why}, so here is the status table instead of the dashboard", err=True)
    asyncio.run(_print(source))
    return False


async def _print(source: LiveSource) -> None:
    """The status table of what is true after a short look.

    Raises:
        CommandError: 3, nothing was heard.
    """
    from ddtop.cli import glyphs, width
    from ddtop.present.plain import status_text
    from ddtop.viewer.follower import JOIN_S

    feeding = asyncio.create_task(source.run())
    began = time.monotonic()
    try:
        look = source.look()
        while look.snapshot is None and time.monotonic() < began + JOIN_S:
            await asyncio.sleep(LOOK_S / 10)
            look = source.look()
        until = time.monotonic() + STATUS_S
        while look.snapshot is not None and look.snapshot.ended is None and time.monotonic() < until:
            await asyncio.sleep(LOOK_S)
            look = source.look()
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    if look.snapshot is None:
        raise CommandError(f"ddtop: {look.contact or 'the relay does not answer'}", UNREACHABLE)
    click.echo(status_text(look.snapshot, look.verdict, width(), glyphs()), nl=False)
