"""`ddtop signal`: sends a signal to ranks of a job, after asking.

The relay sends it, and only if the rank is still the process that the user saw.
"""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING

import click

from ddtop import registry
from ddtop.cli import completion
from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError
from ddtop.cli.output import printable

if TYPE_CHECKING:
    from ddtop.follow.engine import Follower
    from ddtop.link.viewer_side import ViewerLink
    from ddtop.model.facts import RankFacts


@click.command("signal")
@click.argument("job", shell_complete=completion.jobs)
@click.option(
    "--rank",
    "ranks",
    required=True,
    shell_complete=completion.ranks,
    help="To these ranks: 0,3-5.",
)
@click.argument("signal", metavar="SIG")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(job: str, ranks: str, signal: str, yes: bool) -> None:
    """Send a signal to ranks of a job, after asking: ddtop signal JOB --rank 3 TERM"""
    sys.exit(send(job, ranks, signal, yes))


def send(name: str, ranks: str, signal_text: str, sure: bool) -> int:
    """Send the signal to each rank in turn, and print a line for each.

    Returns:
        3 if one of the ranks could not be reached, else 0.

    Raises:
        CommandError: 2, no such ranks or signal, or no terminal to ask at; 3, no contact.
    """
    from ddtop.cli.find_job import join_to_act
    from ddtop.cli.ranks import check_ranks, parse_ranks

    numbers, what = parse_ranks(ranks), parse_signal(signal_text)
    entry, follower, link = join_to_act(name, "signal", "no signal was sent")
    try:
        snapshot, _ = follower.look()
        check_ranks(numbers, snapshot)
        found = [snapshot.rank(number) for number in numbers]
        there = [rank for rank in found if not rank.gone and rank.pid is not None]
        for rank in found:
            if rank not in there:
                why = "gone" if rank.gone else "not here"
                click.echo(f"rank {rank.rank}: no signal was sent, its process is {why}")
        if not there:
            return UNREACHABLE
        if not sure and not _confirmed(entry, there, what):
            click.echo("no signal was sent")
            return 0
        results = [_send(follower, link, rank, what) for rank in there]
    finally:
        link.close()
    return 0 if all(results) and len(there) == len(found) else UNREACHABLE


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


def _confirmed(entry: registry.JobEntry, ranks: list[RankFacts], what: signal.Signals) -> bool:
    """Ask the user.

    Raises:
        CommandError: 2, there is no terminal to ask at.
    """
    if not sys.stdin.isatty():
        raise CommandError("ddtop: no terminal to ask at: add --yes if you are sure", USAGE)
    click.echo(f"{what.name} to {len(ranks)} of {entry.world_size} ranks of {entry.job}:")
    for rank in ranks:
        script = rank.hello.script if rank.hello else ""
        click.echo(printable(f"  rank {rank.rank}  pid {rank.pid}  {rank.host}  {script}"))
    return click.confirm("send it?")


def _send(follower: Follower, link: ViewerLink, rank: RankFacts, what: signal.Signals) -> bool:
    """Ask the relay to send it, print its reply. True if it was sent."""
    from ddtop.follow.engine import request
    from ddtop.follow.requests import REPLY_S, signal_command

    follower.asking.forget_signals()
    link.send(request(signal_command(rank.rank, rank.pid or 0, what.value)))
    until = time.monotonic() + REPLY_S
    while (left := until - time.monotonic()) > 0:
        for data in link.receive(min(left, 0.05)):
            follower.take(data)
            reply = follower.asking.signal_reply()
            if reply is not None:
                refused = f"rank {rank.rank}: no signal was sent, {reply.text}"
                click.echo(printable(reply.text if reply.ok else refused))
                return reply.ok
    click.echo(
        f"rank {rank.rank}: the relay did not answer within {REPLY_S:.0f} s, "
        "whether it was sent is not known"
    )
    return False
