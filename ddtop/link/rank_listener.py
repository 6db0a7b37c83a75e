"""The relay's end of the unix socket: a SOCK_SEQPACKET listener, one connection per rank.

The sender is the process that the kernel recorded when the connection was made (SO_PEERCRED),
whatever the packets claim. The cost of one connection is bounded (packets read at a time, bytes of
incomplete frames, time to greet), and so is the cost of all of them together. Nothing here waits
for a rank that does not read: a frame that does not fit into its socket is dropped, and the caller
is informed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import ddtop
from ddtop.link.packets import (
    PACKET_BYTES_MAX,
    PacketError,
    Rejoiner,
    greeting,
    is_greeting,
    other_version,
    packets_of,
)

CONNECTIONS_MAX = 4096
CONNECTIONS_OF_ONE_MAX = 8
"""A process needs one, or a second one if the program has just closed the first."""
GREET_S = 5.0
PACKETS_AT_ONCE = 64
"""Packets that are read from one connection before the next one is served."""
HALF_BYTES_MAX = 32 << 20
"""For all incomplete frames together; with 64 MiB, a flood of incomplete frames would double the
relay's memory."""
BACKLOG = 512
FULL_AGAIN_S = 1.0
"""If descriptors run out, no connection is accepted for this time."""
_CREDENTIALS = struct.Struct("iII")
TEND_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """The process that made a connection.

    `pid` is 0 if the process is in a pid namespace that cannot be seen from here.
    """

    pid: int
    uid: int


@dataclass
class _Connection:
    socket: socket.socket
    name: bytes
    who: Credentials
    since_s: float
    greeted: bool = False
    number: int = 0
    rejoiner: Rejoiner = field(default_factory=Rejoiner)


class RankListener:
    """All connections of ranks. Made, used and closed by one thread.

    `descriptor` becomes readable when `receive` has something to do. `refused`: connections that
    were closed because of who made them, their version, or their number. `broken`: frames and
    packets that could not be used. `complaint`: a sentence about a version problem, None without
    one.

    Raises:
        OSError: the socket cannot be bound.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._uid = os.getuid()
        self._connections: dict[int, _Connection] = {}
        self._by_name: dict[bytes, _Connection] = {}
        self._of_pid: dict[int, int] = {}
        self._counter = 0
        self._shut_until_s: float | None = None
        self._tended_s = 0.0
        self._broken_of_gone = 0
        self._buffer = bytearray(PACKET_BYTES_MAX)
        self._view = memoryview(self._buffer)
        self.refused = 0
        self._bad_packets = 0
        self.complaint: str | None = None
        self._listening = _listen_at(path)
        self._epoll = select.epoll()
        self._epoll.register(self._listening.fileno(), select.EPOLLIN)
        self.descriptor = self._epoll.fileno()

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def broken(self) -> int:
        """Dropped frames, and invalid packets."""
        living = sum(connection.rejoiner.broken for connection in self._connections.values())
        return self._bad_packets + self._broken_of_gone + living

    def credentials(self, name: bytes) -> Credentials | None:
        """The process that made this connection; None if it is closed."""
        connection = self._by_name.get(name)
        return connection.who if connection is not None else None

    # -- in

    def receive(self, at_most: int) -> Iterator[tuple[bytes, bytes]]:
        """(connection, frame) of all new frames. It also accepts new connections."""
        now = time.monotonic()
        self._do_due_work(now)
        for descriptor, _ in self._epoll.poll(0):
            if descriptor == self._listening.fileno():
                self._accept(now)
            elif at_most > 0 and (connection := self._connections.get(descriptor)) is not None:
                for frame in self._read(connection, min(at_most, PACKETS_AT_ONCE), now):
                    at_most -= 1
                    yield connection.name, frame

    def _read(self, connection: _Connection, at_most: int, now: float) -> Iterator[bytes]:
        for _ in range(at_most):
            try:
                size = connection.socket.recv_into(
                    self._view, 0, socket.MSG_DONTWAIT | socket.MSG_TRUNC
                )
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                size = 0
            if not 0 < size <= PACKET_BYTES_MAX:
                # 0: it has closed. More than the size of a packet: it is not one of ours.
                self._bad_packets += size > 0
                self._close(connection)
                return
            packet = bytes(self._view[:size])
            if not connection.greeted:
                if not self._greets(connection, packet):
                    return
                continue
            try:
                frame = connection.rejoiner.take(packet, now)
            except PacketError:
                self._bad_packets += 1
                continue
            if frame is not None:
                yield frame
            elif self._half_bytes() > HALF_BYTES_MAX:
                connection.rejoiner.drop()
            if connection.socket.fileno() < 0:
                return

    def _half_bytes(self) -> int:
        return sum(connection.rejoiner.held_bytes for connection in self._connections.values())

    def _greets(self, connection: _Connection, packet: bytes) -> bool:
        """Whether the first packet is a greeting of our version. If not, close the connection."""
        try:
            theirs = other_version(packet) if is_greeting(packet) else "no ddtop"
        except PacketError:
            theirs = "no ddtop"
        if theirs is None:
            connection.greeted = True
            return True
        if theirs != "no ddtop":
            versions = f"{theirs}, the relay ddtop {ddtop.__version__}"
            self.complaint = (
                f"process {connection.who.pid} runs {versions}: install the same version everywhere"
            )
        self.refused += 1
        self._close(connection)
        return False

    # -- who comes

    def _accept(self, now: float) -> None:
        for _ in range(PACKETS_AT_ONCE):
            try:
                found, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._shut_until_s = now + FULL_AGAIN_S
                    self._epoll.unregister(self._listening.fileno())
                return
            credentials = _credentials(found)
            if credentials.uid != self._uid or not self._has_room(credentials):
                self.refused += 1
                found.close()
                continue
            self._counter += 1
            connection = _Connection(found, str(self._counter).encode(), credentials, now)
            found.setblocking(False)
            try:
                self._epoll.register(found.fileno(), select.EPOLLIN)
                found.send(greeting(ddtop.__version__), socket.MSG_NOSIGNAL)
            except OSError:
                # It has already closed; its packets are still read.
                pass
            self._connections[found.fileno()] = self._by_name[connection.name] = connection
            self._of_pid[credentials.pid] = self._of_pid.get(credentials.pid, 0) + 1

    def _has_room(self, credentials: Credentials) -> bool:
        # All processes without a visible pid have the number 0, so they are not counted by pid.
        crowd = (
            credentials.pid != 0 and self._of_pid.get(credentials.pid, 0) >= CONNECTIONS_OF_ONE_MAX
        )
        return not crowd and len(self._connections) < CONNECTIONS_MAX

    def _do_due_work(self, now: float) -> None:
        if self._shut_until_s is not None and now >= self._shut_until_s:
            self._shut_until_s = None
            self._epoll.register(self._listening.fileno(), select.EPOLLIN)
        if now - self._tended_s < TEND_EVERY_S:
            return
        self._tended_s = now
        for connection in list(self._connections.values()):
            connection.rejoiner.expire(now)
            if not connection.greeted and now - connection.since_s > GREET_S:
                self.refused += 1
                self._close(connection)

    # -- out

    def send(self, name: bytes, frame: bytes) -> bool:
        """Send a frame to a rank now; False if it has ended, or does not read."""
        connection = self._by_name.get(name)
        if connection is None:
            return False
        connection.number += 1
        try:
            for packet in packets_of(frame, connection.number):
                connection.socket.send(packet, socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except (OSError, PacketError):
            # The rank drops the first pieces of an incomplete frame.
            return False
        return True

    def _close(self, connection: _Connection) -> None:
        descriptor = connection.socket.fileno()
        with contextlib.suppress(OSError, ValueError):
            self._epoll.unregister(descriptor)
        self._connections.pop(descriptor, None)
        self._by_name.pop(connection.name, None)
        self._broken_of_gone += connection.rejoiner.broken
        left = self._of_pid.get(connection.who.pid, 1) - 1
        if left > 0:
            self._of_pid[connection.who.pid] = left
        else:
            self._of_pid.pop(connection.who.pid, None)
        connection.socket.close()

    def close(self) -> None:
        """Close all connections and remove the paths."""
        for connection in list(self._connections.values()):
            self._close(connection)
        self._epoll.close()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        self._listening.close()


def _listen_at(path: Path) -> socket.socket:
    kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    found = socket.socket(socket.AF_UNIX, kind)
    try:
        # The relay that made it has ended, because the caller holds the lock of this run.
        path.unlink(missing_ok=True)
        found.bind(os.fspath(path))
        path.chmod(0o600)
        found.listen(BACKLOG)
    except OSError:
        found.close()
        raise
    return found


def _credentials(found: socket.socket) -> Credentials:
    pid, uid, _ = _CREDENTIALS.unpack(
        found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return Credentials(pid, uid)
