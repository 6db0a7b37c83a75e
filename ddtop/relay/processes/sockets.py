"""Which process has which TCP connection: /proc/PID/net/tcp and tcp6 joined with descriptors.

Check: `ss -tanp`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

STATES = {
    "01": "ESTABLISHED",
    "02": "SYN_SENT",
    "03": "SYN_RECV",
    "04": "FIN_WAIT1",
    "05": "FIN_WAIT2",
    "06": "TIME_WAIT",
    "07": "CLOSE",
    "08": "CLOSE_WAIT",
    "09": "LAST_ACK",
    "0A": "LISTEN",
    "0B": "CLOSING",
}
TABLE_BYTES_MAX = 4 << 20
DESCRIPTORS_MAX = 4096
PROBE_S, PROBE_EVERY_S = 1.0, 5.0
_INODE = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Tcp:
    """One line of the table: this side's address and port, the other side's, and whose socket it
    is.
    """

    local: str
    port: int
    remote: str
    remote_port: int
    state: str
    uid: int
    inode: int


def table(pid: int) -> tuple[Tcp, ...] | None:
    """All TCP sockets of the network namespace of this process; None if it cannot be read."""
    tables = list(_tables(pid))
    return tuple([one for data in tables for one in parsed(data)]) if tables else None


def _tables(pid: int) -> Iterator[bytes]:
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), Path(f"/proc/{pid}/net/{name}").open("rb") as file:
            yield file.read(TABLE_BYTES_MAX)


def parsed(data: bytes) -> list[Tcp]:
    """The lines of a table of the kernel; what is not such a line is left out."""
    found = []
    for line in data.decode("ascii", "replace").splitlines()[1:]:
        words = line.split()
        try:
            local, port = _endpoint(words[1])
            remote, remote_port = _endpoint(words[2])
            found.append(
                Tcp(
                    local,
                    port,
                    remote,
                    remote_port,
                    STATES.get(words[3].upper(), words[3]),
                    int(words[7]),
                    int(words[9]),
                )
            )
        except (IndexError, ValueError, struct.error):
            continue
    return found


def _endpoint(text: str) -> tuple[str, int]:
    """`0100007F:7149` as ("127.0.0.1", 29001); an IPv4 address inside an IPv6 one as IPv4."""
    address, _, port = text.partition(":")
    # The kernel prints each 32-bit word in the machine's own order.
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    if len(packed) == 4:
        return socket.inet_ntop(socket.AF_INET, packed), int(port, 16)
    if packed[:12] == bytes(10) + b"\xff\xff":
        return socket.inet_ntop(socket.AF_INET, packed[12:]), int(port, 16)
    return socket.inet_ntop(socket.AF_INET6, packed), int(port, 16)


def remote(pid: int, inode: int) -> str | None:
    """`10.0.0.7:443`: the far end of this TCP socket, also while it connects.

    None if it is another kind of socket.
    """
    # To parse all lines of a busy host takes a hundred milliseconds.
    lines = [line for data in _tables(pid) for line in _with(b" %d " % inode, data)]
    for one in parsed(b"\n".join([b"", *lines])):
        if one.inode == inode and one.remote_port:
            return (
                f"[{one.remote}]:{one.remote_port}"
                if ":" in one.remote
                else f"{one.remote}:{one.remote_port}"
            )
    return None


def _with(word: bytes, data: bytes) -> Iterator[bytes]:
    at = data.find(word)
    while at >= 0:
        end = data.find(b"\n", at)
        yield data[data.rfind(b"\n", 0, at) + 1 : end if end >= 0 else None]
        at = data.find(word, end) if end >= 0 else -1


def inodes(pid: int) -> frozenset[int] | None:
    """The sockets that this process has open; None if its descriptors may not be looked at."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return None
    found = {inode(pid, number) for number in numbers[:DESCRIPTORS_MAX]}
    return frozenset(one for one in found if one is not None)


def inode(pid: int, descriptor: int | str) -> int | None:
    """The socket that this descriptor of the process is.

    None if it is none, or may not be looked at.
    """
    try:
        match = _INODE.match(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    except OSError:
        return None
    return int(match[1]) if match else None


def owner(inode: int, first: Iterable[int]) -> int | None:
    """The process that has this socket open. It looks at the processes in `first` before all
    others.

    None if no process that it may look at has the socket open.
    """
    asked = list(dict.fromkeys(first))
    for pid in asked:
        if inode in (inodes(pid) or ()):
            return pid
    others = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return next((pid for pid in others if pid not in asked and inode in (inodes(pid) or ())), None)


def is_local(address: str) -> bool:
    """This host has that address (a number, not a name)."""
    try:
        with socket.socket(
            socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM
        ) as one:
            one.bind((address, 0))
    except (OSError, ValueError):
        return False
    return True


class ConnectProbe:
    """Tries to connect, in a thread of its own: a name server may take its time.

    One try at once, and a pause between two.
    """

    def __init__(self) -> None:
        self._results: dict[tuple[str, int], tuple[str, tuple[str, ...]]] = {}
        self._thread: threading.Thread | None = None
        self._asked_at = float("-inf")

    def ask(self, address: str, port: int) -> None:
        """Try once, unless a try is under way or the last one was a moment ago."""
        now = time.monotonic()
        if now - self._asked_at < PROBE_EVERY_S or (
            self._thread is not None and self._thread.is_alive()
        ):
            return
        self._asked_at = now
        self._thread = threading.Thread(
            target=self._try, args=(address, port), name="probe", daemon=True
        )
        self._thread.start()

    def result(self, address: str, port: int) -> tuple[str | None, tuple[str, ...]]:
        """(how the last try went, the numbers behind the name)."""
        return self._results.get((address, port), (None, ()))

    def _try(self, address: str, port: int) -> None:
        if len(self._results) > 64:
            self._results.clear()
        self._results[address, port] = connect(address, port)


def connect(address: str, port: int, within_s: float = PROBE_S) -> tuple[str, tuple[str, ...]]:
    """("open", "refused", "timed out", "unreachable" or "name not found", the numbers behind the
    name).

    Nothing is sent; the connection is closed at once. The name server's time is not in `within_s`.
    """
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, OverflowError):
        return "name not found", ()
    numbers = tuple(dict.fromkeys(str(one[4][0]) for one in found))
    result, end = "unreachable", time.monotonic() + within_s
    for family, kind, protocol, _, target in found:
        try:
            with socket.socket(family, kind, protocol) as one:
                one.settimeout(max(0.05, end - time.monotonic()))
                one.connect(target)
                return "open", numbers
        except TimeoutError:
            result = "timed out"
        except ConnectionRefusedError:
            result = "refused"
        except OSError as error:
            if result == "unreachable" and error.errno not in (
                errno.EHOSTUNREACH,
                errno.ENETUNREACH,
                errno.EADDRNOTAVAIL,
            ):
                result = error.strerror or "unreachable"
    return result, numbers
