"""Finds the numeric addresses at which the hub may be.

They come from DDTOP_HUB, from job files in a shared state folder, and from the rendezvous address.
Each look-up may hang, for example on a name server or a file server. So they run on a separate
thread, and nothing waits for it. The result only says which addresses to try: a relay that answers
there must have the key.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ddtop import registry
from ddtop.link.leaf_side import place
from ddtop.relay.hub.topology import Topology
from ddtop.wire.hosts import HUB

DEADLINE_S = 10.0
"""A search that takes longer counts as hanging; a second one is started, but no third."""
LOOKS_MAX = 2
ADDRESSES_EACH = 4


@dataclass(frozen=True, slots=True)
class HubPlaces:
    """`places`: tcp://ADDRESS:PORT, likeliest first. `text`: the same as text for people.

    `problem`: names that could not be looked up.
    """

    places: tuple[str, ...] = ()
    text: str = ""
    problem: str | None = None


class HubSearch:
    """Searches on separate threads; `begin`, `take` and `hangs` are for the relay's thread."""

    def __init__(self, job: str, sender: str) -> None:
        self._job, self._sender = job, sender
        self._lock = threading.Lock()
        self._looks: dict[int, float] = {}
        self._begun = 0
        self._found: HubPlaces | None = None

    def begin(self, where: Topology) -> None:
        """Begin a search, unless one is running."""
        now = time.monotonic()
        with self._lock:
            hanging = [since for since in self._looks.values() if now - since > DEADLINE_S]
            if len(self._looks) > len(hanging) or len(self._looks) >= LOOKS_MAX:
                return
            self._begun += 1
            number = self._begun
            self._looks[number] = now
        thread = threading.Thread(
            target=self._look, args=(number, where), name="ddtop-hub-search", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self._looks.pop(number, None)

    def take(self) -> HubPlaces | None:
        """The result of the last search, returned once."""
        with self._lock:
            found, self._found = self._found, None
            return found

    def hangs(self) -> bool:
        """Whether a search takes too long."""
        with self._lock:
            return any(time.monotonic() - since > DEADLINE_S for since in self._looks.values())

    def _look(self, number: int, where: Topology) -> None:
        try:
            found = seek(self._job, self._sender, where)
        except Exception as error:  # noqa: BLE001 - the relay goes on without it
            found = HubPlaces(problem=f"{type(error).__name__}: {error}"[:200])
        with self._lock:
            self._found = found
            self._looks.pop(number, None)


def seek(job: str, sender: str, where: Topology) -> HubPlaces:
    """All places where the hub of this job may be.

    May take as long as name servers and file servers take.
    """
    problems: list[str] = []
    places: list[tuple[int, str]] = []
    texts: dict[str, None] = {}
    for name, ports in _names(job, sender, where):
        try:
            addresses = numeric(name)
        except OSError as error:
            problems.append(f"{name}: {error.strerror or error}")
            continue
        texts[f"{name}:{_ports_text(ports)}"] = None
        places += [
            (at, place(address, port)) for at, port in enumerate(ports) for address in addresses
        ]
    # The first port of each host comes before all other ports: only a limited number is tried, and
    # a hub takes the first free port.
    likely = dict.fromkeys(one for _, one in sorted(places, key=lambda one: one[0]))
    return HubPlaces(tuple(likely), ", ".join(texts)[:200], "; ".join(problems)[:200] or None)


def _names(job: str, sender: str, where: Topology) -> Iterable[tuple[str, tuple[int, ...]]]:
    if where.wanted is not None:
        yield where.wanted[0], (where.wanted[1],)
        return
    # Without a state folder the other sources remain; another part of the relay reports that it
    # cannot write there.
    with contextlib.suppress(registry.RegistryError, OSError):
        now = time.time_ns()
        for entry in registry.read_entries():
            here = (
                entry.job == job
                and entry.role == HUB
                and entry.sender != sender
                and entry.live(now)
            )
            if here and entry.public_address and entry.public_port:
                yield entry.public_address, (entry.public_port,)
    for host in where.hosts:
        yield host, where.ports


def numeric(name: str) -> tuple[str, ...]:
    """The addresses of a name, in digits.

    Raises:
        OSError: it cannot be looked up.
    """
    with contextlib.suppress(ValueError):
        return (str(ipaddress.ip_address(name)),)
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(None, "not a host name") from None
    return tuple(dict.fromkeys(str(one[4][0]) for one in found))[:ADDRESSES_EACH]


def _ports_text(ports: tuple[int, ...]) -> str:
    return (
        str(ports[0])
        if len(ports) == 1
        else f"{ports[0]} and {len(ports) - 1} more ports"
        if ports
        else "no port"
    )
