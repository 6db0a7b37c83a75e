"""What the relay asks of a GPU driver, whoever made the GPU."""

from __future__ import annotations

from typing import Any, Protocol

from ddtop.wire.gpu import Gpu


class DriverError(Exception):
    """The driver cannot be asked; the text says why."""


class Session(Protocol):
    """A session with a driver, used by one thread. Each call may block for as long as the driver
    does.
    """

    driver: str | None
    """The driver's version; None where it does not say."""

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
        """Whether this host has the driver. It looks at files and loads nothing."""

    def library(self) -> Any:
        """The Python module that asks the driver.

        Raises:
            DriverError: it is not installed.
        """

    def session(self, library: Any) -> Session:
        """A new session.

        Raises:
            DriverError: the driver does not answer, or it does not fit the library.
        """
