"""The agent's thread: it receives no signals, and `threading` does not list it.

A signal that the program blocks and polls with `sigpending()` is delivered to any thread that does
not block it, and its default action then ends the job. A thread inherits the signal mask of the
thread that starts it, so all signals are blocked before it is started.

`threading` must not list it: programs join all threads that `threading.enumerate()` returns, and
would wait for ever. Nothing that runs in it may call `threading.current_thread()` (as logging
does), which would list it after all.
"""

from __future__ import annotations

import _thread
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any


class OwnThread:
    """One thread that runs `work` once. It does not keep the process alive.

    `ended_cpu_ns`: the CPU time of all these threads that have ended. Only its growth counts: a
    forked child begins with its parent's.
    """

    ended_cpu_ns = 0

    def __init__(self, work: Callable[[], object]) -> None:
        self._work, self._running = work, _thread.allocate_lock()

    def start(self) -> None:
        """Start it.

        Raises:
            RuntimeError: no more threads can be started.
        """
        self._running.acquire()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            _thread.start_new_thread(self._run, ())
        except BaseException:
            self._running.release()
            raise
        finally:
            # Signals that arrived meanwhile are delivered here, to the program's own handlers.
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run(self) -> None:
        try:
            _show_name()
            self._work()
        except BaseException:  # noqa: BLE001 - no caller could catch it: the interpreter would print it
            return
        finally:
            OwnThread.ended_cpu_ns += time.thread_time_ns()
            self._running.release()

    def join(self, within_s: float) -> bool:
        """Wait at most this long until it has ended. True at once if it was never started."""
        if not self._running.acquire(timeout=within_s):
            return False
        self._running.release()
        return True


def _show_name() -> None:
    """Name this thread `ddtop`, so that other tools show it. Check: `top -H -p PID`."""
    try:
        with open(f"/proc/self/task/{_thread.get_native_id()}/comm", "wb") as name:
            name.write(b"ddtop")
    except OSError:  # no /proc: it keeps the name of the program
        return


# -- Silences Python's warning about forks if the only other thread is ours
#
# Since 3.12 `os.fork` warns in a process with more than one thread. If the only other thread is the
# agent's, the warning would be wrong. If the program has other threads, it gets the warning as
# usual. Since 3.13 the warning comes after the last hook in the parent, so the agent's next tick
# removes the filter. Only our own entry is removed, whatever the program does to its filters
# meanwhile.


OWN_THREADS = 1
"""The agent's."""
_WARNS = tuple(sys.version_info) >= (3, 12)
_FILTER: Any = ("ignore", re.compile(".*multi-threaded, use of fork"), DeprecationWarning, None, 0)


class ForkWarning:
    """Silences the warning: `begin` before a fork, `end` in the child and at the next tick."""

    def __init__(self) -> None:
        self._silent = False

    def begin(self) -> None:
        """Silence the warning if the only other thread is ours."""
        if self._silent or not _WARNS or len(os.listdir("/proc/self/task")) > 1 + OWN_THREADS:
            return
        self._silent = True
        warnings.filters.insert(0, _FILTER)  # type: ignore[attr-defined]  # a list; typed as a sequence

    def end(self) -> None:
        """Restore the program's filters."""
        if self._silent:
            self._silent = False
            if _FILTER in warnings.filters:
                warnings.filters.remove(_FILTER)  # type: ignore[attr-defined]
