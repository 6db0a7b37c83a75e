"""Checks the rendezvous address from this host, before anything is started."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from pathlib import Path

from ddtop.cli.check.judge import BAD, GOOD, NOTE, Line
from ddtop.cli.check.torchrun_line import TorchrunLine

REACH_S = 5.0
"""A host that answers at all does so within a second; a lost packet is resent after three."""
LISTENS = "0A"
"""State of a listening socket in /proc/net/tcp."""


def checks(line: TorchrunLine) -> list[Line]:
    """The lines about names and the port."""
    return [*_own_name(line), *_program(line), *_endpoint(line)]


def addresses_of(name: str) -> list[str]:
    """The addresses of a name, without duplicates.

    Raises:
        OSError: it has none.
    """
    return list(dict.fromkeys(str(one[4][0]) for one in socket.getaddrinfo(name, None)))


def is_loopback(address: str) -> bool:
    """Whether only this host can reach the address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _program(line: TorchrunLine) -> list[Line]:
    if line.is_module or line.launched or Path(line.program).exists():
        return []
    fix = "correct the path, or change to the folder of the program"
    return [Line(BAD, "program", f"{line.program} does not exist here", fix)]


def _own_name(line: TorchrunLine) -> list[Line]:
    name = socket.gethostname()
    try:
        found = addresses_of(name)
    except OSError:
        fix = f"add a line for {name} to /etc/hosts, or set GLOO_SOCKET_IFNAME"
        return [Line(NOTE, "host name", f"{name} does not resolve on its own host", fix)]
    if line.nodes > 1 and all(map(is_loopback, found)) and not line.launched:
        if "GLOO_SOCKET_IFNAME" in os.environ:
            text = f"{name} resolves to {found[0]} here; GLOO_SOCKET_IFNAME is used instead"
            return [Line(NOTE, "host name", text)]
        fix = f"give {name} the address of its network in /etc/hosts, or set GLOO_SOCKET_IFNAME"
        text = f"{name} resolves to {found[0]}: ranks here tell other nodes to connect there"
        # The all_reduce shows whether this job works with it.
        return [Line(NOTE, "host name", text, fix)]
    return [Line(GOOD, "host name", f"{name} resolves to {', '.join(found[:3])}")]


def _endpoint(line: TorchrunLine) -> list[Line]:
    if line.endpoint is None:
        return [Line(GOOD, "rendezvous", "torchrun chooses a free port on this host")]
    host, port = line.endpoint
    try:
        found = addresses_of(host)
    except OSError as error:
        fix = "correct the name in --rdzv-endpoint or --master-addr, or add it to /etc/hosts"
        return [Line(BAD, "rendezvous", f"{host} does not resolve: {error.strerror}", fix)]
    place = f"{host}:{port}"
    if line.nodes > 1 and all(map(is_loopback, found)):
        fix = f"give {host} an address that the other nodes reach, in /etc/hosts or on the command"
        text = f"{host} resolves to {found[0]}: each node would look for the others on itself"
        return [Line(BAD, "rendezvous", text, fix)]
    if any(map(_is_here, found)):
        return [_port_here(line, place, port)]
    return [_reached(found[0], place, port)]


def _is_here(address: str) -> bool:
    """Whether a socket on this host can be bound to the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family) as one:
        one.bind((address, 0))
        return True
    return False


def _port_here(line: TorchrunLine, place: str, port: int) -> Line:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("", port))
            one.listen(1)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return Line(BAD, "port", f"{place}: {error.strerror}", "take a port above 1023")
        else:
            return Line(GOOD, "port", f"{place} is on this host, and free")
    holder = _holder(port)
    text = f"{place} is taken on this host by {holder or 'another user'}"
    if line.nodes > 1 and (line.node_rank > 0 or line.backend != "static"):
        return Line(NOTE, "port", f"{text}; right if that is another node of this job")
    return Line(BAD, "port", text, "end what holds it, or take another port")


def _holder(port: int) -> str | None:
    """The process that listens on this port, if this user may see it.

    Source: /proc/net/tcp and /proc/PID/fd.
    """
    wanted = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for row in Path(table).read_text().splitlines()[1:]:
                words = row.split()
                if words[3] == LISTENS and int(words[1].rpartition(":")[2], 16) == port:
                    wanted.add(f"socket:[{words[9]}]")
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(os.readlink(one) in wanted for one in folder.iterdir()):
                command = (folder.parent / "cmdline").read_bytes().replace(b"\0", b" ")
                return f"process {folder.parent.name} ({command.decode(errors='replace')[:60]})"
    return None


def _reached(address: str, place: str, port: int) -> Line:
    try:
        socket.create_connection((address, port), REACH_S).close()
    except ConnectionRefusedError:
        return Line(GOOD, "port", f"{place} is reached, and nobody listens there yet")
    except OSError as error:
        why = error.strerror or "no answer"
        fix = "ask for that port to be opened between the nodes, or correct the address"
        return Line(BAD, "port", f"{place} cannot be reached from here: {why}", fix)
    return Line(GOOD, "port", f"{place} is reached, and takes connections")
