"""Routes to a job's relay: through this host's state folder, or straight to a port."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ddtop import registry
from ddtop.feeds.route import Connection, GoneError, NoContactError, Route, T
from ddtop.link.viewer_side import AsyncViewerLink, admits
from ddtop.patience import in_thread
from ddtop.relay.hub.topology import hub_wanted, numeric_addresses

TO_HUB_S = 1.5
"""A relay accepts within a round trip. A firewall that drops packets never answers."""


class LocalRoute(Route):
    """Through the state folder: the job file is read again before each connection."""

    def __init__(self, entry: registry.JobEntry) -> None:
        super().__init__(entry.job)
        self._entry = entry
        self._given: registry.JobEntry | None = None

    async def connect(self, controller: bool) -> Connection:
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

    async def read_left(self, read: Callable[[registry.JobEntry, Path | None], T]) -> T | None:
        """Read once for each state of the job file, because a journal may be large and on a file
        server."""
        if self._given == self._entry:
            return None
        self._given = self._entry
        return await in_thread(read, self._entry, None)


class PortRoute(Route):
    """Straight to a relay's port, with the user's key; nothing is known of its job file."""

    def __init__(self, job: str, address: str, port: int) -> None:
        """`job`: the name that the relay's ranks use."""
        super().__init__(job)
        self._address, self._port = address, port

    async def connect(self, controller: bool) -> Connection:
        """ZeroMQ reconnects by itself, so a relay that is away is only not heard."""
        try:
            return AsyncViewerLink(self._address, self._port, registry.secret(), controller)
        except registry.RegistryError as error:
            raise NoContactError(str(error)) from None


def _accepts(host: str, port: int) -> bool:
    try:
        secret = registry.secret()
        return any(
            admits(address, port, secret, TO_HUB_S) for address in numeric_addresses(host)[:2]
        )
    except (OSError, registry.RegistryError):
        return False


def route_to(entry: registry.JobEntry) -> Route:
    """The route to the relay of this entry."""
    if entry.sender == registry.ELSEWHERE:
        return PortRoute(entry.job, entry.address, entry.port)
    return LocalRoute(entry)
