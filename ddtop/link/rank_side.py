"""A rank's end of the unix socket: it never blocks. If the relay is slow it drops the oldest frame.

It needs no library, no thread and two descriptors. Before each use, a descriptor is checked to be
still ours, because a program may close it and get its number for a file of its own. Then a new
connection is made, as after the end of a relay: at most every RECONNECT_S, later every
RECONNECT_MAX_S.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

import ddtop
from ddtop.link.packets import (
    PACKET_BYTES_MAX,
    PIECE_BYTES,
    PIECE_BYTES_MIN,
    REJOIN_S,
    PacketError,
    Rejoiner,
    greeting,
    is_greeting,
    other_version,
    packets_of,
)
from ddtop.wire.frames import FRAME_BYTES_MAX

# -- Sockets of the agent inside the program's process
#
# The program may close them and get their numbers for its own files. What does not work: a
# `socket.socket` object. Its destructor closes the number, even if it now belongs to another file,
# and warns when the interpreter exits. What we do: keep the number with the device and inode that
# the kernel gave it, and compare them before each use. What remains uncertain: between the check
# and the use another thread may still close it. So bytes leave by send(2), which refuses everything
# but sockets, with MSG_NOSIGNAL, because the program may have given SIGPIPE its default action.
#
# A call that can block (a connect walks a path) releases the GIL; send and recv never wait, and
# keep it.


_NOW = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_libc = ctypes.PyDLL(None, use_errno=True)
_slow = ctypes.CDLL(None, use_errno=True)
_send, _recv = _libc.send, _libc.recv
_send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_recv.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_send.restype = _recv.restype = ctypes.c_ssize_t
# Without types of its arguments and without its error, this call makes no object.
_poll = ctypes.CDLL(None).poll
_POLLED = struct.Struct("=ihh")
_FLAGS = socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC


class OwnSocket:
    """One socket that we opened. `descriptor`: its number."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._identity = _identity(descriptor)

    def is_ours(self) -> bool:
        """Whether the number still belongs to our socket."""
        return self._identity is not None and _identity(self.descriptor) == self._identity

    def send(self, data: bytes) -> None:
        """Send it as one packet, now.

        Raises:
            BlockingIOError: there is no room. OSError: it cannot be sent.
        """
        if _send(self.descriptor, data, len(data), _NOW) < 0:
            raise _error()

    def receive(self, buffer: ctypes.Array[ctypes.c_char]) -> bytes:
        """The next packet; empty if the other side has closed.

        Raises:
            BlockingIOError: there is none. OSError: it cannot be read, or is larger than the
                buffer (EMSGSIZE).
        """
        size = _recv(self.descriptor, buffer, len(buffer), socket.MSG_DONTWAIT | socket.MSG_TRUNC)
        if size < 0:
            raise _error()
        if size > len(buffer):
            raise OSError(errno.EMSGSIZE, "the packet is too large")
        return ctypes.string_at(buffer, size)

    def close(self) -> None:
        """Close it, if it is still ours. A copy in another process stays open."""
        if self.is_ours():
            with contextlib.suppress(OSError):
                os.close(self.descriptor)
        self._identity = None


def connect(path: Path) -> OwnSocket:
    """A socket that is connected to this path.

    Raises:
        OSError: no process listens there (ENOENT, ECONNREFUSED), its queue is full (EAGAIN), it is
            of another type (EPROTOTYPE), or no descriptor is left.
    """
    descriptor = _slow.socket(int(socket.AF_UNIX), int(socket.SOCK_SEQPACKET) | _FLAGS, 0)
    if descriptor < 0:
        raise _error()
    own_socket = OwnSocket(descriptor)
    name = int(socket.AF_UNIX).to_bytes(2, sys.byteorder) + os.fsencode(path) + b"\0"
    if _slow.connect(descriptor, name, len(name)) < 0:
        error = _error()
        own_socket.close()
        raise error
    return own_socket


def bell() -> OwnSocket:
    """A socket that is connected to itself: a packet wakes the thread that polls it.

    An eventfd does not work, because all of them share one inode, so ours could not be
    distinguished from one of the program.

    Raises:
        OSError: no descriptor is left.
    """
    descriptor = _slow.socket(int(socket.AF_UNIX), int(socket.SOCK_DGRAM) | _FLAGS, 0)
    if descriptor < 0:
        raise _error()
    own_socket = OwnSocket(descriptor)
    name, size = ctypes.create_string_buffer(128), ctypes.c_int(128)
    family = int(socket.AF_UNIX).to_bytes(2, sys.byteorder)
    # Binding to the family alone makes the kernel choose an unused name.
    if (
        _slow.bind(descriptor, family, 2) < 0
        or _slow.getsockname(descriptor, name, ctypes.byref(size)) < 0
        or _slow.connect(descriptor, name, size) < 0
    ):
        error = _error()
        own_socket.close()
        raise error
    return own_socket


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


# -- The connection of a rank to its relay


QUEUE_FRAMES = 8
"""Four seconds of states, the longest restart of a relay. Newer states are more useful than older
ones."""
RECONNECT_S, RECONNECT_MAX_S = 0.1, 1.0
OTHER_VERSION_S = 30.0
"""The pause before a relay of another version is tried again; its version does not change."""
FULL = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)


class RankLink:
    """A connection to the relay of this host.

    Made, used and closed by one thread; only `wake` and `has_more` are for others.

    `drops`: frames that were never sent. `refusal`: why the last connection could not be made, or
    not be used.
    """

    def __init__(self, path: Path, sleep: Callable[..., Any] | None = None) -> None:
        """`sleep(call, *arguments)` makes the call that sleeps; None: it is only made."""
        self._path, self._sleep = path, sleep or (lambda call, *arguments: call(*arguments))
        self._socket: OwnSocket | None = None
        self._bell: OwnSocket | None = None
        self._waiting: deque[bytes] = deque()
        # The frame that is being sent: its packets, the next packet, and the start (monotonic s).
        self._frame = b""
        self._packets: list[bytes] = []
        self._next, self._since_s = 0, 0.0
        self._number, self._piece_bytes = 0, PIECE_BYTES
        self._rejoiner = Rejoiner()
        self._buffer = ctypes.create_string_buffer(PACKET_BYTES_MAX)
        self._retry_s, self._pause_s = 0.0, RECONNECT_S
        self._bell_retry_s = 0.0
        self.drops = 0
        self.refusal = ""
        now = time.monotonic()
        self._look_at_bell(now)
        self._is_up(now)

    # -- waiting

    def wait(self, seconds: float) -> tuple[bool, bool]:
        """Sleep at most this long. Returns (`wake` was called, a packet may have arrived)."""
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            self._look_at_bell(now)
            # A descriptor that is only polled is checked when it has an event: each check costs 5
            # us of CPU, with cold caches.
            if (self._socket is None or self.has_more()) and self._is_up(now):
                self._flush(now)
            until = end if self._socket is not None else min(end, max(self._retry_s, now))
            events = self._poll(max(0.0, until - now))
            woken = (
                bool(events.get(self._bell.descriptor if self._bell is not None else -1))
                and self._answer_bell()
            )
            found = events.get(self._socket.descriptor, 0) if self._socket is not None else 0
            if found & ~select.POLLOUT or woken:
                return woken, bool(found & ~select.POLLOUT)
            if time.monotonic() >= end:
                return False, False

    def _poll(self, seconds: float) -> dict[int, int]:
        more = select.POLLOUT if self.has_more() else 0
        wanted = [(self._socket, select.POLLIN | more), (self._bell, select.POLLIN)]
        polled = [(one.descriptor, events) for one, events in wanted if one is not None]
        # The kernel writes the events into these bytes, which nobody else has.
        data = b"".join(_POLLED.pack(number, events, 0) for number, events in polled)
        self._sleep(_poll, data, len(polled), ceil(seconds * 1000))
        return {number: events for number, _, events in _POLLED.iter_unpack(data)}

    def wake(self) -> None:
        """End a `wait` at once; from any thread."""
        rung = self._bell
        if rung is not None and rung.is_ours():
            # Full: a wake-up is already pending.
            with contextlib.suppress(OSError):
                rung.send(b"!")

    def _answer_bell(self) -> bool:
        if self._bell is None:
            return False
        if not self._bell.is_ours():
            # Its number may now belong to a file of the program, which must not end every wait.
            self._bell = None
            return False
        with contextlib.suppress(OSError):
            for _ in range(64):
                self._bell.receive(self._buffer)
        return True

    def is_connected(self) -> bool:
        """Whether there is a connection to a relay."""
        return self._socket is not None

    def has_more(self) -> bool:
        """Whether frames wait for room, or for a relay."""
        return bool(self._packets or self._waiting)

    # -- frames

    def send(self, frame: bytes) -> bool:
        """Send a frame, or keep it until there is room.

        False if an older one was dropped (counted), or if this one is too large.
        """
        if len(frame) > FRAME_BYTES_MAX:
            self.drops += 1
            return False
        self._waiting.append(frame)
        now = time.monotonic()
        if self._is_up(now):
            self._flush(now)
        if len(self._waiting) <= QUEUE_FRAMES:
            return True
        self._waiting.popleft()
        self.drops += 1
        return False

    def receive(self) -> bytes | None:
        """The next frame from the relay, if one is there."""
        now = time.monotonic()
        while self._is_up(now) and self._socket is not None:
            try:
                packet = self._socket.receive(self._buffer)
            except OSError as error:
                if error.errno not in FULL:
                    self._lose(now)
                return None
            if not packet:
                self._lose(now)
                return None
            try:
                if is_greeting(packet):
                    self._take_greeting(packet, now)
                    continue
                frame = self._rejoiner.take(packet, now)
            except PacketError:
                continue
            if frame is not None:
                return frame
        return None

    def _take_greeting(self, packet: bytes, now: float) -> None:
        theirs = other_version(packet)
        if theirs is None:
            self._pause_s = RECONNECT_S
            return
        versions = f"the relay of this job runs {theirs}, this rank ddtop {ddtop.__version__}"
        self.refusal = f"{versions}: install the same version everywhere"
        self._lose(now)
        self._retry_s = now + OTHER_VERSION_S

    def _flush(self, now: float) -> None:
        """Send what waits, as far as there is room.

        A frame leaves the queue with its first packet.
        """
        while self._socket is not None and (self._packets or self._waiting):
            if not self._packets:
                self._number += 1
                self._frame = self._waiting[0]
                self._packets = list(packets_of(self._frame, self._number, self._piece_bytes))
                self._next, self._since_s = 0, now
            try:
                while self._next < len(self._packets):
                    self._socket.send(self._packets[self._next])
                    self._next += 1
                    if self._next == 1:
                        self._waiting.popleft()
            except OSError as error:
                self._not_sent(error.errno or 0, now)
                return
            self._packets = []

    def _not_sent(self, number: int, now: float) -> None:
        if number == errno.EMSGSIZE and self._piece_bytes > PIECE_BYTES_MIN:
            self._piece_bytes //= 2
        elif number not in FULL:
            self._lose(now)
        if self._next == 0:
            # It remains in the queue, and may be dropped for newer frames.
            self._packets = []
        elif now - self._since_s > REJOIN_S:
            # The other side has dropped it by now.
            self._packets, self.drops = [], self.drops + 1

    # -- the connection

    def _is_up(self, now: float) -> bool:
        """Whether there is a connection; without one, it tries to make one."""
        if self._socket is not None:
            if self._socket.is_ours():
                return True
            # The program has closed it. Its number may now belong to a file of the program.
            self._lose(now)
        if now < self._retry_s:
            return False
        self._retry_s = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, RECONNECT_MAX_S)
        try:
            own_socket = self._connect()
            own_socket.send(greeting(ddtop.__version__))
        except OSError as error:
            self.refusal = f"{self._path}: {error.strerror}"
            return False
        self._socket = own_socket
        self._rejoiner.drop()
        return True

    def _connect(self) -> OwnSocket:
        return connect(self._path)

    def _lose(self, now: float) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        if self._packets and self._next:
            # Its pieces can no longer be joined, so the whole frame is sent again.
            self._waiting.appendleft(self._frame)
            self._packets, self._next = [], 0
        self._retry_s = max(self._retry_s, now + RECONNECT_S)

    def _look_at_bell(self, now: float) -> None:
        """Look at most once a second whether the bell is still ours; make a new one if not."""
        if now < self._bell_retry_s:
            return
        self._bell_retry_s = now + RECONNECT_MAX_S
        if self._bell is not None and self._bell.is_ours():
            return
        self._bell = None
        with contextlib.suppress(OSError):
            self._bell = bell()

    def close(self, linger_ms: int = 0) -> None:
        """Close the socket; what waits gets `linger_ms` to leave."""
        end = time.monotonic() + linger_ms / 1000
        while self.has_more() and (now := time.monotonic()) < end:
            if self._is_up(now):
                self._flush(now)
            if self.has_more():
                self._poll(max(0.0, min(end, max(self._retry_s, now + 0.01)) - time.monotonic()))
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        # The wake-up socket stays open until the process ends, because another thread may be in
        # `wake`.

    def leave(self) -> None:
        """In a forked child: close the child's copies. The parent's connection stays as it is."""
        for own_socket in (self._socket, self._bell):
            if own_socket is not None:
                own_socket.close()
        self._socket = self._bell = None
