"""`ddtop gpus`: the GPUs of this host and who holds them. No relay is asked."""

from __future__ import annotations

import json

import click

from ddtop.cli.errors import DdtopCommand, Trait
from ddtop.cli.options import AS_JSON
from ddtop.cli.output import echo, width
from ddtop.thresholds import chosen

NONE_FREE = 1


@click.command(
    "gpus",
    cls=DdtopCommand,
    exits="0; 1 no GPU is free; 3 no driver, or it does not answer within ten seconds",
    traits=Trait.ON_LINUX,
)
@AS_JSON
def command(as_json: bool) -> int:
    """Free and busy GPUs of this host, and who holds them.

    Exit code 1: none is free, 3: no driver.
    """
    return gpus(as_json)


def gpus(as_json: bool) -> int:
    """Print the GPUs.

    Returns:
        0, or 1 if none is free.

    Raises:
        CommandError: 3, no driver, or it does not answer.
    """
    from ddtop.cli import gpu_query
    from ddtop.present.gpus import gpus_json, gpus_lines, is_free

    found, driver = gpu_query.read()
    if as_json:
        click.echo(json.dumps(gpus_json(found, driver, chosen())))
    else:
        echo("\n".join(gpus_lines(found, driver, width(), chosen())))
    return 0 if any(is_free(gpu, chosen()) for gpu in found) else NONE_FREE
