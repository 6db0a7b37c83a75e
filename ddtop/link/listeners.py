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
import ctypes
import ipaddress
import os
import resource
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import zmq

# -- Blocks peers that fail the handshake too often for a while, by a filter in the kernel
#
# Each failed handshake costs a key agreement and some events: 6,581 a second took 1.25 cores. A
# packet that the kernel drops costs nothing here. On loopback all peers have one address, including
# the honest ones, and the address of a peer that connects and leaves between two looks is not
# known. In these cases the listener is closed for half a second at a time. An honest peer's kernel
# tries again a second later. Times are monotonic s.


FAILED_MAX, WITHIN_S = 20, 10.0
"""A viewer with a wrong key tries every two seconds."""
PENALTY_S, PENALTY_MOST_S = 10.0, 320.0
"""Doubled each time."""
LISTENER_PER_S, LISTENER_CLOSED_S = 200, 0.5
KEPT = 32
"""The maximum number of blocked addresses; a jump in the filter reaches 255 instructions."""
SOURCES_MAX = 4096
_NETWORK_HEADER = -0x100000 & 0xFFFFFFFF
_LOAD_BYTE, _LOAD_WORD, _SHIFT, _EQUAL, _RETURN = 0x30, 0x20, 0x74, 0x15, 0x06

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Penalties:
    """Failed handshakes by source. Used by one thread."""

    def __init__(self) -> None:
        self._failed: dict[Address, deque[float]] = {}
        self._out: dict[Address, tuple[float, float]] = {}
        self._at_listener: dict[str, deque[float]] = {}

    def failed(self, source: str, listener: str, now: float) -> bool:
        """A handshake from this address (empty: not known) has failed at this listener.

        Returns whether the set of blocked addresses has changed.
        """
        address = _address(source)
        if address is None or address.is_loopback:
            self._at_listener.setdefault(listener, deque(maxlen=LISTENER_PER_S)).append(now)
            return False
        if address not in self._failed and len(self._failed) >= SOURCES_MAX:
            del self._failed[next(iter(self._failed))]
        times = self._failed.setdefault(address, deque(maxlen=FAILED_MAX))
        times.append(now)
        if len(times) < FAILED_MAX or now - times[0] > WITHIN_S:
            return False
        times.clear()
        _, before_s = self._out.pop(address, (0.0, PENALTY_S / 2))
        seconds = min(before_s * 2, PENALTY_MOST_S)
        while len(self._out) >= KEPT:
            del self._out[next(iter(self._out))]
        self._out[address] = (now + seconds, seconds)
        return True

    def shut_s(self, listener: str, now: float) -> float:
        """How long to close this listener now, in s; 0 if few handshakes fail."""
        times = self._at_listener.get(listener)
        if times is None or len(times) < LISTENER_PER_S or now - times[0] > 1.0:
            return 0.0
        del self._at_listener[listener]
        return LISTENER_CLOSED_S

    def over(self, now: float) -> bool:
        """Forget addresses whose penalty is over. Returns whether there was one.

        An address is remembered for as long again as its penalty took, so that a new failure in
        that time costs it more.
        """
        gone = [
            address for address, (until, seconds) in self._out.items() if now >= until + seconds
        ]
        for address in gone:
            del self._out[address]
        return bool(gone)

    def kept_out(self, now: float) -> list[Address]:
        """The blocked addresses."""
        return [address for address, (until, _) in self._out.items() if now < until]


def packet_filter(addresses: Iterable[Address]) -> bytes:
    """A classic packet filter that drops what comes from these addresses.

    For IPv6 it drops the whole /64 network of each address.
    """
    given = list(addresses)
    words4 = [int(i_pv4_address) for i_pv4_address in given if i_pv4_address.version == 4]
    words6 = [
        (int(i_pv6_address) >> 96, int(i_pv6_address) >> 64 & 0xFFFFFFFF)
        for i_pv6_address in given
        if i_pv6_address.version == 6
    ]
    size4 = 1 + len(words4) + 1
    drop = 3 + size4 + 4 * len(words6) + 1
    program = [(_LOAD_BYTE, 0, 0, _NETWORK_HEADER), (_SHIFT, 0, 0, 4), (_EQUAL, 0, size4, 4)]
    program.append((_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12))
    for word in words4:
        program.append((_EQUAL, drop - len(program) - 1, 0, word))
    program.append((_RETURN, 0, 0, 0xFFFFFFFF))
    for first, second in words6:
        program.append((_LOAD_WORD, 0, 0, _NETWORK_HEADER + 8))
        program.append((_EQUAL, 0, 2, first))
        program.append((_LOAD_WORD, 0, 0, _NETWORK_HEADER + 12))
        program.append((_EQUAL, drop - len(program) - 1, 0, second))
    program.append((_RETURN, 0, 0, 0xFFFFFFFF))
    program.append((_RETURN, 0, 0, 0))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def filter_argument(program: bytes) -> tuple[bytes, ctypes.Array[ctypes.c_char]]:
    """The arguments for SO_ATTACH_FILTER; the second must live until the end of the call."""
    held = ctypes.create_string_buffer(program, len(program))
    return struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held)), held


def _address(source: str) -> Address | None:
    try:
        found = ipaddress.ip_address(source.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


# -- The listeners of a ROUTER


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
                _close_to_new(listener, now + FULL_AGAIN_S)
                self._turn_away(listener)

    def _keep_out(self, now: float) -> None:
        """Let the kernel drop packets from addresses that have failed too often.

        A closed listener gets this filter when it opens.
        """
        for listener in self._listeners.values():
            if listener.shut_until_s is None:
                _accept_all_but(listener, self._penalties.kept_out(now))

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
                _close_to_new(listener, now + shut_s)
            strangers = self.strangers(endpoint, now)
            if listener.shut_until_s is None and strangers >= listener.strangers_max:
                _close_to_new(listener, now)
            elif (
                listener.shut_until_s is not None
                and strangers <= listener.strangers_max // 2
                and now >= listener.shut_until_s
            ):
                listener.shut_until_s = None
                _accept_all_but(listener, kept_out)

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


def _close_to_new(listener: _Listener, until_s: float) -> None:
    listener.shut_until_s = until_s
    # If the filter is not allowed, all connections are accepted up to the number of descriptors.
    _attach(listener, _DROP_ALL)


def _accept_all_but(listener: _Listener, kept_out: list[Address]) -> None:
    """Accept all connections except from these addresses."""
    if kept_out:
        _attach(listener, packet_filter(kept_out))
        return
    with contextlib.suppress(OSError):
        listener.socket.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)


def _attach(listener: _Listener, program: bytes) -> None:
    value, held = filter_argument(program)
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
