"""The seam between what a job says and who follows it: a route to the job, and the link that it
opens.

A route knows where the job is now and what its relay left behind; `follow.live.LiveSource` knows
what to do with the frames.
"""

from __future__ import annotations

import functools
import os
import pwd
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from ddtop import registry
from ddtop.wire import frames
from ddtop.wire.records import AnyRecord, Command

T = TypeVar("T")
AGAIN_S = 2.0
QUEUE_BYTES_MAX = 48 << 20
"""The size of the queue: three times the data that a relay sends to a new viewer, or ten seconds of
10,000 ranks."""
LIVE_BYTES = 64 << 20
"""About an hour of 8 ranks, a minute and a half of 1,024."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits for data from an untrusted host. `memory_bytes`: the resident memory of the whole
    process above which no more data is accepted."""

    queue_bytes: int = QUEUE_BYTES_MAX
    tape_bytes: int = LIVE_BYTES
    memory_bytes: int | None = None


class Connection(Protocol):
    """An open connection to a relay, such as `link.viewer_side.AsyncViewerLink`."""

    async def send(self, frame: bytes) -> None:
        """Queue a frame; it is dropped if the queue is full."""

    def receive(self, seconds: float) -> AsyncIterator[bytes]:
        """The frames that arrive during the next `seconds`; ends earlier if the connection
        does."""

    def close(self) -> None:
        """Close at once."""


class GoneError(Exception):
    """The job's relay has ended, and only its files are left."""


class NoContactError(Exception):
    """Nobody can be asked now; the text says why, one sentence without its end. `again_s`: when to
    try again."""

    def __init__(self, text: str, again_s: float = AGAIN_S) -> None:
        super().__init__(text)
        self.again_s = again_s


class Route(ABC):
    """A way to reach one job.

    Without more in a subclass it has no memory limit: the other end has this user's key, and a
    relay keeps only a bounded history.
    """

    def __init__(self, job: str) -> None:
        """`job`: its name."""
        self.job = job

    @property
    def bounds(self) -> Bounds:
        """How much memory the data of this route may use."""
        return Bounds()

    def too_much(self) -> str:
        """The sentence for a user when that memory is used up, with the next step."""
        return "the relay says too much"

    @abstractmethod
    async def connect(self, controller: bool) -> Connection:
        """A link to the relay that the job has now. `controller`: with the right to send signals.

        Raises:
            GoneError: the job no longer has a relay.
            NoContactError: the relay cannot be reached, or it is not known whether there is one.
        """

    async def to_hub(self, address: str) -> Route | None:  # noqa: ARG002 - for subclasses
        """The route to the hub at HOST:PORT, of which the relay here has become a leaf.

        None: this route leads to the hub as it is, or to the relay that the user has chosen, or the
        hub cannot be reached from here.
        """
        return None

    async def read_left(
        self,
        read: Callable[[registry.JobEntry, Path | None], T],  # noqa: ARG002 - for subclasses
    ) -> T | None:
        """What `read` makes of the files that the relay left; None if an earlier call was about the
        same ones, or if there are none to be had: they are on the relay's host.

        `read` gets the job's entry, and where its files were copied to; None: in the state folder.
        It is called on another thread.

        Raises:
            NoContactError: the files cannot be had.
        """
        return None


@functools.cache
def _viewer_name() -> str:
    """The user and the host of this viewer."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = f"uid {os.getuid()}"
    return f"{name}@{os.uname().nodename}"


def request(record: AnyRecord) -> bytes:
    """A viewer's command as a frame; an order includes who gives it, for the relay's audit
    record."""
    if isinstance(record, Command) and record.name in ("stacks", "signal", "mute"):
        record = msgspec.structs.replace(record, instance=_viewer_name(), pid=os.getpid())
    return frames.seal(record, sender="viewer", unix_ns=time.time_ns(), mono_ns=time.monotonic_ns())
