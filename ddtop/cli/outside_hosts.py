"""A job on several hosts that was started without ddtop: `--ssh HOST,HOST`, and `--slurm`, `--pbs`
or `--lsf` where no relay watches the job."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import click

from ddtop.cli.errors import UNREACHABLE, CommandError
from ddtop.cli.look import Seen
from ddtop.cli.output import (
    without_controls,
)
from ddtop.feeds.bridge import RemoteTarget
from ddtop.feeds.route import NoContactError
from ddtop.feeds.several import SeveralFeed
from ddtop.follow.live import LiveSource
from ddtop.follow.looks import settle

HOSTS_MAX = 64
"""Each host needs a program here and a login there."""

PATIENCE_S = 20.0
"""A login on a busy host may take this long."""


def look_at(hosts: Sequence[RemoteTarget], seconds: float) -> Seen:
    """Look at the job on all these hosts at once, and print which hosts do not answer.

    Raises: CommandError: 3, none of them answers.
    """
    with open_feed(hosts) as feed:
        look = asyncio.run(settle(LiveSource(feed), feed, seconds, PATIENCE_S))
    try:
        silent = feed.silent_reasons
    except NoContactError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
    for note in silent:
        click.echo(without_controls(f"note: {note}"), err=True)
    assert look.snapshot is not None
    return Seen(look.snapshot.job, look.snapshot, look.verdict, outside=True)


@contextlib.contextmanager
def open_feed(hosts: Sequence[RemoteTarget]) -> Iterator[SeveralFeed]:
    """The job that these hosts run together, as a feed."""
    if len(hosts) > HOSTS_MAX:
        note = f"note: looking at the first {HOSTS_MAX} of {len(hosts)} hosts"
        click.echo(note, err=True)
    feed = SeveralFeed(hosts[:HOSTS_MAX])
    try:
        yield feed
    finally:
        feed.end()
