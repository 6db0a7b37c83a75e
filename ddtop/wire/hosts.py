"""How one host is connected to the others of its job: parts of `HostState`."""

from __future__ import annotations

import msgspec

ALONE, HUB, LEAF = "alone", "hub", "leaf"


class HostClock(msgspec.Struct, frozen=True, array_like=True):
    """This host's clock against the hub's.

    A time of this host plus `offset_ns` is the hub's, wrong by at most `error_ns`.

    `error_ns` is half of the fastest of the last round trips, `age_ms` how long ago that one was.
    """

    offset_ns: int
    error_ns: int
    age_ms: int = 0


class HubLink(msgspec.Struct, frozen=True, array_like=True):
    """How a relay is connected to the hub of its job.

    `role`: alone (the job is on one host), hub, or leaf. `address`: HOST:PORT where the hub listens
    for others, or where this leaf has found it. `connected`, of a leaf: the hub answers; `why` it
    does not, in a few words; `lost_unix_ns`: since when. `dropped`: frames that could not be sent
    to the hub. `leaves`, of a hub: relays that are connected now.
    """

    role: str = ALONE
    address: str | None = None
    connected: bool | None = None
    why: str | None = None
    lost_unix_ns: int | None = None
    dropped: int = 0
    leaves: int = 0
