"""Calls that may hang or take seconds: run beside an event loop, with a limit, or given up."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    import asyncio

# -- Runs work that takes seconds (such as reading a journal from a file server) beside the event
#    loop. Quitting does not wait for it


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
FILE_CALL_SLOW_S = 5.0
"""A call on a path that takes longer is reported. A busy file server takes a second or two."""


async def in_thread(
    function: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Result:
    """The result of `function`, or its exception, from a separate thread.

    Quitting does not wait for it: closing the loop would join a thread of the loop's pool, but does
    not join this one.
    """
    # The relay has no event loop: it must not pay for the import.
    import asyncio

    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def tell(settle: Callable[..., None], what: object) -> None:
        if not future.done():
            settle(what)

    def run() -> None:
        settle: Callable[..., None] = future.set_result
        try:
            what: object = function(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
            settle, what = future.set_exception, error
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, settle, what)

    threading.Thread(target=run, name="ddtop-in-thread", daemon=True).start()
    return await future


def at_most(seconds: float, call: Callable[[], Result]) -> Result | None:
    """The result of `call`, which raises nothing; None if it has none after so many seconds.

    It runs on a separate thread, which is left alone then.
    """
    results: list[Result] = []
    thread = threading.Thread(
        target=lambda: results.append(call()), name="ddtop-at-most", daemon=True
    )
    thread.start()
    thread.join(seconds)
    return results[0] if results else None


# -- Awaits something for a limited time, and can always be cancelled
#
# Before Python 3.12, `asyncio.wait_for` drops a cancellation that arrives in the same turn of the
# event loop as the result: the task goes on, and whoever awaits its end waits for ever
# (python/cpython, issue 86296). A dashboard that quits while frames arrive does exactly this.


async def within(awaitable: Awaitable[Result], seconds: float | None) -> Result:
    """The result of `awaitable`, or its exception; None waits without a limit.

    If it has no result after `seconds`, or if the caller is cancelled, it is cancelled too.

    Raises:
        asyncio.TimeoutError: there was no result after `seconds`.
    """
    import asyncio

    task = asyncio.ensure_future(awaitable)
    try:
        if seconds is None or seconds > 0:
            await asyncio.wait((task,), timeout=seconds)
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
            if task.cancelled():
                raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()
        # Without this, asyncio would log the exception of a wait that nobody needs any more.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


# -- Runs calls on files that may hang, each on a separate thread
#
# A path of a rank, the state folder, a program in a virtual environment may all be on a network
# file system. A call on such a path can block for hours, and only a kill ends it. So the relay's
# loop starts the call, continues, and reads the newest result with its age.


T = TypeVar("T")
CALLS_MAX = 16
"""The maximum number of hanging calls of one kind; each keeps a thread. Further paths are not read
until one of them answers."""


class LatestResult(Generic[T]):
    """The newest result of one call that may hang.

    `ask` and the properties are for one thread, the loop's; times are its monotonic s.
    """

    def __init__(self, call: Callable[[], T | None]) -> None:
        """`call` runs on other threads. If it raises, there is no result."""
        self._call = call
        self._lock = threading.Lock()
        self._since: float | None = None
        self._result: tuple[float, T] | None = None

    def ask(self, now: float) -> None:
        """Begin the call, unless it is still running."""
        with self._lock:
            if self._since is not None:
                return
            self._since = now
        try:
            threading.Thread(target=self._run, name="ddtop-file-call", daemon=True).start()
        except RuntimeError:
            # No thread can be started: the next look tries again.
            with self._lock:
                self._since = None

    def _run(self) -> None:
        found: T | None = None
        try:
            found = self._call()
        except Exception:  # noqa: BLE001 - a value that cannot be read is not measured
            found = None
        with self._lock:
            self._since = None
            self._result = (time.monotonic(), found) if found is not None else None

    def waiting_s(self, now: float) -> float:
        """For how long the call has been running; 0 if none is."""
        with self._lock:
            return max(now - self._since, 0.0) if self._since is not None else 0.0

    def result(self, now: float, stale_s: float) -> T | None:
        """The newest result; None if there is none, or if it is older than `stale_s`."""
        with self._lock:
            found = self._result
        return found[1] if found is not None and now - found[0] <= stale_s else None


class Writer:
    """Writes the files of one folder, on a separate thread.

    A new write replaces a write under the same name that still waits. `put`, `finish` and the
    properties may be used on any thread.
    """

    def __init__(self, folder: str) -> None:
        """`folder`: what it writes to, for its sentences."""
        self._folder = folder
        self._changed = threading.Condition()
        self._waiting: dict[str, Callable[[], None]] = {}
        self._problems: dict[str, str] = {}
        self._since: float | None = None
        self._thread: threading.Thread | None = None

    def put(self, name: str, write: Callable[[], None]) -> None:
        """Have `write` called soon; returns at once.

        If it raises OSError, the sentence is kept until a later write succeeds.
        """
        with self._changed:
            # Append it to the queue, so that earlier writes are done first.
            self._waiting.pop(name, None)
            self._waiting[name] = write
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="ddtop-writer", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    self._problems[name] = f"cannot write to {self._folder}: {error}"
                    return
                self._thread = thread
            self._changed.notify_all()

    @property
    def problem(self) -> str | None:
        """A sentence about failed writes, or about a folder that does not answer; None if there is
        no problem."""
        with self._changed:
            waits_s = time.monotonic() - self._since if self._since is not None else 0.0
            if waits_s > FILE_CALL_SLOW_S:
                why = f"has not answered for {waits_s:.0f} s (a file server that hangs?)"
                return f"{self._folder} {why}: nothing is written there"
            return next(iter(self._problems.values()), None)

    def finish(self, seconds: float) -> bool:
        """Wait at most this long until all is written; False if it is not."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._waiting and self._since is None, seconds
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                name = next(iter(self._waiting))
                write = self._waiting.pop(name)
                self._since = time.monotonic()
            why: str | None = None
            try:
                write()
            except Exception as error:  # noqa: BLE001 - the relay goes on, and reports it
                why = str(error) or type(error).__name__
            with self._changed:
                self._since = None
                self._problems.pop(name, None)
                if why is not None:
                    self._problems[name] = why
                self._changed.notify_all()
