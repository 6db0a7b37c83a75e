"""`ddtop diagnose`: what is wrong with a job."""

from __future__ import annotations

import click

from ddtop.cli.errors import DdtopCommand, Trait
from ddtop.cli.options import AS_JSON, JOB, WAIT
from ddtop.cli.place import LOCALS, PLACE, Here, Pids, led, print_each


@click.command(
    "diagnose",
    cls=DdtopCommand,
    exits=(
        "0 nothing critical; 1 a critical finding; 3 no contact; 4 unknown: the relay is not heard"
    ),
    traits=Trait.FROM_OUTSIDE | Trait.OF_ENDED,
)
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
@LOCALS
@PLACE
def command(job: str | None, wait_s: float, as_json: bool, seconds: float, arguments: bool) -> int:
    """The findings. Health is ok, warning, critical or unknown.

    Exit code 0: nothing critical, 1: critical, 3: no contact, 4: unknown, the relay is not heard.
    """
    from ddtop.cli import look, outside_jobs, pick_job, sources

    anywhere = job is None and not wait_s and not led() and pick_job.none_live()
    waiting = outside_jobs.waiting_pids() if anywhere else None

    def show(place: Here) -> int:
        return look.diagnose(sources.look_at(place, "diagnose", seconds), as_json)

    if waiting:
        return show(Pids(waiting))
    return print_each(job, wait_s, "diagnose", show, arguments)
