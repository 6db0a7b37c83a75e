"""`ddtop signal`: sends a signal to ranks of a job, after asking; the relay sends it, if the rank is still that process."""

from __future__ import annotations

import signal
import sys
import time

import click

from ddtop import registry
from ddtop.cli.jobs import UNREACHABLE, USAGE, CommandError, find, shown
from ddtop.cli.ranks import check_ranks, parse_ranks, parse_signal
from ddtop.link.viewer_side import ViewerLink
from ddtop.model.state.facts import RankFacts
from ddtop.viewer.follower import Follower, UnreachableError, join, request
from ddtop.viewer.requests import REPLY_S, signal_command


def send(name: str, ranks: str, signal_text: str, sure: bool) -> int:
    """Send it to each rank in turn, a line each; 3 if one of them could not be reached.

    Raises:
        CommandError: 2, no such ranks or signal, or nobody to ask; 3, no contact.
    """
    numbers, what = parse_ranks(ranks), parse_signal(signal_text)
    entry = find(name, asked_by="signal")
    if not entry.reachable(time.time_ns()):
        raise CommandError(f"ddtop: {entry.job} has ended or its relay is gone: no signal was sent", UNREACHABLE)
    try:
        follower, link = join(entry, controller=True)
    except UnreachableError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
    try:
        snapshot, _ = follower.look()
        check_ranks(numbers, snapshot)
        found = [snapshot.rank(number) for number in numbers]
        there = [rank for rank in found if not rank.gone and rank.pid is not None]
        for rank in found:
            if rank not in there:
                click.echo(
                    f"rank {rank.rank}: no signal was sent, its process is {'gone' if rank.gone else 'not here'}"
                )
        if not there:
            return UNREACHABLE
        if not sure and not _agreed(entry, there, what):
            click.echo("no signal was sent")
            return 0
        results = [_send(follower, link, rank, what) for rank in there]
    finally:
        link.close()
    return 0 if all(results) and len(there) == len(found) else UNREACHABLE


def _agreed(entry: registry.JobEntry, ranks: list[RankFacts], what: signal.Signals) -> bool:
    """Whether the person at the terminal is sure.

    Raises:
        CommandError: 2, there is no terminal to ask at.
    """
    if not sys.stdin.isatty():
        raise CommandError("ddtop: no terminal to ask at: add --yes if you are sure", USAGE)
    click.echo(f"{what.name} to {len(ranks)} of {entry.world_size} ranks of {entry.job}:")
    for rank in ranks:
        script = rank.hello.script if rank.hello else ""
        click.echo(shown(f"  rank {rank.rank}  pid {rank.pid}  {rank.host}  {script}"))
    return click.confirm("send it?")


def _send(follower: Follower, link: ViewerLink, rank: RankFacts, what: signal.Signals) -> bool:
    follower.asking.forget_signals()
    link.send(request(signal_command(rank.rank, rank.pid or 0, what.value)))
    until = time.monotonic() + REPLY_S
    while (left := until - time.monotonic()) > 0:
        for data in link.receive(min(left, 0.05)):
            follower.take(data)
            reply = follower.asking.signal_reply()
            if reply is not None:
                click.echo(shown(reply.text if reply.ok else f"rank {rank.rank}: no signal was sent, {reply.text}"))
                return reply.ok
    click.echo(f"rank {rank.rank}: the relay did not answer within {REPLY_S:.0f} s, whether it was sent is not known")
    return False
