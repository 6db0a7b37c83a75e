"""How a job's relay is reached from here: on this host, at its hub's port, or only through ssh."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from dataclasses import dataclass

import msgspec

from ddtop import registry
from ddtop.cli.errors import UNREACHABLE, USAGE, CommandError
from ddtop.cli.output import echo
from ddtop.feeds.relay import PortRoute
from ddtop.follow import engine
from ddtop.follow.engine import NotHeardError, UnreachableError
from ddtop.follow.looks import present_of
from ddtop.link.viewer_side import admits
from ddtop.patience import at_most
from ddtop.relay.hub.topology import hub_wanted, numeric_addresses
from ddtop.wire.records import LEAF, is_loopback

CONNECT_S = 1.5
"""A relay accepts within a round trip. A firewall that drops packets must not hold a user up."""
ADDRESSES_MAX = 2
"""How many addresses of one name are tried: one for IPv4 and one for IPv6, each for `CONNECT_S`."""


@dataclass(frozen=True, slots=True)
class RelayRoute:
    """How to reach a relay.

    `entry`: the relay to ask, with its address. `port`: host and port, if it is asked there and
    its job file is not on this host. `ssh`: the host, if it can only be asked from there. `why`:
    why the better route is closed, one sentence.
    """

    entry: registry.JobEntry
    port: tuple[str, int] | None = None
    ssh: str | None = None
    why: str | None = None


def route(entry: registry.JobEntry) -> RelayRoute:
    """The route to the relay of this entry.

    For a leaf it leads to its hub if that can be reached, else to the leaf itself.
    """
    if entry.sender == registry.ELSEWHERE:
        return RelayRoute(entry, (entry.address, entry.port))
    if not entry.reachable(time.time_ns()):
        return RelayRoute(entry)
    at = hub_wanted(entry.hub or "")[0] if entry.role == LEAF else None
    closed = no_contact(*at) if at is not None else None
    if at is not None and closed is None:
        moved = msgspec.structs.replace(
            entry,
            host=at[0],
            sender=registry.ELSEWHERE,
            address=at[0],
            port=at[1],
            public_address=None,
            public_port=None,
        )
        return RelayRoute(moved, at)
    if entry.sender == registry.host_identity():
        why = f"this host only: its hub is {closed}" if closed is not None else None
        return RelayRoute(entry, why=why)
    return _from_elsewhere(entry)


def _from_elsewhere(entry: registry.JobEntry) -> RelayRoute:
    """The route to a relay of another host, or of a container here, whose job file is readable."""
    address, port = entry.endpoint()
    loopback = entry.public_address is None and is_loopback(address)
    if loopback and entry.host != os.uname().nodename:
        why: str | None = "it listens on its own host only"
    else:
        why = no_contact(address, port)
    if why is not None and entry.ended_unix_ns is not None:
        # The files of its relay are in the shared folder.
        return RelayRoute(msgspec.structs.replace(entry, heartbeat_unix_ns=0))
    if why is not None and (leaf := _leaf_here(entry)) is not None:
        return RelayRoute(leaf, why=f"this host only: its hub is {why}")
    return RelayRoute(entry, ssh=entry.host if why is not None else None, why=why)


def _leaf_here(hub: registry.JobEntry) -> registry.JobEntry | None:
    """The relay of this job on this host. It answers even while the network to the hub is down."""
    here, now = registry.host_identity(), time.time_ns()
    parts = (
        entry
        for entry in registry.read_entries()
        if entry.job == hub.job and entry.part_of == hub.run
    )
    return next((entry for entry in parts if entry.sender == here and entry.reachable(now)), None)


def from_here(entry: registry.JobEntry, command: str) -> registry.JobEntry:
    """The entry with an address that can be asked from here. `command`: who asks.

    Raises:
        CommandError: 3, it can only be asked from its own host; names the command that does so.
    """
    reached = route(entry)
    if reached.ssh is None:
        if reached.why is not None:
            echo(f"ddtop: {reached.why}", err=True)
        return reached.entry
    there = f"ddtop {command} --ssh {reached.ssh}"
    raise CommandError(
        f"ddtop: {entry.job} is on {reached.ssh}, and from here it cannot be asked: {reached.why}; "
        f"try\n  {there} {entry.job}",
        UNREACHABLE,
    )


def asked_at(text: str, named_by: str = "--hub") -> registry.JobEntry:
    """The job whose relay listens at HOST:PORT, without its job file. `named_by`: the option or
    variable, for messages.

    Raises:
        CommandError: 2, no HOST:PORT; 3, nobody listens there, or nobody who knows this key.
        RegistryError: the key cannot be read.
    """
    found, _ = hub_wanted(text)
    if found is None:
        raise CommandError(f"ddtop: {named_by} takes HOST:PORT, not {text!r}", USAGE)
    host, port = found
    why = no_contact(host, port)
    if why is not None:
        raise CommandError(
            f"ddtop: {named_by} {host}:{port} is {why}; "
            f"if a firewall is between: ddtop attach --ssh {host}",
            UNREACHABLE,
        )
    try:
        return registry.at_port(present_of(PortRoute("", host, port)).job.name, host, port)
    except NotHeardError:
        raise CommandError(
            f"ddtop: no relay of yours answers at {host}:{port} within {engine.JOIN_S:.0f} s:"
            " another port, one that listens on its own host only (then: --ssh HOST), or another"
            " key (DDTOP_KEY, or `key` in the state folder, has to be the same)",
            UNREACHABLE,
        ) from None
    except UnreachableError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None


def no_contact(host: str, port: int, seconds: float = CONNECT_S) -> str | None:
    """Why no connection to that port is accepted; None if one is.

    The name is resolved on a thread, because a resolver may take minutes.
    """
    addresses = at_most(2 * seconds, lambda: _addresses(host))
    if addresses is None:
        return f"not reachable: the name {host} was not resolved within {2 * seconds:.0f} s"
    return _refusal(host, addresses, port, seconds)


def _addresses(host: str) -> tuple[str, ...]:
    try:
        return numeric_addresses(host)[:ADDRESSES_MAX]
    except OSError:
        return ()


def _refusal(host: str, addresses: tuple[str, ...], port: int, seconds: float) -> str | None:
    # The caller that connects with the key afterwards reports a key that cannot be read.
    with contextlib.suppress(registry.RegistryError):
        secret = registry.secret()
        if any(admits(address, port, secret, seconds) for address in addresses):
            return None
    why = f"not reachable: no host is called {host} here"
    for address in addresses:
        try:
            socket.create_connection((address, port), seconds).close()
            return None
        except TimeoutError:
            why = (
                f"not reachable: {host} does not answer on port {port} within {seconds:.1f} s "
                "(a firewall, or the host is down)"
            )
        except OSError as error:
            why = f"not reachable: {error.strerror or error}"
            if error.errno == errno.ECONNREFUSED:
                why = f"not reachable: nobody listens on port {port} of {host}"
    return why
