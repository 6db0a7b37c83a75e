"""`ddtop diagnose`: what is wrong with a job."""

from __future__ import annotations

import json
import sys

import click

from ddtop.cli.errors import exit_code
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


@click.command("diagnose")
@JOB
@WAIT
@AS_JSON
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(0, 3600),
    default=2.0,
    show_default=True,
    help="How many seconds to look.",
)
@PID
@LOCALS
@OTHER_HOST
def command(
    job: str | None,
    wait_s: float,
    as_json: bool,
    seconds: float,
    pids: str | None,
    arguments: bool,
    host: str | None,
    remote: str | None,
    hub: str | None,
) -> None:
    """The findings. Health is ok, warning, critical or unknown.

    Exit code 0: nothing critical, 1: critical, 3: no contact, 4: unknown, the relay is not heard.
    """
    if host is not None and "," in host and job is None:
        from ddtop.cli import outside_hosts

        hosts = outside_hosts.hosts_called(host, remote)
        sys.exit(outside_hosts.diagnose(hosts, as_json, seconds))
    locals_with_pids(arguments, pids)
    if pids_alone(pids, job, host, hub):
        from ddtop.cli import outside

        sys.exit(outside.diagnose(pids or "", as_json, seconds, arguments))
    words = flags(wait=wait_s > 0, json=as_json)
    run_there(host, remote, hub, job, "diagnose", f"--for={seconds}", *words)
    sys.exit(diagnose(job, wait_s, as_json, seconds, hub))


def diagnose(
    name: str | None, wait_s: float, as_json: bool, seconds: float, hub: str | None = None
) -> int:
    """Look at a job for `seconds` and print the findings.

    Returns:
        1 if a finding is critical, 4 if the relay is not heard, else 0.

    Raises:
        CommandError: 2, several jobs could be meant; 3, no contact.
    """
    from ddtop.cli import outside, outside_jobs, pick_job
    from ddtop.cli.find_job import find
    from ddtop.cli.look import look
    from ddtop.cli.output import print_findings
    from ddtop.present.documents import diagnose_json

    none = name is None and hub is None and not wait_s and pick_job.none_live()
    if none and (pids := outside_jobs.waiting()):
        return outside.diagnose(pids, as_json, seconds)
    snapshot, verdict = look(find(name, wait_s, asked_by="diagnose", hub=hub), seconds)
    if as_json:
        click.echo(json.dumps(diagnose_json(snapshot, verdict)))
    else:
        print_findings(snapshot, verdict)
    return exit_code(verdict)
