"""`ddtop jobs`: the jobs of this user."""

from __future__ import annotations

import json

import click

from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError, DdtopCommand, Trait
from ddtop.cli.options import AS_JSON
from ddtop.cli.output import echo, glyphs, table_width
from ddtop.cli.place import REMOTE, SSH, host, led, remote, typed_command

NAMED = 3
"""Files that are named in the note about job files that were not read."""


@click.command("jobs", cls=DdtopCommand, exits="0; 3 no such ended run", traits=Trait.ON_LINUX)
@AS_JSON
@click.option(
    "--all", "parts", is_flag=True, help="One line for each host of a job on several hosts."
)
@click.option(
    "--hub",
    "hubs",
    multiple=True,
    metavar="HOST:PORT",
    help="The job whose relay listens there, instead of those in the state folder; may be given"
    " several times.",
)
@click.option(
    "--slurm",
    is_flag=True,
    help="All your running Slurm jobs, each asked on its own node.",
)
@click.option(
    "--attempts",
    "attempts",
    metavar="NAME",
    help="The ended runs of that name: when, how long, how far, what ended each, and whether to"
    " stop or restart.",
)
@SSH
@REMOTE
def command(
    as_json: bool, parts: bool, hubs: tuple[str, ...], slurm: bool, attempts: str | None
) -> int:
    """Live and ended jobs of this user.

    Each has its health now: ok, warning, critical or unknown; how many ranks report, iterations a
    second, for how long no rank has made progress, and the sentence of its worst finding. A job
    whose launcher has not started a rank yet has its name already. Jobs of this host that were not
    started with ddtop come last. The jobs of another user: sudo -u USER ddtop jobs.
    """
    there = led()
    if (hubs or slurm) and there:
        raise CommandError(
            "ddtop: --ssh, --hub and --slurm cannot be used together: give one of them", USAGE
        )
    if attempts is not None and (hubs or slurm or parts):
        raise CommandError("ddtop: --attempts cannot be used with --hub, --slurm or --all", USAGE)
    if hubs or slurm:
        print_jobs_elsewhere(hubs, slurm, parts, as_json)
        return 0
    if there:
        from ddtop.cli.over_ssh import over_ssh

        return over_ssh(host(there[1]), typed_command(click.get_current_context()))
    if attempts is not None:
        return print_attempts(attempts, as_json)
    from ddtop import registry
    from ddtop.cli import outside_jobs
    from ddtop.cli.job_list import (
        json_of,
        rows_as_table,
        rows_before_ranks,
        rows_of,
        table,
    )
    from ddtop.present.text import clean

    outside = outside_jobs.find_jobs(waiting=True)
    if as_json:
        rows = rows_before_ranks(outside) + rows_of(registry.read_entries(), parts)
        click.echo(json.dumps(json_of(rows) | {"outside": outside_jobs.as_json(outside)}))
        return 0
    entries, waiting = registry.read_entries(), rows_before_ranks(outside)
    none = "no jobs; start one with: DDTOP=1 torchrun ..."
    if parts:
        lines, waiting = table(entries, parts), []
    else:
        lines = rows_as_table(waiting + rows_of(entries), table_width(), glyphs())
        outside = [job for job in outside if job.ranks or not job.announced]
    click.echo("\n".join(lines) if entries or waiting else none)
    if outside:
        echo("\n".join(outside_jobs.table(outside)))
    if refused := registry.refused_files():
        names = ", ".join(clean(name) for name in refused[:NAMED])
        click.echo(
            f"not read as job files of this version: {len(refused)} in {registry.state_dir()} "
            f"({names})",
            err=True,
        )
    return 0


def print_attempts(name: str, as_json: bool) -> int:
    """The runs of this name that are over, the newest first.

    Raises:
        CommandError: 3, there is none.
    """
    from ddtop.cli import attempts

    found = attempts.attempts_of(name)
    if not found:
        raise CommandError(f"ddtop: no run named {name} has ended", UNREACHABLE)
    if as_json:
        click.echo(json.dumps(attempts.as_json(name, found)))
        return 0
    then = attempts.following(found)
    echo("\n".join([*attempts.lines(found), *([then.text()] if then is not None else [])]))
    return 0


def print_jobs_elsewhere(hubs: tuple[str, ...], slurm: bool, parts: bool, as_json: bool) -> None:
    """The jobs at these hubs, or those that Slurm knows.

    Raises:
        CommandError: 2, options that exclude each other, or no HOST:PORT; 3, no contact.
    """
    from ddtop.cli.find_job import hub_jobs
    from ddtop.cli.job_list import json_of, rows_as_table, slurm_jobs

    if (bool(hubs), slurm, parts).count(True) > 1:
        raise CommandError("ddtop: --hub, --slurm and --all cannot be used together", USAGE)
    if slurm:
        rows, none = slurm_jobs(remote()), "you have no running Slurm job"
    else:
        rows, none = hub_jobs(hubs), "no job"
    if as_json:
        click.echo(json.dumps(json_of(rows) | {"outside": []}))
        return
    click.echo("\n".join(rows_as_table(rows, table_width(), glyphs())) if rows else none)
