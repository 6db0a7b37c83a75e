"""How each host is heard: frozen values. Times are unix ns on the hub's clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostSeen:
    """How a host is heard."""

    #: The host's identity, because containers repeat names. Before `hosts.merged_host` has put the
    #: relays of a host together: that of one relay.
    sender: str
    host: str
    #: What its relay is in the job: `HUB`, `LEAF` or `ALONE`.
    role: str
    #: By how much its clock differs from the hub's. None: not measured, its times stay unchanged.
    offset_ns: int | None
    #: How far `offset_ns` may be wrong.
    error_ns: int | None
    #: When it or one of its ranks was last heard.
    heard_unix_ns: int
    #: Its relay has missed reports.
    quiet: bool = False
    #: Since when it is not heard at all, while the hub is.
    lost_since_unix_ns: int | None = None
    #: When a collective that needs its ranks completed, long after they had last been heard.
    completing_unix_ns: int | None = None

    @property
    def lost(self) -> bool:
        """Nothing of it has been heard for longer than a relay takes to be replaced."""
        return self.lost_since_unix_ns is not None
