"""Routes to a job's relay: through this host's state folder, over ssh, or straight to a port.

A route knows where the job is now and what its relay left behind; `live.LiveSource` knows what to
do with the frames.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Protocol

from ddtop import registry
from ddtop.diagnosis.finding import Verdict
from ddtop.follow.engine import JOIN_S, Bounds, Follower, UnreachableError, last_state, request
from ddtop.link.viewer_side import AsyncViewerLink, ViewerLink, admits
from ddtop.model.facts import Snapshot
from ddtop.patience import in_thread
from ddtop.relay.hub.topology import hub_wanted, numeric
from ddtop.wire.records import Command

AGAIN_S = 2.0
TO_HUB_S = 1.5
"""A relay accepts within a round trip. A firewall that drops packets never answers."""


class Link(Protocol):
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


class Route(Protocol):
    """A way to reach one job."""

    @property
    def job(self) -> str:
        """Its name."""

    @property
    def bounds(self) -> Bounds:
        """How much memory the data of this route may use."""

    def too_much(self) -> str:
        """The sentence for a user when that memory is used up, with the next step."""

    async def connect(self, controller: bool) -> Link:
        """A link to the relay that the job has now. `controller`: with the right to send signals.

        Raises:
            GoneError: the job no longer has a relay.
            NoContactError: the relay cannot be reached, or it is not known whether there is one.
        """

    async def to_hub(self, address: str) -> Route | None:
        """The route to the hub at HOST:PORT, of which the relay here has become a leaf.

        None: this route leads to the hub as it is, or the hub cannot be reached from here.
        """

    async def left(self) -> tuple[Snapshot, Verdict] | None:
        """The last state that the relay left; None if an earlier call has returned the same one.

        Raises:
            UnreachableError: there is none, or it cannot be read.
        """


class TrustedRoute:
    """No limit: the other end has this user's key, and a relay keeps only a bounded history."""

    @property
    def bounds(self) -> Bounds:
        """Those of any job."""
        return Bounds()

    def too_much(self) -> str:
        """Never used, because there is no limit."""
        return "the relay says too much"

    async def to_hub(self, address: str) -> Route | None:  # noqa: ARG002 - the protocol has it
        """None: the user has already chosen the relay with this route."""
        return None


class LocalRoute(TrustedRoute):
    """Through the state folder: the job file is read again before each connection."""

    def __init__(self, entry: registry.JobEntry) -> None:
        self._entry = entry
        self._given: registry.JobEntry | None = None

    @property
    def job(self) -> str:
        """The name in the job file."""
        return self._entry.job

    async def connect(self, controller: bool) -> Link:
        """Straight to the relay's port, with the user's key."""
        try:
            # The folder may be on a file server, and the screen must not wait for it.
            again = await in_thread(
                registry.of_run, self._entry.job, self._entry.run, self._entry.sender
            )
            self._entry = again or self._entry
            if not self._entry.reachable(time.time_ns()):
                raise GoneError
            return AsyncViewerLink(
                *self._entry.endpoint(), await in_thread(registry.secret), controller
            )
        except registry.RegistryError as error:
            raise NoContactError(str(error)) from None

    async def to_hub(self, address: str) -> Route | None:
        """The hub's port, if it accepts the user's key within `TO_HUB_S` for each address."""
        at, _ = hub_wanted(address)
        if at is None or not await in_thread(_accepts, *at):
            return None
        return PortRoute(self.job, *at)

    async def left(self) -> tuple[Snapshot, Verdict] | None:
        """Read once for each state of the job file, because a journal may be large and on a file
        server."""
        if self._given == self._entry:
            return None
        self._given = self._entry
        return await in_thread(last_state, self._entry)


class PortRoute(TrustedRoute):
    """Straight to a relay's port, with the user's key; nothing is known of its job file."""

    def __init__(self, job: str, address: str, port: int) -> None:
        self._job, self._address, self._port = job, address, port

    @property
    def job(self) -> str:
        """The name that the relay's ranks use."""
        return self._job

    async def connect(self, controller: bool) -> Link:
        """ZeroMQ reconnects by itself, so a relay that is away is only not heard."""
        try:
            return AsyncViewerLink(self._address, self._port, registry.secret(), controller)
        except registry.RegistryError as error:
            raise NoContactError(str(error)) from None

    async def left(self) -> tuple[Snapshot, Verdict] | None:
        """None: the files of the relay are on its host."""
        return None


def _accepts(host: str, port: int) -> bool:
    try:
        secret = registry.secret()
        return any(admits(one, port, secret, TO_HUB_S) for one in numeric(host)[:2])
    except (OSError, registry.RegistryError):
        return False


def route_to(entry: registry.JobEntry) -> Route:
    """The route to the relay of this entry."""
    if entry.sender == registry.ELSEWHERE:
        return PortRoute(entry.job, entry.address, entry.port)
    return LocalRoute(entry)


def job_at(address: str, port: int) -> str:
    """The name of the job whose relay listens there, as soon as it is known.

    Raises:
        UnreachableError: nobody answers to this user's key.
        RegistryError: the key cannot be read.
    """
    follower = Follower("")
    link = ViewerLink(address, port, registry.secret())
    try:
        link.send(request(Command("join", history_s=0.0)))
        for data in link.receive(JOIN_S):
            follower.take(data)
            if follower.refusal or follower.job.name:
                break
    finally:
        link.close()
    if follower.refusal:
        raise UnreachableError(f"the relay at {address}:{port} refuses: {follower.refusal}")
    if not follower.job.name:
        raise UnreachableError(
            f"no relay of yours answers at {address}:{port} within {JOIN_S:.0f} s: another port,"
            " one that listens on its own host only (then: --ssh HOST), or another key (DDTOP_KEY,"
            " or `key` in the state folder, has to be the same)"
        )
    return follower.job.name
