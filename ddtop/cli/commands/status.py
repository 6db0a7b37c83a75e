"""`ddtop status`: one snapshot of a job."""

from __future__ import annotations

import sys

import click

from ddtop.cli.options import (
    AS_JSON,
    JOB,
    LOCALS,
    OTHER_HOST,
    PID,
    WAIT,
    flags,
    locals_with_pids,
    pids_alone,
    run_there,
)


@click.command("status")
@JOB
@WAIT
@AS_JSON
@PID
@LOCALS
@OTHER_HOST
def command(
    job: str | None,
    wait_s: float,
    as_json: bool,
    pids: str | None,
    arguments: bool,
    host: str | None,
    remote: str | None,
    hub: str | None,
) -> None:
    """One snapshot as a table.

    Exit code 0; 3: no contact, 4: the relay is not heard, so the present state is unknown.
    """
    if host is not None and "," in host and job is None:
        from ddtop.cli import outside_hosts

        hosts = outside_hosts.hosts_called(host, remote)
        sys.exit(outside_hosts.status(hosts, as_json))
    locals_with_pids(arguments, pids)
    if pids_alone(pids, job, host, hub):
        from ddtop.cli import outside

        sys.exit(outside.status(pids or "", as_json, arguments))
    from ddtop.cli.find_job import find
    from ddtop.cli.look import status

    run_there(host, remote, hub, job, "status", *flags(wait=wait_s > 0, json=as_json))
    sys.exit(status(find(job, wait_s, asked_by="status", hub=hub), as_json))
