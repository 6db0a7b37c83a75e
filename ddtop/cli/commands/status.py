"""`ddtop status`: one snapshot of a job."""

from __future__ import annotations

import click

from ddtop.cli.errors import DdtopCommand, Trait
from ddtop.cli.options import AS_JSON, JOB, WAIT
from ddtop.cli.place import LOCALS, PLACE, Here, print_each


@click.command(
    "status",
    cls=DdtopCommand,
    exits="0; 3 no contact; 4 the relay is not heard",
    traits=Trait.FROM_OUTSIDE | Trait.OF_ENDED,
)
@JOB
@WAIT
@AS_JSON
@LOCALS
@PLACE
def command(job: str | None, wait_s: float, as_json: bool, arguments: bool) -> int:
    """One snapshot as a table.

    Exit code 0; 3: no contact, 4: the relay is not heard, so the present state is unknown.
    """
    from ddtop.cli import look, sources

    def show(place: Here) -> int:
        return look.status(sources.look_at(place, "status"), as_json)

    return print_each(job, wait_s, "status", show, arguments)
