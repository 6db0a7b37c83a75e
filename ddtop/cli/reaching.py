"""How a job's relay is reached from here: on this host, straight at its hub's port, or only from its own host."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import click
import msgspec

from ddtop import registry
from ddtop.cli.jobs import UNREACHABLE, USAGE, CommandError, shown
from ddtop.link.viewer_side import admits
from ddtop.relay.hub.discovery import numeric
from ddtop.relay.hub.topology import hub_wanted
from ddtop.wire.hosts import LEAF
from ddtop.wire.rendezvous import is_loopback

KNOCK_S = 1.5
"""A relay takes a connection within a round trip; a firewall that answers nothing does not deserve more of a person's time."""
ADDRESSES_MAX = 2
"""Of a name, one of each version of IP: each takes that long."""
SSH_FAILED, NOT_FOUND = 255, 127
_PLAIN = re.compile(r"[A-Za-z0-9._,:=-]+")
"""What every shell reads alike."""
BY_SSH = ("status", "diagnose", "stacks")
"""Commands that take --ssh; attach goes by itself."""


@dataclass(frozen=True, slots=True)
class Route:
    """What to ask: `entry`, at its address. `port`: straight there, its job file is not on this host. `ssh`: only from that host, `why`."""

    entry: registry.JobEntry
    port: tuple[str, int] | None = None
    ssh: str | None = None
    why: str | None = None


def route(entry: registry.JobEntry) -> Route:
    """The way to the relay of this entry: a leaf's leads to its hub where that can be reached, else to the leaf itself."""
    if entry.sender == registry.ELSEWHERE:
        return Route(entry, (entry.address, entry.port))
    if not entry.reachable(time.time_ns()):
        return Route(entry)
    at = hub_wanted(entry.hub or "")[0] if entry.role == LEAF else None
    lost = no_contact(*at) if at is not None else None
    if at is not None and lost is None:
        return Route(_moved(entry, *at), at)
    if entry.sender == registry.host_identity():
        return Route(entry, why=f"this host only: its hub is {lost}" if lost is not None else None)
    return _from_elsewhere(entry)


def _from_elsewhere(entry: registry.JobEntry) -> Route:
    """The way to a relay of another host, or of a container of this one, whose job file is here."""
    address, port = entry.endpoint()
    if entry.public_address is None and is_loopback(address) and entry.host != os.uname().nodename:
        why: str | None = "it listens on its own host only"
    else:
        why = no_contact(address, port)
    if why is not None and entry.ended_unix_ns is not None:
        # What its relay left lies in the shared folder.
        return Route(msgspec.structs.replace(entry, heartbeat_unix_ns=0))
    if why is not None and (leaf := _leaf_here(entry)) is not None:
        return Route(leaf, why=f"this host only: its hub is {why}")
    return Route(entry, ssh=entry.host if why is not None else None, why=why)


def _leaf_here(hub: registry.JobEntry) -> registry.JobEntry | None:
    """The part of this job whose relay is on this host: in a network that is cut it can still be asked."""
    here, now = registry.host_identity(), time.time_ns()
    parts = (entry for entry in registry.read_entries() if entry.job == hub.job and entry.part_of == hub.run)
    return next((entry for entry in parts if entry.sender == here and entry.reachable(now)), None)


def from_here(entry: registry.JobEntry, command: str) -> registry.JobEntry:
    """The entry as a command can ask it.

    Raises:
        CommandError: 3, only from its own host; with the command that goes there.
    """
    found = route(entry)
    if found.ssh is None:
        if found.why is not None:
            click.echo(shown(f"ddtop: {found.why}"), err=True)
        return found.entry
    there = f"ddtop {command} --ssh {found.ssh}" if command in BY_SSH else f"ssh {found.ssh} ddtop {command}"
    raise CommandError(
        f"ddtop: {entry.job} is on {found.ssh}, and from here it cannot be asked: {found.why}; try\n  {there} {entry.job}",
        UNREACHABLE,
    )


def hub_at(text: str, said: str = "--hub") -> tuple[str, int]:
    """Host and port.

    Raises:
        CommandError: 2, it is no HOST:PORT.
    """
    found, _ = hub_wanted(text)
    if found is None:
        raise CommandError(f"ddtop: {said} takes HOST:PORT, not {text!r}", USAGE)
    return found


def asked_at(text: str, said: str = "--hub") -> registry.JobEntry:
    """The job whose relay listens there, as far as it is known without its job file.

    Raises:
        CommandError: 2, no HOST:PORT; 3, nobody is there, or nobody who knows this key.
        RegistryError: the key cannot be read.
    """
    from ddtop.viewer.follower import UnreachableError
    from ddtop.viewer.routes.relay import job_at

    host, port = hub_at(text, said)
    why = no_contact(host, port)
    if why is not None:
        raise CommandError(
            f"ddtop: {said} {host}:{port} is {why}; where a firewall is between: ddtop attach --ssh {host}", UNREACHABLE
        )
    try:
        name = job_at(host, port)
    except UnreachableError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
    return registry.at_port(name, host, port)


def no_contact(host: str, port: int, seconds: float = KNOCK_S) -> str | None:
    """Why nobody takes a connection there, None if somebody does. A name is asked for in a thread: resolvers may take minutes."""
    found: list[tuple[str, ...]] = []
    thread = threading.Thread(target=lambda: found.append(_addresses(host)), daemon=True)
    thread.start()
    thread.join(2 * seconds)
    if not found:
        return f"not reachable: the name {host} was not resolved within {2 * seconds:.0f} s"
    return _knock(host, found[0], port, seconds)


def _addresses(host: str) -> tuple[str, ...]:
    try:
        return numeric(host)[:ADDRESSES_MAX]
    except OSError:
        return ()


def _knock(host: str, addresses: tuple[str, ...], port: int, seconds: float) -> str | None:
    # A key that cannot be read is told of by whoever goes there with it.
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
            why = f"not reachable: {host} does not answer on port {port} within {seconds:.1f} s (a firewall, or the host is down)"
        except OSError as error:
            why = f"not reachable: {error.strerror or error}"
            if error.errno == errno.ECONNREFUSED:
                why = f"not reachable: nobody listens on port {port} of {host}"
    return why


def over_ssh(host: str, ddtop: str | None, words: list[str]) -> int:
    """Run this command on that host; its exit code. What it says comes to our stdout and stderr as text, without control characters.

    Raises:
        CommandError: 2, no host; 3, no ssh, or no ddtop there.
    """
    from ddtop.cli.attaching import host_called
    from ddtop.cli.foreign_text import copied
    from ddtop.viewer.routes.relay import NoContactError
    from ddtop.viewer.routes.ssh import Host

    target = Host(host_called(host), ddtop)
    if odd := next((word for word in words if not _PLAIN.fullmatch(word)), None):
        raise CommandError(
            f"ddtop: {odd!r} cannot be said over ssh: a job's name has letters, digits and ._- only", USAGE
        )
    columns = shutil.get_terminal_size((120, 24)).columns
    try:
        command = target.command(asks=sys.stdin.isatty(), words=" ".join(words), columns=columns)
    except NoContactError as error:
        raise CommandError(f"ddtop: {error}", UNREACHABLE) from None
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise CommandError(
            f"ddtop: cannot start {command[0]}: {error.strerror}; DDTOP_SSH names another ssh", UNREACHABLE
        ) from None
    code = copied(process)
    if code == SSH_FAILED:
        raise CommandError(f"ddtop: no contact with {host}", UNREACHABLE)
    if code == NOT_FOUND:
        raise CommandError(
            f"ddtop: {ddtop or 'ddtop'} is not found on {host} (a command over ssh has a short PATH); "
            "say where it is: --remote /path/to/venv/bin/ddtop",
            UNREACHABLE,
        )
    return code


def _moved(entry: registry.JobEntry, host: str, port: int) -> registry.JobEntry:
    return msgspec.structs.replace(
        entry, host=host, sender=registry.ELSEWHERE, address=host, port=port, public_address=None, public_port=None
    )
