"""How each host is heard: frozen values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostSeen:
    """How a host is heard.

    `sender`: the host's identity, because containers repeat names; before its relays are put together (`one_host`) one of those. `offset_ns`, `error_ns`: what its clock is taken to be off the hub's and how far
    that may be wrong; None: not measured, and its times are used as they are. `heard_unix_ns`: when it or one of its ranks was last heard. `quiet`: its
    relay has missed reports; `lost_since_unix_ns`: it is not heard at all any more since then, while the hub is. `completing_unix_ns`:
    a collective that needs its ranks was over at that time, long after they had last been heard.
    """

    sender: str
    host: str
    role: str
    offset_ns: int | None
    error_ns: int | None
    heard_unix_ns: int
    quiet: bool = False
    lost_since_unix_ns: int | None = None
    completing_unix_ns: int | None = None

    @property
    def lost(self) -> bool:
        """Nothing of it has been heard for longer than a relay takes to be replaced."""
        return self.lost_since_unix_ns is not None
