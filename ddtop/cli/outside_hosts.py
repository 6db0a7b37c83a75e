"""A job on several hosts that was started without ddtop: `--ssh HOST,HOST`, and `--slurm`, `--pbs`
or `--lsf` where no relay watches the job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import click

from ddtop.cli import dashboard
from ddtop.cli.errors import UNREACHABLE, CommandError
from ddtop.cli.output import (
    explain_no_dashboard,
    no_dashboard,
    print_findings,
    print_status,
    printable,
)
from ddtop.cli.outside import STATUS_S, Seen, watch
from ddtop.cli.over_ssh import host_called
from ddtop.diagnosis.finding import CRITICAL
from ddtop.feeds.bridge import RemoteTarget, SshTarget
from ddtop.feeds.relay import NoContactError
from ddtop.feeds.several import OutsideHosts

HOSTS_MAX = 64
"""Each host needs a program here and a login there."""

PATIENCE_S = 20.0
"""A login on a busy host may take this long."""


def hosts_called(names: str, remote: str | None) -> list[RemoteTarget]:
    """`node1,node2` as hosts behind ssh.

    Raises:
        CommandError: 2, that is no name of a host.
    """
    return [SshTarget(host_called(one), remote) for one in names.split(",")]


def diagnose(hosts: Sequence[RemoteTarget], as_json: bool, seconds: float = STATUS_S) -> int:
    """The findings about the job that these hosts run together.

    Returns:
        1 if a finding is critical, else 0.

    Raises:
        CommandError: 3, no contact with any of them.
    """
    from ddtop.present.documents import diagnose_json

    seen = see(hosts, seconds)
    if as_json:
        click.echo(json.dumps(diagnose_json(seen.snapshot, seen.verdict)))
    else:
        print_findings(seen.snapshot, seen.verdict)
    return 1 if seen.verdict.health == CRITICAL else 0


def status(hosts: Sequence[RemoteTarget], as_json: bool) -> int:
    """One snapshot of the job that these hosts run together. Returns 0.

    Raises:
        CommandError: 3, no contact with any of them.
    """
    from ddtop.present.documents import status_json

    seen = see(hosts, STATUS_S)
    if as_json:
        click.echo(json.dumps(status_json(seen.snapshot, seen.verdict)))
    else:
        print_status(seen.snapshot, seen.verdict)
    return 0


def attach(hosts: Sequence[RemoteTarget], name: str, readonly: bool) -> int:
    """The dashboard on the job that these hosts run together; the status table without a terminal.

    Raises:
        CommandError: 3, no contact with any of them; without a terminal only.
    """
    why = no_dashboard()
    if why is not None:
        explain_no_dashboard(why)
        return status(hosts, as_json=False)
    dashboard.show(OutsideHosts(_few(hosts)), name, readonly=readonly)
    return 0


def see(hosts: Sequence[RemoteTarget], seconds: float) -> Seen:
    """Look at the job on all these hosts at once, and print which hosts do not answer.

    Raises: CommandError: 3, none of them answers.
    """
    source = OutsideHosts(_few(hosts))
    look = asyncio.run(watch(source, seconds, PATIENCE_S))
    try:
        silent = source.silent
    except NoContactError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
    for note in silent:
        click.echo(printable(f"note: {note}"), err=True)
    assert look.snapshot is not None
    return Seen(look.snapshot.job, look.snapshot, look.verdict, None)


def _few(hosts: Sequence[RemoteTarget]) -> list[RemoteTarget]:
    if len(hosts) > HOSTS_MAX:
        note = f"note: looking at the first {HOSTS_MAX} of {len(hosts)} hosts"
        click.echo(note, err=True)
    return list(hosts[:HOSTS_MAX])
