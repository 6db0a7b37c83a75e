"""The TCP listeners of a ROUTER: they count refused connections and block floods.

Problem: libzmq accepts every connection, and gives each half a minute and a buffer as large as the
largest message before the handshake. When descriptors run out, its thread spins on the connection
that it cannot accept (measured: a whole core). What does not work: to unbind and bind again,
because libzmq ends all connections of that socket. What we do: allow a short time for the
handshake, and limit how many peers may be in it. Above the limit a filter on the listening socket
lets the kernel drop new connections. An honest peer automatically tries again a second later, and
no other program gets the port. For this, the socket is made here and libzmq gets a copy.
Connections that the kernel has already accepted still arrive, up to BACKLOG. What remains
uncertain: libzmq does not report which connection has completed the handshake. A connection that
ended counts as refused if no handshake was completed since it began, or if libzmq reported it. So
while viewers connect, the count may be too low, but never too high.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass

import zmq

from ddtop.link.penalties import Address, Penalties, attached, packet_filter

HANDSHAKE_S = 5.0
"""Time for three round trips: 2 s if each takes 200 ms and one packet is lost."""
FULL_AGAIN_S = 1.0
"""Where descriptors run out."""
BACKLOG = 512
"""The length of the kernel's queue. A thousand relays that start in the same second connect within
a few seconds."""
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""One instruction of a packet filter: keep nothing."""
_ATTACH_FILTER, _DETACH_FILTER = 26, 27
EVENTS_KEPT = 1 << 17
"""The queue of events. libzmq's thread would wait for room, so it is larger than the number of
events between two looks."""
EVENTS_AT_ONCE = 5000
"""The rest makes `monitor` readable again, so that ranks are served in between."""
_EVENT = struct.Struct("<HI")
_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
)
_WATCHED = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_ACCEPT_FAILED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | sum(_FAILED)
)


@dataclass
class _Listener:
    """One listening socket. `shut_until_s`: None while it is open."""

    socket: socket.socket
    strangers_max: int
    shut_until_s: float | None = None


class Listeners:
    """All listeners of one ROUTER. The thread of the ROUTER makes, uses and closes them.

    `monitor`: becomes readable when `look` has something to do. `refused`: connections that ended
    without a handshake.
    """

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        self._router = router
        self._listeners: dict[str, _Listener] = {}
        self._came: dict[int, tuple[float, int, str]] = {}
        self._shook: deque[tuple[float, str]] = deque()
        self._handshakes = 0
        self._failed = 0
        self._full_until_s = 0.0
        self._kept_out = 0
        self._sources: dict[int, str] = {}
        self._penalties = Penalties()
        self._spare: int | None = None
        self.refused = 0
        router.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_S * 1000))
        endpoint = f"inproc://listeners-{id(self)}"
        router.monitor(endpoint, _WATCHED)
        self.monitor = router.context.socket(zmq.PAIR)
        self.monitor.setsockopt(zmq.LINGER, 0)
        self.monitor.setsockopt(zmq.RCVHWM, EVENTS_KEPT)
        self.monitor.connect(endpoint)

    def open(self, address: str, port: int, strangers_max: int, bytes_max: int) -> int:
        """Listen at this address (in digits); the port. 0: one that is free.

        `strangers_max` peers may be in their handshake at once. Each may use `bytes_max` of memory,
        which is also the largest message.

        Raises:
            OSError: the port is in use, or the address is not one of this host.
        """
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.socket(
            family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listening.bind((address, port))
            listening.listen(BACKLOG)
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            # The other descriptors are for peers with a key, for the ranks and for files.
            listener = _Listener(listening, min(strangers_max, soft // 4))
            endpoint = self._bind(listening, bytes_max)
        except zmq.ZMQError as error:
            listening.close()
            raise OSError(error.errno, str(error)) from None
        except OSError:
            listening.close()
            raise
        self._listeners[endpoint] = listener
        return int(listening.getsockname()[1])

    def _bind(self, listening: socket.socket, bytes_max: int) -> str:
        descriptor = os.dup(listening.fileno())
        try:
            # Both are the listener's: they are copied when it is bound.
            self._router.setsockopt(zmq.MAXMSGSIZE, bytes_max)
            self._router.setsockopt(zmq.USE_FD, descriptor)
            self._router.bind("tcp://127.0.0.1:0")
        except zmq.ZMQError:
            os.close(descriptor)
            raise
        finally:
            self._router.setsockopt(zmq.USE_FD, -1)
        return self._router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def close_all_but(self, port: int) -> None:
        """Listen at this port only; libzmq ends the connections of the others."""
        for endpoint, listener in list(self._listeners.items()):
            if listener.socket.getsockname()[1] != port:
                self._router.unbind(endpoint)
                listener.socket.close()
                del self._listeners[endpoint]

    def is_open(self, port: int) -> bool:
        """Whether new connections are accepted there now."""
        return all(
            listener.shut_until_s is None
            for listener in self._listeners.values()
            if listener.socket.getsockname()[1] == port
        )

    def look(self) -> None:
        """Process the events of the listeners; close and open them."""
        now = time.monotonic()
        for _ in range(EVENTS_AT_ONCE):
            try:
                event, endpoint = self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                # Only now, because the descriptor of a closed connection may have been reused.
                self._name_newcomers()
                break
            kind, value = _EVENT.unpack(event)
            self._take(kind, value, endpoint.decode("ascii", "replace"), now)
        self._do_due_work(now)

    def _name_newcomers(self) -> None:
        for descriptor in reversed(self._came):
            if descriptor in self._sources:
                break
            self._sources[descriptor] = _source(descriptor)

    def _take(self, kind: int, value: int, endpoint: str, now: float) -> None:
        if kind == zmq.EVENT_ACCEPTED:
            self._came.pop(value, None)  # So that the newest stand last.
            self._came[value] = (now, self._handshakes, endpoint)
            self._sources.pop(value, None)
        elif kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._handshakes += 1
            self._shook.append((now, endpoint))
        elif kind in _FAILED:
            self._failed += 1
        elif kind == zmq.EVENT_DISCONNECTED:
            came, handshakes, through = self._came.pop(value, (0.0, -1, ""))
            # libzmq reports this right before the end of the connection; for some ends (HTTP, ZMTP
            # 1) it does not.
            young = now - came < HANDSHAKE_S and handshakes == self._handshakes
            was_refused = bool(self._failed) or young
            self.refused += was_refused
            self._failed = 0
            source = self._sources.pop(value, "")
            if was_refused and self._penalties.failed(source, through, now):
                self._keep_out(now)
        elif kind == zmq.EVENT_ACCEPT_FAILED and now >= self._full_until_s:
            self._full_until_s = now + FULL_AGAIN_S / 10
            for listener in self._listeners.values():
                _shut(listener, now + FULL_AGAIN_S)
                self._turn_away(listener)

    def _keep_out(self, now: float) -> None:
        """Let the kernel drop packets from addresses that have failed too often.

        A closed listener gets this filter when it opens.
        """
        for listener in self._listeners.values():
            if listener.shut_until_s is None:
                _open(listener, self._penalties.kept_out(now))

    def _turn_away(self, listener: _Listener) -> None:
        """Close the connections in the kernel's queue, with the one descriptor that is reserved for
        this.
        """
        for _ in range(BACKLOG):
            if self._spare is not None:
                os.close(self._spare)
                self._spare = None
            try:
                listener.socket.accept()[0].close()
                self.refused += 1
            except OSError:
                break
        self._keep_spare()

    def _keep_spare(self) -> None:
        if self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _do_due_work(self, now: float) -> None:
        self._keep_spare()
        while self._shook and now - self._shook[0][0] > HANDSHAKE_S:
            self._shook.popleft()
        kept_out = self._penalties.kept_out(now)
        if self._penalties.over(now) or len(kept_out) != self._kept_out:
            self._kept_out = len(kept_out)
            self._keep_out(now)
        for endpoint, listener in self._listeners.items():
            shut_s = self._penalties.shut_s(endpoint, now)
            if shut_s and listener.shut_until_s is None:
                _shut(listener, now + shut_s)
            strangers = self.strangers(endpoint, now)
            if listener.shut_until_s is None and strangers >= listener.strangers_max:
                _shut(listener, now)
            elif (
                listener.shut_until_s is not None
                and strangers <= listener.strangers_max // 2
                and now >= listener.shut_until_s
            ):
                listener.shut_until_s = None
                _open(listener, kept_out)

    def strangers(self, endpoint: str, now: float) -> int:
        """Recent connections of this listener that are still here and have not shaken hands."""
        found = 0
        for came, _, through in reversed(self._came.values()):
            if now - came > HANDSHAKE_S:
                break
            found += through == endpoint
        return found - sum(through == endpoint for _, through in self._shook)

    def close(self) -> None:
        """Stop watching; before the ROUTER and its context are closed."""
        self._router.disable_monitor()
        self.monitor.close(0)
        for listener in self._listeners.values():
            listener.socket.close()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None


def _shut(listener: _Listener, until_s: float) -> None:
    listener.shut_until_s = until_s
    # If the filter is not allowed, all connections are accepted up to the number of descriptors.
    _attach(listener, _DROP_ALL)


def _open(listener: _Listener, kept_out: list[Address]) -> None:
    """Accept all connections except from these addresses."""
    if kept_out:
        _attach(listener, packet_filter(kept_out))
        return
    with contextlib.suppress(OSError):
        listener.socket.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)


def _attach(listener: _Listener, program: bytes) -> None:
    value, held = attached(program)
    with contextlib.suppress(OSError):
        listener.socket.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, value)
    del held


def _source(descriptor: int) -> str:
    """The address of a new connection; empty if it has already been closed."""
    try:
        copy = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return ""
    with copy:
        try:
            return str(copy.getpeername()[0])
        except (OSError, IndexError):
            return ""
