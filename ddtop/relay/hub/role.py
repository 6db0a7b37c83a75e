"""Which role this relay has among the hosts of its job: alone, the hub, or a leaf.

The server uses one interface for all three. A relay that has leaves, or belongs to a hub, keeps its
role, even if an elastic restart moves rank 0, because the other hosts know it in that role.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from ddtop.link.relay_side import VIEW, RelayLink
from ddtop.policy import Policy
from ddtop.relay.history import LATEST_HUB_MAX, FrameHistory
from ddtop.relay.hub.discovery import HubSearch
from ddtop.relay.hub.leaves import Hub
from ddtop.relay.hub.topology import Topology, names_of_this_host, topology_of
from ddtop.relay.hub.uplink import Uplink
from ddtop.relay.requests import RelayRequests
from ddtop.relay.state_files import RelayPlace
from ddtop.wire import frames
from ddtop.wire.hosts import ALONE, HUB, LEAF, HostClock, HubLink
from ddtop.wire.records import AnyRecord, Hello

BIND_AGAIN_S = 15.0
NAMED_LINGER_S = 10.0
"""The end of a job can be read from its files. While this relay keeps the port of DDTOP_HUB, the
other hosts of the next job cannot connect to their hub."""


class Relay(Protocol):
    """What this module needs of the relay; `server.Server` provides it."""

    job: str
    run: str
    sender: str
    host: str
    instance: str

    def seal(self, record: AnyRecord) -> bytes:
        """A record of ours in its envelope."""


class HubRole:
    """Used by the relay's loop only; times are its monotonic s.

    `here`: names and addresses of this host, asked now and then.
    """

    def __init__(
        self,
        relay: Relay,
        link: RelayLink,
        history: FrameHistory,
        requests: RelayRequests,
        policy: Policy,
        here: Callable[[], frozenset[str]] | None = None,
    ) -> None:
        self._relay, self._link, self._history, self._requests = relay, link, history, requests
        self._policy, self._here = policy, here or names_of_this_host
        self._leaf = link.leaf()
        self._since: float | None = None
        self._where = Topology()
        self._port: int | None = None
        self._unbound: str | None = None
        self._bind_at = 0.0
        self.hub: Hub | None = None
        self.uplink: Uplink | None = None

    @property
    def role(self) -> str:
        """ALONE, HUB or LEAF."""
        return HUB if self.hub is not None else LEAF if self.uplink is not None else ALONE

    @property
    def obeys(self) -> bool:
        """The hub decides what the ranks of this host are asked for."""
        return self.uplink is not None and self.uplink.connected

    def look(self, hellos: Iterable[Hello], now: float) -> None:
        """Choose the role from what the ranks report; called after each Hello and once a second."""
        known = tuple(hellos)
        if not known:
            return
        self._since = self._since if self._since is not None else now
        relay = self._relay
        self._where = where = topology_of(
            relay.job, known, os.environ, self._here(), now - self._since
        )
        if self.hub is None and self.uplink is None and where.spans:
            self._become_hub() if where.is_hub else self._become_leaf()
        elif self.uplink is not None and where.is_hub and self.uplink.hub_run is None:
            self.uplink.close(len(known))
            self.uplink = None
            if where.spans is not False:
                self._become_hub()
        elif self.hub is not None and where.spans is False and not self.hub.hosts:
            self._become_alone()
        if self.hub is not None:
            self.hub.where = where
        if self.uplink is not None:
            world = str(where.world_size or "")
            self.uplink.set_topology(where, (relay.job, relay.run, world, where.master, relay.host))

    @property
    def decided(self) -> bool:
        """Whether another look can only repeat what is known."""
        return self.role != ALONE or self._where.spans is False

    def _become_hub(self) -> None:
        relay = self._relay
        self._history.latest_max = LATEST_HUB_MAX
        self.hub = Hub(
            relay.job,
            relay.run,
            relay.instance,
            self._history,
            self._say,
            self._requests.unanswered,
            self._policy,
        )
        self._requests.hub = self.hub

    def _become_alone(self) -> None:
        """End the hub: all ranks turned out to be on this host, where they started slowly, one by
        one. No other host has to reach this relay.
        """
        self.hub = self._requests.hub = None
        self._port = self._unbound = None
        self._bind_at = 0.0
        self._link.unbind_public()

    def _become_leaf(self) -> None:
        relay = self._relay
        self.uplink = Uplink(
            self._leaf,
            HubSearch(relay.job, relay.sender),
            relay.seal,
            self._history.facts,
            lambda: self._history.since(time.time_ns()),
            self._requests.obey,
        )

    def _say(self, peer: bytes, record: AnyRecord) -> None:
        if not self._link.send(VIEW, peer, self._relay.seal(record)) and self.hub is not None:
            self.hub.dropped += 1

    def on_time(self, now: float, living: int, over: bool) -> None:
        """Whatever is due."""
        if self.uplink is not None:
            self.uplink.on_time(now, living, over)
        if self.hub is not None and self._port is None and now >= self._bind_at:
            self._bind_at = now + BIND_AGAIN_S
            ports = (
                (self._where.wanted[1],) if self._where.wanted is not None else self._where.ports
            )
            self._port, why = self._link.bind_public(ports)
            self._unbound = None if self._port else f"other hosts cannot reach this one: {why}"

    def due(self) -> float:
        """When `on_time` wants to be called next."""
        if self.uplink is not None:
            return self.uplink.due()
        return self._bind_at if self.hub is not None and self._port is None else float("inf")

    def on_hub(self, socket: object, now: float) -> int:
        """Take in what the hub sends; returns how many frames could not be decoded."""
        garbled = 0
        for place, data in self._leaf.receive(socket):
            try:
                if self.uplink is not None:
                    self.uplink.on_frame(place, data, now)
            except frames.WireError:
                garbled += 1
        return garbled

    def put(self, envelope: frames.Envelope, data: bytes) -> None:
        """A frame of this host, for the hub."""
        if self.uplink is not None:
            self.uplink.put(envelope, data)

    def hub_link(self, now: float) -> HubLink | None:
        """For `HostState`; None where the job is on this host alone."""
        if self.uplink is not None:
            return self.uplink.hub_link()
        if self.hub is None:
            return None
        why = self._unbound or self.hub.complaint(now)
        return HubLink(HUB, self._public(), None, why, None, 0, self.hub.connected)

    def clock(self) -> HostClock | None:
        """This host's clock against the hub's."""
        return self.uplink.clock() if self.uplink is not None else None

    def complaints(self) -> tuple[str | None, ...]:
        """What is wrong with DDTOP_HUB, and why other hosts cannot connect; None for nothing."""
        return self._where.complaint, self._unbound

    def place(self) -> RelayPlace:
        """For the job file."""
        if self.uplink is not None:
            return RelayPlace(LEAF, part_of=self.uplink.hub_run, hub=self.uplink.hub_link().address)
        if self.hub is None:
            return RelayPlace()
        return RelayPlace(
            HUB, self._public_host() if self._port else None, self._port, hosts=self.hub.hosts
        )

    def linger_s(self, wanted_s: float) -> float:
        """How many seconds to stay after the end; `wanted_s` is the usual time.

        It is less at the port of DDTOP_HUB, because the next job wants to listen there too.
        """
        named = self._port is not None and self._where.wanted is not None
        return min(wanted_s, NAMED_LINGER_S) if named else wanted_s

    def _public(self) -> str | None:
        return f"{self._public_host()}:{self._port}" if self._port else None

    def _public_host(self) -> str:
        return self._where.public_host or self._relay.host

    def close(self, living: int) -> None:
        """Say goodbye."""
        if self.uplink is not None:
            self.uplink.close(living)
        self._leaf.close()
