"""Options of ZeroMQ's sockets, and the keys of a side that connects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import zmq

from ddtop.link.keys import KeyPair

if TYPE_CHECKING:
    import zmq.asyncio

Options = Mapping[int, int | bytes]


def set_options(socket: zmq.Socket[bytes] | zmq.asyncio.Socket, options: Options) -> None:
    """Set these before the socket is bound or connected."""
    for option, value in options.items():
        socket.setsockopt(option, value)


def connecting(server: KeyPair, own: KeyPair) -> Options:
    """The keys of a socket that connects to this server."""
    return {
        zmq.CURVE_SERVERKEY: server.public,
        zmq.CURVE_PUBLICKEY: own.public,
        zmq.CURVE_SECRETKEY: own.secret,
    }
