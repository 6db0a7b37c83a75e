"""The protocol of a GPU driver, for all makers, and code that their readers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ddtop.wire.records import Gpu, GpuProcess

PROCESSES_EVERY_S, SLOWLY_EVERY_S = 5.0, 30.0
"""How often the processes on a GPU are read, and how often values that hardly change."""
PROCESSES_MAX = 32
"""Processes listed for a GPU. An MPS server can have more clients."""


class DriverError(Exception):
    """The driver does not answer; the text says why."""


class DriverSession(Protocol):
    """A session with a driver, used by one thread. Each call may block for as long as the driver
    does.
    """

    driver: str | None
    """The driver's version; None if it does not report one."""

    def sample(self, now_s: float | None = None) -> tuple[Gpu, ...]:
        """All GPUs of this host now. `now_s`: monotonic seconds.

        Raises:
            DriverError: the session is gone.
        """

    def close(self) -> None:
        """End the session."""


class Driver(Protocol):
    """One maker's driver."""

    maker: str
    """As in a sentence: `NVIDIA`."""

    def present(self) -> bool:
        """Whether this host has the driver. It checks files and loads nothing."""

    def library(self) -> Any:
        """The Python module that calls the driver.

        Raises:
            DriverError: it is not installed.
        """

    def session(self, library: Any) -> DriverSession:
        """A new session.

        Raises:
            DriverError: the driver does not answer, or it does not fit the library.
        """


class LibraryDriver:
    """A driver that a Python module asks. `there`: whether this host has it; `opened`: imports the
    module. Tests give their own.
    """

    maker = ""

    def __init__(self, there: Callable[[], bool], opened: Callable[[], Any]) -> None:
        self._there, self._opened = there, opened

    def present(self) -> bool:
        """Whether this host (or container) has the driver."""
        return self._there()

    def library(self) -> Any:
        """The Python module.

        Raises:
            DriverError: it is not installed.
        """
        return self._opened()


class Schedule:
    """Decides which of the two rarer parts of a sample are due."""

    def __init__(self) -> None:
        self._processes_at = self._slowly_at = float("-inf")

    def due(self, now_s: float) -> tuple[bool, bool]:
        """(read the processes, read values that hardly change) in the sample of `now_s`, monotonic
        seconds. A part that is due counts as read.
        """
        processes = now_s - self._processes_at >= PROCESSES_EVERY_S
        slowly = now_s - self._slowly_at >= SLOWLY_EVERY_S
        if processes:
            self._processes_at = now_s
        if slowly:
            self._slowly_at = now_s
        return processes, slowly


def largest_processes(used: Mapping[int, int | None]) -> tuple[GpuProcess, ...]:
    """The processes that hold most memory; `used`: bytes by pid, None where not known."""
    most = sorted(used.items(), key=lambda item: (-(item[1] or 0), item[0]))[:PROCESSES_MAX]
    return tuple(GpuProcess(pid, held) for pid, held in most)
