"""Follows a job until it ends, prints its events and acts on them: `ddtop watch`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import signal
import sys
import threading
import time
from collections.abc import Callable

import click

from ddtop import registry
from ddtop.cli.actions import JobGuard, scheduler_of
from ddtop.cli.attach_remote import NoJobThereError
from ddtop.cli.by_words import ByWords
from ddtop.cli.errors import NOT_HEARD, UNREACHABLE, CommandError
from ddtop.cli.place import Local, Place, There, unwatched_hosts
from ddtop.cli.sources import source_of
from ddtop.diagnosis.finding import CRITICAL
from ddtop.follow import session
from ddtop.follow.engine import JOIN_S, why_silent
from ddtop.follow.look import Look, Source
from ddtop.follow.looks import OVER_S, RunFile, looks
from ddtop.present.events import Event, EventLog, event_json, event_line
from ddtop.thresholds import chosen

FIRST_S = 15.0
"""How long the first contact may take: agents replace a relay within 10 s."""


def watch(
    place: Place,
    as_json: bool = False,
    make_guard: Callable[[str], JobGuard] | None = None,
    by_words: bool = False,
) -> int:
    """Print what happens, and act on it. `make_guard`: makes what acts, from the job's name.
    `by_words`: answer what is typed.

    Returns:
        0 if the job ended well, or the user left; 1 if it ended badly.

    Raises:
        CommandError: 2, a folder that cannot be used; 3, no contact, or lost for good; 4, the relay
            is not heard, though the job may live.
    """
    try:
        with source_of(place, "attach" if by_words else "watch") as (source, name):
            guard = make_guard(name) if make_guard is not None else None
            entry = place.entry if isinstance(place, Local) else None
            words = ByWords(source) if by_words else None
            code = asyncio.run(_Watch(source, name, entry, as_json, guard, words).until_the_end())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except NoJobThereError as error:
        if not isinstance(place, There):
            raise
        return watch(unwatched_hosts(place.host, error), as_json, make_guard, by_words)
    if guard is not None:
        guard.leave()
    return code


class _Watch:
    """One job, until it ends or nothing more can come."""

    def __init__(
        self,
        source: Source,
        name: str,
        entry: registry.JobEntry | None,
        as_json: bool,
        guard: JobGuard | None,
        words: ByWords | None = None,
    ) -> None:
        """`entry`: of a job whose file is read again."""
        self._source, self._name = source, name
        self._file = RunFile(entry) if entry is not None else None
        self._as_json = as_json
        self._guard, self._words = guard, words
        self._log = EventLog(chosen(), name)
        self._began = time.monotonic()
        self._leaving = False

    async def until_the_end(self) -> int:
        """Print changes until the job ends. Returns the exit code."""
        in_main = threading.current_thread() is threading.main_thread()
        loop, watching = asyncio.get_running_loop(), asyncio.current_task() if in_main else None
        if watching is not None:
            loop.add_signal_handler(signal.SIGINT, self._leave, watching)
        try:
            async with contextlib.aclosing(looks(self._source)) as found:
                async for look in found:
                    if self._words is not None and await self._words.turn(look):
                        return 0
                    for change in self._log.take(look):
                        self._tell(change, look)
                    if look.snapshot is not None and look.snapshot.ended is not None:
                        failed = look.snapshot.ended.first_rank is not None
                        return 1 if failed or look.verdict.health == CRITICAL else 0
                    self._give_up(look)
                    if self._guard is not None:
                        self._guard.look()
                    if _reader_gone():
                        raise BrokenPipeError
            raise AssertionError("the looks never end by themselves")
        finally:
            if watching is not None:
                # asyncio closes this descriptor before it gives the signal back.
                signal.set_wakeup_fd(-1)

    def _leave(self, watching: asyncio.Task[int]) -> None:
        """Ctrl-C. The first one ends it; another within asyncio's own end would show a traceback,
        or leave a thread."""
        if not self._leaving:
            self._leaving = True
            watching.cancel()

    def _tell(self, change: Event, look: Look) -> None:
        if self._words is not None:
            self._words.tell(change)
            return
        event = event_json(change, self._name, look.snapshot)
        click.echo(json.dumps(event) if self._as_json else event_line(change))
        if self._guard is None or look.snapshot is None:
            return
        hellos = (rank.hello for rank in look.snapshot.ranks if rank.hello is not None)
        first = next(hellos, None)
        if first is not None:
            self._guard.scheduler = scheduler_of(first.environment)
        self._guard.take(change, event)

    def _give_up(self, look: Look) -> None:
        """End the command if nothing more can come.

        Raises:
            CommandError: 3, there was no contact, or there will be none any more; 4, the relay is
                not heard.
        """
        if look.snapshot is not None and look.contact is None:
            if self._file is not None:
                self._file.heard()
            return
        hopeless = self._why_no_more_events(look, time.monotonic())
        if hopeless is not None:
            raise CommandError(f"ddtop: {hopeless[0]}", hopeless[1])

    def _why_no_more_events(self, look: Look, now: float) -> tuple[str, int] | None:
        """Why no more events can arrive, and the exit code; None if more may arrive."""
        over_s = self._file.over_s(now) if self._file is not None else None
        if over_s is not None:
            return self._end_by_file(look, over_s)
        tried_s = now - self._began
        if look.snapshot is not None:
            silent = (look.contact_age_s or 0.0) > chosen().relay_hopeless_s
            return (self._why_silent(look), NOT_HEARD) if silent else None
        if look.contact in (None, session.NOT_HEARD) and tried_s > JOIN_S:
            return self._why_silent(look), NOT_HEARD
        if look.contact is not None and tried_s > FIRST_S:
            return look.contact, UNREACHABLE
        return None

    def _why_silent(self, look: Look) -> str:
        if self._file is not None:
            return why_silent(self._file.entry)
        return f"{self._name}: {look.contact or 'nothing was heard'}"

    def _end_by_file(self, look: Look, over_s: float) -> tuple[str, int] | None:
        """The same for a run that has been over by its job file for so long."""
        if look.snapshot is None and look.contact is not None:
            return look.contact, UNREACHABLE
        if over_s <= OVER_S:
            return None
        job = self._name
        gone = f"the relay of {job} is gone and no other has followed"
        text = f"{gone}: how the job ended is not known"
        return f"{text}; what was last seen: ddtop diagnose {job}", UNREACHABLE


def _reader_gone() -> bool:
    """True if the reader of our output has closed the pipe.

    A write would notice it too, but a quiet job may write nothing for hours.
    """
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(events & select.POLLERR for _, events in poll.poll(0))
    except (OSError, ValueError):
        return False
