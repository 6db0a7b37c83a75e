"""A job as a command looks at it, here or elsewhere: one look, or a source that is followed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from ddtop.cli import look, outside
from ddtop.cli.attach_remote import live_there
from ddtop.cli.before_ranks import BeforeRanks
from ddtop.cli.errors import UNREACHABLE, CommandError
from ddtop.cli.place import Here, Hosts, Local, Pids, Place, There
from ddtop.feeds.feed import LocalFeed
from ddtop.follow.engine import UnreachableError
from ddtop.follow.live import LiveSource
from ddtop.follow.looks import joined, look_once
from ddtop.model.facts import Snapshot

T = TypeVar("T")


def look_at(place: Here, asked_by: str, seconds: float | None = None) -> look.Seen:
    """Look at a job for `seconds`. Without a relay also longer, while a wait or a standstill is too
    young to be judged.

    Raises:
        CommandError: 2, no process ids; 3, no such processes.
        NoContactError, UnreachableError: no contact.
    """
    if isinstance(place, Local):
        found = look_once(place.entry, look.STATUS_S if seconds is None else seconds)
        return look.Seen(place.entry.job, *found, entry=place.entry)
    seconds = look.OUTSIDE_S if seconds is None else seconds
    if isinstance(place, Hosts):
        return outside.look_at_hosts(place.hosts, asked_by, seconds)
    return outside.look_at(place.text, asked_by, seconds, place.arguments, place.name)


@contextlib.contextmanager
def source_of(
    place: Place, asked_by: str, controller: bool = False
) -> Iterator[tuple[LiveSource | BeforeRanks, str]]:
    """The job there, and its name. `controller`: with the right to act on it.

    Raises:
        CommandError: 2, several jobs could be meant; 3, no contact, or no such job.
    """
    if isinstance(place, Local):
        yield LiveSource(place.entry, controller), place.entry.job
        return
    if isinstance(place, There):
        with live_there(place.host, place.job, place.wait_s, controller) as found:
            yield found
        return
    if isinstance(place, Pids) and place.name is not None:
        yield BeforeRanks(place.name, controller), place.name
        return
    feed: LocalFeed
    if isinstance(place, Hosts):
        feed, name = outside.feed_of_hosts(place.hosts), place.name
    else:
        feed = outside.feed_of(place.text, asked_by, place.arguments)
        name = feed.job
    try:
        yield LiveSource(feed, controller), name
    finally:
        feed.end()


def act_on(place: Place, act: Callable[[LiveSource, Snapshot], Awaitable[T]], nothing: str) -> T:
    """The result of `act`, which gets the job as a source with the right to act on it.

    `nothing`: what an error says was not done.

    Raises:
        CommandError: 3, the job has ended, or its relay is not reached.
    """
    assert isinstance(place, (Local, There))
    if isinstance(place, Local) and not place.entry.reachable(time.time_ns()):
        raise CommandError(
            f"ddtop: {place.entry.job} has ended or its relay is gone: {nothing}", UNREACHABLE
        )
    with source_of(place, "", controller=True) as (source, _):
        assert isinstance(source, LiveSource)
        return asyncio.run(_act(source, act, nothing))


async def _act(
    source: LiveSource, act: Callable[[LiveSource, Snapshot], Awaitable[T]], nothing: str
) -> T:
    try:
        async with joined(source) as job:
            return await act(source, job.snapshot)
    except UnreachableError as error:
        raise CommandError(f"ddtop: {error}: {nothing}", UNREACHABLE) from None
