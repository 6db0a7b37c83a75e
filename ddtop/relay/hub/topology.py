"""Whether a job spans hosts, which of its relays is the hub, and where the others may find it.

All of it follows from what the launchers set in the environments of the ranks (`ddtop.launch`);
nothing is asked over the network. The hub is the relay on the host of rank 0. Where no variable
says at which port it listens, it takes the first free one of eight ports that follow from the name
of the job, on the host where the ranks themselves meet. The others ask at all eight.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import re
import socket
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import psutil

from ddtop import launch, registry
from ddtop.launch.launchers import master_pod
from ddtop.link.leaf_side import place
from ddtop.wire.records import HUB, Hello, is_loopback, store_address

PORTS = 8
PORT_FIRST, PORT_SPAN = 20480, 8192
"""Below the ports of outgoing connections on Linux (32768 on), of services in Kubernetes (30000
on), and torch's own 29400 and 29500."""
GRACE_S = 3.0
"""Ranks that a person starts from shells do not know the hosts. If some of them are not on this
host after this time, they are on other hosts."""
HOSTS_MAX = 6
NAME_MAX = 255
_HUB = re.compile(r"^(?:\[([0-9A-Fa-f:.%\w]+)\]|([^:\s\[\]]+)):([0-9]{1,5})$")


@dataclass(frozen=True, slots=True)
class Topology:
    """What the ranks of one host know of the others.

    `spans`: there are other hosts; None: not known yet. `is_hub`: rank 0 is here. `world_size` is
    None, and `master` (HOST:PORT of the rendezvous) is empty, if it is not known. `wanted`:
    host and port of DDTOP_HUB. `hosts`: where the hub may be, likeliest first. `ports`: where it
    may listen. `complaint`: what is wrong with DDTOP_HUB."""

    spans: bool | None = None
    is_hub: bool = False
    world_size: int | None = None
    master: str = ""
    wanted: tuple[str, int] | None = None
    hosts: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    complaint: str | None = None

    @property
    def public_host(self) -> str | None:
        """The name under which other hosts reach the hub's host.

        None if the ranks do not know one.
        """
        named = self.wanted[0] if self.wanted is not None else next(iter(self.hosts), None)
        return None if named is None or is_loopback(named) else named


def topology_of(
    job: str,
    hellos: Iterable[Hello],
    environment: Mapping[str, str],
    here: Collection[str],
    waited_s: float,
) -> Topology:
    """What follows from the ranks of this host.

    `environment`: the relay's own, which holds what a Hello leaves out. `here`: names and addresses
    of this host. `waited_s`: since the first rank was seen.
    """
    found = sorted(
        hellos,
        key=lambda hello: (-hello.attempt, hello.rank if hello.rank is not None else 1 << 30),
    )
    if not found:
        return Topology()
    first = found[0]
    merged = {**environment, **first.environment}
    world = max((hello.world_size for hello in found if hello.world_size), default=None)
    wanted, complaint = hub_wanted(merged.get("DDTOP_HUB", ""))
    place = store_address(first.init_method, merged)
    if place and is_loopback(place[0]):
        place = (master_pod(merged) or place[0], place[1])
    is_hub = any(hello.rank == 0 for hello in found)
    ranks = len(
        {hello.rank for hello in found if hello.rank is not None and hello.attempt == first.attempt}
    )
    return Topology(
        spans=True
        if wanted
        else _spans(first, merged, ranks, is_hub, here, waited_s, place and place[0]),
        is_hub=is_hub,
        world_size=world,
        master=f"{place[0]}:{place[1]}" if place else "",
        wanted=wanted,
        hosts=_hosts(merged, place[0] if place else None),
        ports=derived_ports(job, place[1] if place else 0),
        complaint=complaint,
    )


def _spans(
    hello: Hello,
    environment: Mapping[str, str],
    ranks: int,
    is_hub: bool,
    here: Collection[str],
    waited_s: float,
    master: str | None,
) -> bool | None:
    world = hello.world_size
    if not world:
        return None
    local = launch.local_size(environment)
    if local is not None:
        return local < world
    if ranks >= world:
        return False
    nodes = launch.nodes_of_rank(environment, hello.rank)
    if nodes is not None:
        return nodes > 1
    if master is None or is_loopback(master):
        return None if master is None else False
    # The rendezvous is on the host of rank 0, so there it says nothing about other hosts: only
    # missing ranks do.
    elsewhere = not is_hub and not is_here(master, here)
    return True if elsewhere or waited_s >= GRACE_S else None


def is_here(name: str, here: Collection[str]) -> bool:
    """Whether this name or address is this host's own."""
    return (
        is_loopback(name)
        or name in here
        or (not _is_numeric(name) and name.split(".", maxsplit=1)[0] in here)
    )


def names_of_this_host() -> frozenset[str]:
    """Its name, whole and short, and the addresses of its interfaces; no name server is asked."""
    name = os.uname().nodename
    found = {name, name.split(".", maxsplit=1)[0]}
    for addresses in psutil.net_if_addrs().values():
        found |= {address.address.partition("%")[0] for address in addresses if address.address}
    return frozenset(address for address in found if address)


def hub_wanted(text: str) -> tuple[tuple[str, int] | None, str | None]:
    """($DDTOP_HUB as host and port, what is wrong with it); (None, None) if it is not set."""
    if not text:
        return None, None
    match = _HUB.match(text.strip())
    if match is None or not 0 < int(match[3]) < 65536 or len(text) > NAME_MAX:
        return None, f"DDTOP_HUB={text[:60]!r} is not HOST:PORT: the hub is looked for without it"
    return (match[1] or match[2], int(match[3])), None


def derived_ports(job: str, taken: int = 0) -> tuple[int, ...]:
    """The ports that the hub of this job may take, in the order in which it tries them.

    `taken`: the port of the rendezvous, which is never among them.
    """
    found: dict[int, None] = {}
    for turn in range(4):
        digest = hashlib.sha256(f"ddtop/1/hub/{job}/{turn}".encode()).digest()
        for at in range(0, len(digest), 2):
            found[PORT_FIRST + int.from_bytes(digest[at : at + 2], "big") % PORT_SPAN] = None
    return tuple(port for port in list(found)[:PORTS] if port != taken)


def _hosts(environment: Mapping[str, str], master: str | None) -> tuple[str, ...]:
    """Where rank 0 may be, likeliest first: where the ranks meet, then what the launcher says."""
    found = (master, *launch.likely_first_hosts(environment))
    named = (name for name in found if name and len(name) <= NAME_MAX and name.isprintable())
    return tuple(dict.fromkeys(named))[:HOSTS_MAX]


def _is_numeric(name: str) -> bool:
    return ":" in name or name.replace(".", "").isdigit()


# -- Finds the numeric addresses at which the hub may be
#
# They come from DDTOP_HUB, from job files in a shared state folder, and from the rendezvous
# address. Each look-up may hang, for example on a name server or a file server. So they run on a
# separate thread, and nothing waits for it. The result only says which addresses to try: a relay
# that answers there must have the key.


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
            addresses = numeric_addresses(name)
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


def numeric_addresses(name: str) -> tuple[str, ...]:
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
    return tuple(dict.fromkeys(str(address[4][0]) for address in found))[:ADDRESSES_EACH]


def _ports_text(ports: tuple[int, ...]) -> str:
    return (
        str(ports[0])
        if len(ports) == 1
        else f"{ports[0]} and {len(ports) - 1} more ports"
        if ports
        else "no port"
    )
