"""`ddtop signal`: sends a signal to ranks of a job, after asking.

The relay sends it, and only if the rank is still the process that the user saw.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import click

from ddtop.cli import completion
from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError, DdtopCommand, Trait
from ddtop.cli.output import echo
from ddtop.cli.place import PLACE, place_of

if TYPE_CHECKING:
    from ddtop.follow.live import LiveSource
    from ddtop.model.facts import RankFacts, Snapshot


@click.command("signal", cls=DdtopCommand, exits="0; 3 no contact", traits=Trait.ON_LINUX)
@click.argument("job", shell_complete=completion.jobs)
@click.option(
    "--rank",
    "ranks",
    required=True,
    shell_complete=completion.ranks,
    help="To these ranks: 0,3-5.",
)
@click.argument("signal", metavar="SIG")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@PLACE
def command(job: str, ranks: str, signal: str, yes: bool) -> int:
    """Send a signal to ranks of a job, after asking: ddtop signal JOB --rank 3 TERM"""
    return send(job, ranks, signal, yes)


def send(name: str, ranks: str, signal_text: str, sure: bool) -> int:
    """Send the signal to each rank in turn, and print a line for each.

    Returns:
        3 if one of the ranks could not be reached, else 0.

    Raises:
        CommandError: 2, no such ranks or signal, or no terminal to ask at; 3, no contact.
    """
    from ddtop.cli.ranks import parse_ranks
    from ddtop.cli.sources import act_on

    numbers, what = parse_ranks(ranks), parse_signal(signal_text)
    return act_on(
        place_of(name, 0.0, "signal"),
        lambda source, snapshot: _send_all(source, snapshot, numbers, what, sure),
        "no signal was sent",
    )


async def _send_all(
    source: LiveSource,
    snapshot: Snapshot,
    numbers: tuple[int, ...],
    what: signal.Signals,
    sure: bool,
) -> int:
    from ddtop.cli.ranks import check_ranks
    from ddtop.patience import in_thread

    check_ranks(numbers, snapshot)
    ranks = [snapshot.rank(number) for number in numbers]
    there = [rank for rank in ranks if not rank.gone and rank.pid is not None]
    for rank in ranks:
        if rank not in there:
            why = "gone" if rank.gone else "not here"
            click.echo(f"rank {rank.rank}: no signal was sent, its process is {why}")
    if not there:
        return UNREACHABLE
    # On a thread: the relay forgets a viewer that says nothing while a person thinks.
    if not sure and not await in_thread(_confirm, snapshot, there, what):
        click.echo("no signal was sent")
        return 0
    results = [await _send(source, rank, what) for rank in there]
    return 0 if all(results) and len(there) == len(ranks) else UNREACHABLE


def parse_signal(text: str) -> signal.Signals:
    """The signal that was typed as `TERM`, `SIGTERM`, `sigterm` or `15`.

    Raises:
        CommandError: 2, there is no such signal.
    """
    name = text.upper()
    try:
        if name.isascii() and name.isdigit():
            return signal.Signals(int(name))
        return signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    except (KeyError, ValueError):
        raise CommandError(
            f"ddtop: there is no signal {text[:40]!r}; write TERM, SIGTERM or 15", USAGE
        ) from None


def _confirm(snapshot: Snapshot, ranks: list[RankFacts], what: signal.Signals) -> bool:
    """Ask the user.

    Raises:
        CommandError: 2, there is no terminal to ask at.
    """
    if not sys.stdin.isatty():
        raise CommandError(
            "ddtop: there is no terminal to ask at: add --yes if you are sure",
            USAGE,
        )
    click.echo(f"{what.name} to {len(ranks)} of {snapshot.world_size} ranks of {snapshot.job}:")
    for rank in ranks:
        script = rank.hello.script if rank.hello else ""
        echo(f"  rank {rank.rank}  pid {rank.pid}  {rank.host}  {script}")
    return click.confirm("send it?")


async def _send(source: LiveSource, rank: RankFacts, what: signal.Signals) -> bool:
    """Ask the relay to send it, print its reply. True if it was sent."""
    from ddtop.follow.requests import REPLY_S

    reply = await source.signal(rank.rank, what.value)
    if reply is None:
        click.echo(
            f"rank {rank.rank}: the relay did not answer within {REPLY_S:.0f} s, "
            "whether it was sent is not known"
        )
        return False
    echo(reply.text if reply.ok else f"rank {rank.rank}: no signal was sent, {reply.text}")
    return reply.ok
