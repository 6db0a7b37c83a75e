"""`ddtop jobs`: the jobs of this user."""

from __future__ import annotations

import json

import click

from ddtop.cli.options import AS_JSON

NAMED = 3
"""Files that are named in the note about job files that were not read."""


@click.command("jobs")
@AS_JSON
@click.option(
    "--all", "parts", is_flag=True, help="A line for each host of a job that has several."
)
def command(as_json: bool, parts: bool) -> None:
    """Live and ended jobs of this user.

    Each has its health now: ok, warning, critical or unknown; how many ranks report, iterations a
    second, for how long no rank has made progress, and the sentence of its worst finding. Jobs that
    run on this host and were not started with ddtop come last.
    """
    from ddtop import registry
    from ddtop.cli import outside_jobs
    from ddtop.cli.job_list import jobs_json, table, table_with_health
    from ddtop.cli.output import glyphs, printable, width
    from ddtop.present.text import clean

    outside = outside_jobs.found()
    if as_json:
        listed = jobs_json(parts) | {"outside": outside_jobs.as_json(outside)}
        click.echo(json.dumps(listed))
        return
    entries = registry.read_entries()
    none = "no jobs; start one with: DDTOP=1 torchrun ..."
    lines = table(entries, parts) if parts else table_with_health(entries, width(), glyphs())
    click.echo("\n".join(lines) if entries else none)
    if outside:
        click.echo(printable("\n".join(outside_jobs.table(outside))))
    if refused := registry.refused_files():
        names = ", ".join(clean(name) for name in refused[:NAMED])
        click.echo(
            f"not read as job files of this version: {len(refused)} in {registry.state_dir()} "
            f"({names})",
            err=True,
        )
