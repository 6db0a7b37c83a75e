"""`ddtop stacks`: asks the ranks for their stacks, waits for the answers, prints them merged."""

from __future__ import annotations

import click

from ddtop.cli import completion
from ddtop.cli.errors import USAGE, CommandError, DdtopCommand, Trait
from ddtop.cli.options import AS_JSON, JOB, NO_SOURCE, WAIT
from ddtop.cli.place import PLACE, led, print_each


@click.command(
    "stacks",
    cls=DdtopCommand,
    exits="0; 1 some ranks did not answer; 3 no contact; 4 the relay is not heard",
    traits=Trait.FROM_OUTSIDE,
)
@JOB
@WAIT
@AS_JSON
@click.option("--rank", "ranks", shell_complete=completion.ranks, help="Only these ranks: 0,3-5.")
@click.option(
    "--native",
    is_flag=True,
    help="With C and C++ frames, through py-spy; each process stops for a moment.",
)
@click.option(
    "--signal",
    "by_signal",
    is_flag=True,
    help="By signal where C code holds the GIL; a call in C such as sleep may return early there.",
)
@click.option("--tree", is_flag=True, help="Every frame once, with the ranks whose stacks have it.")
@click.option("--threads", is_flag=True, help="All frames of the other threads too.")
@click.option("--frames", is_flag=True, help="All frames of libraries and frameworks too.")
@click.option("--last", is_flag=True, help="The last stacks that were taken; no rank is asked.")
@NO_SOURCE
@PLACE
def command(
    job: str | None,
    wait_s: float,
    as_json: bool,
    ranks: str | None,
    native: bool,
    by_signal: bool,
    tree: bool,
    threads: bool,
    frames: bool,
    last: bool,
    no_source: bool,
) -> int:
    """The stacks of all ranks, equal ones merged.

    Exit code 1: a rank did not answer, 3: no contact, 4: the relay is not heard.
    """
    from ddtop.cli.asked_stacks import Wanted, stacks_at
    from ddtop.cli.ranks import parse_ranks
    from ddtop.present.stacks import Shape
    from ddtop.wire.records import BY_SIGNAL, NATIVE

    pids = (led() or ("",))[0] == "--pid"
    if by_signal and (native or last or pids):
        raise CommandError("ddtop: --signal cannot be used with --native, --last or --pid", USAGE)
    if pids and ranks is not None:
        raise CommandError("ddtop: --pid takes no job name: it names processes", USAGE)
    numbers = parse_ranks(ranks) if ranks is not None else ()
    how = NATIVE if native else BY_SIGNAL if by_signal else ""
    wanted = Wanted(numbers, how, as_json, Shape(tree, threads, frames), last, source=not no_source)
    return print_each(
        job, wait_s, "stacks", lambda place: stacks_at(place, wanted), named=not as_json
    )
