"""ddtop for programs: `from ddtop import watch`.

for event in watch("my-job"):
    if event.event == "appeared" and event.finding.severity == "critical":
        page_somebody(event.text)
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue

from ddtop import registry
from ddtop.diagnosis import added
from ddtop.follow.live import LiveSource
from ddtop.follow.looks import OVER_S, RunFile, looks
from ddtop.present.events import Event, EventLog
from ddtop.thresholds import chosen

QUEUE_MAX = 4096
"""The most events that are kept for a program that is still busy with an earlier one; the oldest
are dropped first."""
LEAVE_S = 5.0


class JobNotFoundError(LookupError):
    """There is no such job, or several could be meant; the text says which there are."""


class ContactLostError(Exception):
    """There will be no more events, and how the job ended is not known."""


def watch(job: str | None = None) -> Iterator[Event]:
    """The events of a job, until it ends; the last one is `ended`.

    Blocks between events. The job is followed on a thread of its own, which ends when the iterator
    is closed or forgotten. `job`: its name or the beginning of it; None: the one live job.

    Raises:
        JobNotFoundError: no such job, or several could be meant.
        ContactLostError: the relay is gone for good and has not reported how the job ended.
        ddtop.registry.RegistryError: the state folder or the key cannot be read.
    """
    added.load()
    try:
        entry = registry.find_job(job, time.time_ns())
    except registry.UnknownJobError as error:
        raise JobNotFoundError(str(error)) from None
    # Find the job now, not when the first event is requested.
    return _events(_Watching(entry))


def _events(watching: _Watching) -> Iterator[Event]:
    watching.thread.start()
    try:
        while isinstance(found := watching.waiting.get(), Event):
            yield found
        if found is not None:
            raise found
    finally:
        watching.leaves.set()
        watching.thread.join(LEAVE_S)


class _Watching:
    """One job that is followed on a thread, and the queue of its events. After the last event it
    has the error that ended it, or None."""

    def __init__(self, entry: registry.JobEntry) -> None:
        self._entry = entry
        self.waiting: SimpleQueue[Event | BaseException | None] = SimpleQueue()
        self.leaves = threading.Event()
        self.thread = threading.Thread(target=self._run, name="ddtop-watch", daemon=True)

    def _run(self) -> None:
        end: BaseException | None = None
        try:
            asyncio.run(self._follow())
        except BaseException as error:  # noqa: BLE001 - it is raised where the events are read
            end = error
        self.waiting.put(end)

    async def _follow(self) -> None:
        log = EventLog(chosen(), self._entry.job)
        file = RunFile(self._entry)
        async with contextlib.aclosing(looks(LiveSource(self._entry))) as found:
            async for look in found:
                for event in log.take(look):
                    if self.waiting.qsize() >= QUEUE_MAX:
                        self.waiting.get()
                    self.waiting.put(event)
                ended = look.snapshot is not None and look.snapshot.ended is not None
                if ended or self.leaves.is_set():
                    return
                if (file.over_s(time.monotonic()) or 0.0) > OVER_S:
                    why = look.contact or "its relay is gone and no other has followed"
                    raise ContactLostError(f"how {self._entry.job} ended is not known: {why}")
