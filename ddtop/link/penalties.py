"""Blocks peers that fail the handshake too often for a while, by a filter in the kernel.

Each failed handshake costs a key agreement and some events: 6,581 a second took 1.25 cores. A
packet that the kernel drops costs nothing here. On loopback all peers have one address, including
the honest ones, and the address of a peer that connects and leaves between two looks is not known.
In these cases the listener is closed for half a second at a time. An honest peer's kernel tries
again a second later. Times are monotonic s.
"""

from __future__ import annotations

import ctypes
import ipaddress
import struct
from collections import deque
from collections.abc import Iterable

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
    words4 = [int(one) for one in given if one.version == 4]
    words6 = [(int(one) >> 96, int(one) >> 64 & 0xFFFFFFFF) for one in given if one.version == 6]
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
    return b"".join(struct.pack("HBBI", *one) for one in program)


def attached(program: bytes) -> tuple[bytes, ctypes.Array[ctypes.c_char]]:
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
