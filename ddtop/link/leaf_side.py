"""The sockets of a leaf: DEALERs over TCP with CURVE to the addresses where the hub may be.

Only numeric addresses are used: libzmq would look up names on its one I/O thread, which also serves
the ranks. Nothing is queued for an address without a peer that has our key (ZMQ_IMMEDIATE), so a
hub that starts late gets no old questions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import zmq

from ddtop.link.keys import SERVER, derive
from ddtop.link.options import Options, connecting, set_options
from ddtop.wire.frames import FRAME_BYTES_MAX

QUEUE_MESSAGES = 16
"""Batches in the queue. In a longer queue, newer states could not replace older ones."""
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 2000, 6000
RECONNECT_MS, RECONNECT_MAX_MS = 200, 2000
CONNECT_MS = 3000
"""If packets are lost, TCP alone would try for two minutes with growing pauses."""
PLACES_MAX = 24
_OPTIONS: Options = {
    zmq.LINGER: 0,
    zmq.IMMEDIATE: 1,
    zmq.IPV6: 1,
    zmq.SNDHWM: QUEUE_MESSAGES,
    zmq.MAXMSGSIZE: FRAME_BYTES_MAX,
    zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
    zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS,
    zmq.RECONNECT_IVL: RECONNECT_MS,
    zmq.RECONNECT_IVL_MAX: RECONNECT_MAX_MS,
    zmq.CONNECT_TIMEOUT: CONNECT_MS,
}
NOW, NOW_AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
"""Plain numbers: pyzmq's own function for several parts combines flags for each part (1.6 us per
part instead of 0.4)."""


def send_parts(socket: zmq.Socket[bytes], parts: Sequence[bytes]) -> None:
    """Queue one message. Raises zmq.ZMQError if it is not accepted; then no part is queued."""
    send, last = socket.send, len(parts) - 1
    for at, part in enumerate(parts):
        send(part, NOW_AND_MORE if at < last else NOW)


def place(address: str, port: int) -> str:
    """The endpoint for ZeroMQ."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


class LeafLink:
    """The DEALERs of one relay, in the context and poller of its `RelayLink`.

    Used by the relay's thread only.

    `register(socket)` and `unregister(socket)` change what is polled.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        secret: bytes,
        register: Callable[[zmq.Socket[bytes]], None],
        unregister: Callable[[zmq.Socket[bytes]], None],
    ) -> None:
        self._context, self._keys = context, derive(secret, SERVER)
        self._register, self._unregister = register, unregister
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._places: dict[object, str] = {}

    @property
    def places(self) -> tuple[str, ...]:
        """The endpoints to which it is or tries to be connected: `tcp://ADDRESS:PORT`."""
        return tuple(self._sockets)

    def keep_only(self, places: Iterable[str]) -> None:
        """Connect to these addresses and to no others; an address that fails is left out."""
        wanted = list(dict.fromkeys(places))[:PLACES_MAX]
        for place in [place for place in self._sockets if place not in wanted]:
            self._close(place)
        for place in wanted:
            if place not in self._sockets:
                self._connect(place)

    def _connect(self, place: str) -> None:
        try:
            socket = self._context.socket(zmq.DEALER)
        except zmq.ZMQError:
            # Unknown peers may have used up the descriptors.
            return
        try:
            set_options(socket, {**_OPTIONS, **connecting(self._keys, self._keys)})
            socket.connect(place)
        except zmq.ZMQError:
            socket.close(0)
            return
        self._sockets[place], self._places[socket] = socket, place
        self._register(socket)

    def _close(self, place: str, linger_ms: int = 0) -> None:
        socket = self._sockets.pop(place)
        del self._places[socket]
        self._unregister(socket)
        socket.close(linger_ms)

    def send(self, place: str, parts: list[bytes]) -> bool:
        """Queue frames as one message.

        False if no peer with our key is connected there, or if it accepts none.
        """
        socket = self._sockets.get(place)
        if socket is None:
            return False
        try:
            send_parts(socket, parts)
        except zmq.ZMQError:
            return False
        return True

    def receive(self, socket: object, at_most: int = 100) -> Iterator[tuple[str, bytes]]:
        """(place, frame) of what has come in on a socket that `wait` has named."""
        place = self._places.get(socket)
        found = self._sockets.get(place) if place is not None else None
        if place is None or found is None:
            return
        for _ in range(at_most):
            if found.closed:
                return
            try:
                data = found.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield place, data

    def close(self, linger_ms: int = 0) -> None:
        """Close them; queued messages have this time to leave."""
        for place in list(self._sockets):
            self._close(place, linger_ms)
