"""A job on several hosts that was started without ddtop: `--ssh HOST,HOST`, and `--slurm`, `--pbs`
or `--lsf` where no relay watches the job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from ddtop.cli import dashboard
from ddtop.cli.errors import UNREACHABLE, CommandError
from ddtop.cli.look import OUTSIDE_S, Seen
from ddtop.cli.output import (
    explain_no_dashboard,
    no_dashboard,
    print_status,
    printable,
)
from ddtop.cli.outside import watch
from ddtop.feeds.bridge import RemoteTarget
from ddtop.feeds.relay import NoContactError
from ddtop.feeds.several import OutsideHosts

HOSTS_MAX = 64
"""Each host needs a program here and a login there."""

PATIENCE_S = 20.0
"""A login on a busy host may take this long."""


def attach(hosts: Sequence[RemoteTarget], name: str, readonly: bool) -> int:
    """The dashboard on the job that these hosts run together; the status table without a terminal.

    Raises:
        CommandError: 3, no contact with any of them; without a terminal only.
    """
    why = no_dashboard()
    if why is not None:
        explain_no_dashboard(why)
        seen = see(hosts, OUTSIDE_S)
        print_status(seen.snapshot, seen.verdict)
        return 0
    dashboard.show(opened(hosts), name, readonly=readonly)
    return 0


def see(hosts: Sequence[RemoteTarget], seconds: float) -> Seen:
    """Look at the job on all these hosts at once, and print which hosts do not answer.

    Raises: CommandError: 3, none of them answers.
    """
    source = opened(hosts)
    look = asyncio.run(watch(source, seconds, PATIENCE_S))
    try:
        silent = source.silent
    except NoContactError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
    for note in silent:
        click.echo(printable(f"note: {note}"), err=True)
    assert look.snapshot is not None
    return Seen(look.snapshot.job, look.snapshot, look.verdict, outside=True)


def opened(hosts: Sequence[RemoteTarget]) -> OutsideHosts:
    """The job that these hosts run together, as a source."""
    if len(hosts) > HOSTS_MAX:
        note = f"note: looking at the first {HOSTS_MAX} of {len(hosts)} hosts"
        click.echo(note, err=True)
    return OutsideHosts(hosts[:HOSTS_MAX])
