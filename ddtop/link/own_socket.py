"""Sockets of the agent inside the program's process.

The program may close them and get their numbers for its own files. What does not work: a
`socket.socket` object. Its destructor closes the number, even if it now belongs to another file,
and warns when the interpreter exits. What we do: keep the number with the device and inode that the
kernel gave it, and compare them before each use. What remains uncertain: between the check and the
use another thread may still close it. So bytes leave by send(2), which refuses everything but
sockets, with MSG_NOSIGNAL, because the program may have given SIGPIPE its default action.

A call that can block (a connect walks a path) releases the GIL; send and recv never wait, and keep
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import sys
from pathlib import Path

_NOW = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_libc = ctypes.PyDLL(None, use_errno=True)
_slow = ctypes.CDLL(None, use_errno=True)
_send, _recv = _libc.send, _libc.recv
_send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_recv.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_send.restype = _recv.restype = ctypes.c_ssize_t
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


def connected(path: Path, kind: int = socket.SOCK_SEQPACKET) -> OwnSocket:
    """A socket that is connected to this path.

    Raises:
        OSError: no process listens there (ENOENT, ECONNREFUSED), its queue is full (EAGAIN), it is
            of another type
        (EPROTOTYPE), or no descriptor is left.
    """
    descriptor = _slow.socket(int(socket.AF_UNIX), int(kind) | _FLAGS, 0)
    if descriptor < 0:
        raise _error()
    found = OwnSocket(descriptor)
    name = int(socket.AF_UNIX).to_bytes(2, sys.byteorder) + os.fsencode(path) + b"\0"
    if _slow.connect(descriptor, name, len(name)) < 0:
        error = _error()
        found.close()
        raise error
    return found


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
    found = OwnSocket(descriptor)
    name, size = ctypes.create_string_buffer(128), ctypes.c_int(128)
    family = int(socket.AF_UNIX).to_bytes(2, sys.byteorder)
    # Binding to the family alone makes the kernel choose an unused name.
    if (
        _slow.bind(descriptor, family, 2) < 0
        or _slow.getsockname(descriptor, name, ctypes.byref(size)) < 0
        or _slow.connect(descriptor, name, size) < 0
    ):
        error = _error()
        found.close()
        raise error
    return found


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
