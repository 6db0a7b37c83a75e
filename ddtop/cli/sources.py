"""A job as a command looks at it, here or elsewhere: one look, or a source that is followed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from ddtop.cli import look
from ddtop.cli.errors import UNREACHABLE, CommandError
from ddtop.cli.place import Here, Hosts, Local, Pids, Place, There

if TYPE_CHECKING:
    from ddtop.follow.live import LiveSource
    from ddtop.follow.look import Source
    from ddtop.model.facts import Snapshot

T = TypeVar("T")


def look_at(place: Here, asked_by: str, seconds: float | None = None) -> look.Seen:
    """Look at a job for `seconds`. Without a relay also longer, while a wait is too young to be
    judged.

    Raises:
        CommandError: 2, no process ids; 3, no contact, or no such processes.
    """
    if isinstance(place, Local):
        found = look.look(place.entry, look.STATUS_S if seconds is None else seconds)
        return look.Seen(place.entry.job, *found, entry=place.entry)
    seconds = look.OUTSIDE_S if seconds is None else seconds
    if isinstance(place, Hosts):
        from ddtop.cli import outside_hosts

        return outside_hosts.look_at(place.hosts, seconds)
    from ddtop.cli import outside

    return outside.look_at(place.text, asked_by, seconds, place.arguments)


@contextlib.contextmanager
def source_of(
    place: Place, asked_by: str, controller: bool = False
) -> Iterator[tuple[Source, str]]:
    """The job there, and its name. `controller`: with the right to act on it.

    Raises:
        CommandError: 2, several jobs could be meant; 3, no contact, or no such job.
    """
    from ddtop.cli import outside, outside_hosts
    from ddtop.follow.live import LiveSource

    if isinstance(place, Pids):
        with outside.open_feed(place.text, asked_by, place.arguments) as feed:
            yield LiveSource(feed, controller), feed.job
    elif isinstance(place, Hosts):
        with outside_hosts.open_feed(place.hosts) as hosts:
            yield LiveSource(hosts, controller), place.name
    else:
        with _open_live(place, controller) as found:
            yield found


@contextlib.contextmanager
def _open_live(place: Local | There, controller: bool) -> Iterator[tuple[LiveSource, str]]:
    if isinstance(place, Local):
        from ddtop.follow.live import LiveSource

        yield LiveSource(place.entry, controller), place.entry.job
        return
    from ddtop.cli.attach_remote import live_there

    with live_there(place.host, place.job, place.wait_s, controller) as found:
        yield found


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
    with _open_live(place, controller=True) as (source, _):
        return asyncio.run(_act(source, act, nothing))


async def _act(
    source: LiveSource, act: Callable[[LiveSource, Snapshot], Awaitable[T]], nothing: str
) -> T:
    from ddtop.follow.engine import UnreachableError
    from ddtop.follow.looks import joined

    try:
        async with joined(source) as job:
            return await act(source, job.snapshot)
    except UnreachableError as error:
        raise CommandError(f"ddtop: {error}: {nothing}", UNREACHABLE) from None
