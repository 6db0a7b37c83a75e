"""Which process has which TCP connection: /proc/PID/net/tcp and tcp6 joined with descriptors.

Check: `ss -tanp`.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ddtop.procfs import link, names_in, read

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
_NETLINK_SOCK_DIAG, _BY_FAMILY = 4, 20
_DIAG_NAME, _DIAG_PEER, _NAME_AND_PEER, _UNIX_ANSWER_BYTES = 0, 2, 5, 16
_MESSAGE, _UNIX_REQUEST = struct.Struct("=IHHII"), struct.Struct("=BBHIIIii")
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

    @property
    def far_end(self) -> str:
        """`10.0.0.7:443`"""
        return (
            f"[{self.remote}]:{self.remote_port}"
            if ":" in self.remote
            else f"{self.remote}:{self.remote_port}"
        )

    def listens_for(self, other: Tcp) -> bool:
        """It listens on this host where the other one connects to."""
        here = self.local in (other.remote, "0.0.0.0", "::") and is_local(other.remote)
        return self.state == "LISTEN" and self.port == other.remote_port and here

    def is_other_end(self, other: Tcp) -> bool:
        """Both are ends of one connection, on this host."""
        here, there = (self.local, self.port), (self.remote, self.remote_port)
        return here == (other.remote, other.remote_port) and there == (other.local, other.port)


NAME_PORTS = (53, 5353)
"""Where name servers listen."""


def table(pid: int) -> tuple[Tcp, ...] | None:
    """All TCP sockets of the network namespace of this process; None if it cannot be read.

    5 ms on a quiet host, 47 ms with 25,000 sockets.
    """
    tables = list(_tables(pid))
    return tuple([connection for data in tables for connection in parse(data)]) if tables else None


def _tables(pid: int, names: tuple[str, ...] = ("tcp", "tcp6")) -> Iterator[bytes]:
    for name in names:
        with contextlib.suppress(OSError), Path(f"/proc/{pid}/net/{name}").open("rb") as file:
            yield file.read(TABLE_BYTES_MAX)


def parse(data: bytes) -> list[Tcp]:
    """The lines of a table of the kernel; what is not such a line is left out."""
    connections = []
    for line in data.decode("ascii", "replace").splitlines()[1:]:
        words = line.split()
        try:
            local, port = _endpoint(words[1])
            remote, remote_port = _endpoint(words[2])
            connections.append(
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
    return connections


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
    lines = [line for data in _tables(pid) for line in _lines_with(b" %d " % inode, data)]
    for connection in parse(b"\n".join([b"", *lines])):
        if connection.inode == inode and connection.remote_port:
            return connection.far_end
    return None


def name_server(pid: int, inode: int) -> str | None:
    """`10.0.0.2:53`: the name server that this UDP socket asks; None if it asks none."""
    for data in _tables(pid, ("udp", "udp6")):
        for one in parse(data):
            if one.inode == inode and one.remote_port in NAME_PORTS:
                return one.far_end
    return None


def _lines_with(word: bytes, data: bytes) -> Iterator[bytes]:
    at = data.find(word)
    while at >= 0:
        end = data.find(b"\n", at)
        yield data[data.rfind(b"\n", 0, at) + 1 : end if end >= 0 else None]
        at = data.find(word, end) if end >= 0 else -1


def inodes(pid: int) -> frozenset[int] | None:
    """The sockets that this process has open; None if its descriptors may not be looked at."""
    numbers = names_in(pid, "fd")
    if numbers is None:
        return None
    found = {inode(pid, number) for number in numbers[:DESCRIPTORS_MAX]}
    return frozenset(one for one in found if one is not None)


def inode(pid: int, descriptor: int | str) -> int | None:
    """The socket that this descriptor of the process is.

    None if it is none, or may not be looked at.
    """
    match = _INODE.match(link(pid, f"fd/{descriptor}") or "")
    return int(match[1]) if match else None


def both_ends(table: Sequence[Tcp]) -> Iterator[tuple[Tcp, int]]:
    """The connections that stay on this host, each side with the inode of the other side.

    A connection that nobody has accepted yet has no inode: then it is that of the listening socket.
    """
    sides = {(one.local, one.port, one.remote, one.remote_port): one.inode for one in table}
    listening = {one.port: one.inode for one in table if one.state == "LISTEN"}
    for one in table:
        far = sides.get((one.remote, one.remote_port, one.local, one.port))
        if far is not None and (inode := far or listening.get(one.remote_port)):
            yield one, inode


def unix_peer(inode: int) -> tuple[int, str]:
    """The inode of the other end of this unix socket, and the path at which its server listens; 0
    and an empty text if that is not known.

    Source: NETLINK_SOCK_DIAG, which asks for one socket. Check: `ss -xp`.
    """
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as asked:
            asked.settimeout(PROBE_S)
            peer, path = _unix_diag(asked, inode)
            return peer, path or (_unix_diag(asked, peer)[1] if peer else "")
    except (OSError, struct.error):
        return 0, ""


def is_unix_server(inode: int) -> bool:
    """Whether this end of a unix socket has a name: that of a server, which it has from where it
    was accepted."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as asked:
            asked.settimeout(PROBE_S)
            return bool(_unix_diag(asked, inode)[1])
    except (OSError, struct.error):
        return False


def _unix_diag(asked: socket.socket, inode: int) -> tuple[int, str]:
    """The peer of a unix socket, and its own name (linux/unix_diag.h)."""
    wanted = _UNIX_REQUEST.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, inode, _NAME_AND_PEER, -1, -1)
    asked.send(_MESSAGE.pack(_MESSAGE.size + len(wanted), _BY_FAMILY, 1, 0, 0) + wanted)
    data, peer, path = asked.recv(4096), 0, ""
    at = _MESSAGE.size + _UNIX_ANSWER_BYTES
    while at + 4 <= len(data) and _MESSAGE.unpack_from(data)[1] == _BY_FAMILY:
        size, kind = struct.unpack_from("=HH", data, at)
        value = data[at + 4 : at + size]
        if kind == _DIAG_PEER:
            (peer,) = struct.unpack("=I", value)
        elif kind == _DIAG_NAME:
            text = value.decode(errors="replace")
            path = text.removesuffix("\0").replace("\0", "@")
        at += max(size + 3 & ~3, 4)
    return peer, path


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


def sharers(inode: int) -> tuple[int, ...]:
    """All processes of this user that have this socket open: what has made a pair of sockets still
    has both ends, and so has each child that it has forked."""
    every = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return tuple(pid for pid in every if inode in (inodes(pid) or ()))


def is_local(address: str) -> bool:
    """This host has that address. A name is none: to look it up may take long."""
    try:
        ipaddress.ip_address(address or "0.0.0.0")
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


# -- What a sleeping process waits for in the kernel: the system call, and its descriptor
#
# Only /proc is read (of a path also the memory that holds it), never the file itself: a stat of a
# file on a dead file server would hang the relay together with its rank. `/proc/PID/syscall` and
# `/proc/PID/mem` need the right to ptrace; without it nothing is known. Check: `cat
# /proc/PID/syscall` (number, then its arguments), `ls -l /proc/PID/fd`.


# name: (number on x86_64, on aarch64), those that block or may hang on a file server.
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "open": (2, None),
    "close": (3, 57),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "poll": (7, None),
    "ioctl": (16, 29),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "readv": (19, 65),
    "writev": (20, 66),
    "access": (21, None),
    "select": (23, None),
    "msync": (26, 227),
    "pause": (34, None),
    "nanosleep": (35, 101),
    "sendfile": (40, 71),
    "connect": (42, 203),
    "accept": (43, 202),
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "sendmsg": (46, 211),
    "recvmsg": (47, 212),
    "clone": (56, 220),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "wait4": (61, 260),
    "semop": (65, 193),
    "msgrcv": (70, 188),
    "fcntl": (72, 25),
    "flock": (73, 32),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "ftruncate": (77, 46),
    "getdents": (78, None),
    "rename": (82, None),
    "mkdir": (83, None),
    "unlink": (87, None),
    "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133),
    "statfs": (137, 43),
    "sync": (162, 81),
    "futex": (202, 98),
    "io_getevents": (208, 4),
    "getdents64": (217, 61),
    "semtimedop": (220, 192),
    "clock_nanosleep": (230, 115),
    "epoll_wait": (232, None),
    "mq_timedreceive": (243, 183),
    "waitid": (247, 95),
    "openat": (257, 56),
    "mkdirat": (258, 34),
    "newfstatat": (262, 79),
    "unlinkat": (263, 35),
    "renameat": (264, 38),
    "pselect6": (270, 72),
    "ppoll": (271, 73),
    "splice": (275, 76),
    "sync_file_range": (277, 84),
    "epoll_pwait": (281, 22),
    "fallocate": (285, 47),
    "accept4": (288, 242),
    "preadv": (295, 69),
    "pwritev": (296, 70),
    "recvmmsg": (299, 243),
    "renameat2": (316, 276),
    "copy_file_range": (326, 285),
    "statx": (332, 291),
    "io_uring_enter": (426, 426),
    "clone3": (435, 435),
    "openat2": (437, 437),
    "epoll_pwait2": (441, 441),
    "futex_waitv": (449, 449),
}
_MACHINES = ("x86_64", "aarch64")
_OF_DESCRIPTOR = frozenset(
    {
        "read",
        "write",
        "close",
        "fstat",
        "ioctl",
        "pread64",
        "pwrite64",
        "readv",
        "writev",
        "sendfile",
        "connect",
        "accept",
    }
    | {
        "sendto",
        "recvfrom",
        "sendmsg",
        "recvmsg",
        "fcntl",
        "flock",
        "fsync",
        "fdatasync",
        "ftruncate",
        "getdents",
    }
    | {
        "getdents64",
        "splice",
        "sync_file_range",
        "fallocate",
        "accept4",
        "preadv",
        "pwritev",
        "recvmmsg",
    }
    | {"copy_file_range"}
)
"""Their first argument is a descriptor."""
_PATH_AT = dict.fromkeys(
    ("open", "stat", "lstat", "access", "execve", "rename", "mkdir", "unlink", "statfs"), 0
) | dict.fromkeys(
    ("openat", "openat2", "newfstatat", "statx", "mkdirat", "unlinkat", "renameat", "renameat2"), 1
)
"""Their argument with this number is the address of a path; before the second kind comes the
folder that the path starts from."""
_HERE = 0xFFFFFF9C  # AT_FDCWD
_PATH_BYTES_MAX = 512
_DESCRIPTORS_MAX = 1 << 20
_TERMINAL = re.compile(r"/dev/(?:tty\w*|pts/\d+|console)$")
_KINDS = (("socket:", "socket"), ("pipe:", "pipe"))
_P_PID = 1


def calls_of(machine: str) -> dict[int, str]:
    """Names of the system calls by their numbers.

    None on a machine whose numbers are not in the table.
    """
    if machine not in _MACHINES:
        return {}
    at = _MACHINES.index(machine)
    return {number: name for name, both in _NUMBERS.items() if (number := both[at]) is not None}


_CALLS = calls_of(os.uname().machine)


class Sleep(NamedTuple):
    """Where a main thread sleeps. What is not known is None; while it runs, everything is None.

    `call`: the system call. `file`: what it waits for, a path, or "stdin", "socket", "pipe",
    "terminal", "eventfd", or of a wait for one child "child PID". `socket`: the inode of that
    socket.
    """

    call: str | None = None
    file: str | None = None
    socket: int | None = None


def sleeping_in(pid: int, tid: int = 0) -> Sleep:
    """Where that thread of the process sleeps; `tid` 0: the main thread."""
    call, arguments = parsed_wait((read(f"{pid}/task/{tid or pid}", "syscall") or b"").decode())
    file = None if call is None else _awaited_child(pid, call, arguments)
    return Sleep(call, file, inode(pid, arguments[0] & 0xFFFFFFFF) if file == "socket" else None)


def parsed_wait(
    text: str, calls: dict[int, str] | None = None
) -> tuple[str | None, tuple[int, ...]]:
    """(name, arguments) of a line of /proc/PID/syscall.

    No name for "running", a page fault (-1), or a call not in the table.
    """
    words = text.split()
    try:
        name = (_CALLS if calls is None else calls).get(int(words[0]))
        return name, tuple(int(word, 16) for word in words[1:7])
    except (ValueError, IndexError):
        return None, ()


def _awaited_child(pid: int, call: str, arguments: tuple[int, ...]) -> str | None:
    if len(arguments) < 2:
        return None
    if call in _OF_DESCRIPTOR:
        return descriptor(pid, arguments[0])
    if call in _PATH_AT:
        at = _PATH_AT[call]
        return _path(pid, arguments[at]) if not at or arguments[0] & 0xFFFFFFFF == _HERE else None
    if call in ("select", "pselect6"):
        # One more than the highest descriptor in its sets: 1 can only be the standard input, as
        # input() waits for it.
        return "stdin" if arguments[0] == 1 else None
    child = (
        arguments[0]
        if call == "wait4"
        else arguments[1]
        if call == "waitid" and arguments[0] == _P_PID
        else 0
    )
    return f"child {child}" if 0 < child < 1 << 31 else None


def _path(pid: int, address: int) -> str | None:
    """The path at this address of the process, as a full one; None if it cannot be read."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            name, ended, _ = memory.read(_PATH_BYTES_MAX).partition(b"\0")
    except (OSError, ValueError, OverflowError):
        return None
    folder = link(pid, "cwd")
    return os.path.join(folder, os.fsdecode(name)) if folder and name and ended else None


def descriptor(pid: int, number: int) -> str | None:
    """What a descriptor of that process is: a path, or one word.

    None if it is not open or cannot be read.
    """
    number &= 0xFFFFFFFF
    if number > _DESCRIPTORS_MAX:
        return None
    target = link(pid, f"fd/{number}")
    return target and ("stdin" if number == 0 else kind_of(target))


def kind_of(target: str) -> str:
    """The target of a link in /proc/PID/fd in one word, where it is not a path."""
    if target.startswith("anon_inode:"):
        return target.removeprefix("anon_inode:").strip("[]").partition(":")[0]
    if _TERMINAL.match(target):
        return "terminal"
    return next((word for start, word in _KINDS if target.startswith(start)), target)


def sockets_of(pids: tuple[int, ...]) -> int | None:
    """How many sockets these processes have open, each counted once.

    None if none of them can be read.
    """
    open_ones = [found for pid in pids if (found := inodes(pid)) is not None]
    return len(frozenset().union(*open_ones)) if open_ones else None
