"""The relay's ends: a ROUTER on a unix socket for ranks, a ROUTER on TCP behind CURVE and ZAP for viewers.

ZAP is answered in the relay's own loop, and the handler is bound before the TCP socket is: a CURVE server without one
lets any client key in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import zmq

from ddtop.link.keys import CONTROLLER, SERVER, VIEWER, derive
from ddtop.wire.frames import FRAME_BYTES_MAX

VIEWER_QUEUE_FRAMES = 40_000
"""More than 16 MiB of history at the smallest honest frame (about 450 bytes): joining never drops; a viewer that
stops reading is bounded by it, and by the relay forgetting viewers that do not ping."""
RANK_QUEUE_FRAMES = 1000
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 2000, 10_000
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"

RANK, VIEW, ZAP, PROCESS = "rank", "view", "zap", "process"


class RelayLink:
    """All sockets of one relay. Made, used and closed by one thread.

    Raises (from the constructor):
        OSError: a socket cannot be bound.
    """

    def __init__(self, path: Path, secret: bytes, address: str) -> None:
        self._context = zmq.Context(io_threads=1)
        self._context.setsockopt(zmq.MAX_SOCKETS, 64)
        self._roles = {derive(secret, role).public: role for role in (VIEWER, CONTROLLER)}
        self.refused = 0
        try:
            self._ranks = self._router(RANK_QUEUE_FRAMES)
            self._ranks.bind(f"ipc://{path}")
            self._zap = self._context.socket(zmq.REP)
            self._zap.setsockopt(zmq.LINGER, 0)
            self._zap.bind(_ZAP_ENDPOINT)
            self._viewers = self._router(VIEWER_QUEUE_FRAMES)
            server = derive(secret, SERVER)
            self._viewers.setsockopt(zmq.CURVE_SERVER, 1)
            self._viewers.setsockopt(zmq.CURVE_PUBLICKEY, server.public)
            self._viewers.setsockopt(zmq.CURVE_SECRETKEY, server.secret)
            self._viewers.setsockopt(zmq.ZAP_DOMAIN, b"ddtop")
            self._viewers.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            self._viewers.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
            self.port = self._viewers.bind_to_random_port(f"tcp://{address}")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise OSError(error.errno, f"cannot bind: {error}") from None
        self._poller = zmq.Poller()
        self._kinds: dict[object, str] = {self._ranks: RANK, self._viewers: VIEW, self._zap: ZAP}
        for socket in (self._ranks, self._viewers, self._zap):
            self._poller.register(socket, zmq.POLLIN)

    def _router(self, queue: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, queue)
        socket.setsockopt(zmq.RCVHWM, RANK_QUEUE_FRAMES)
        socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        # Without it a full or vanished peer's frames are dropped without a word.
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        return socket

    def watch(self, descriptor: int) -> None:
        """Let `wait` tell when this descriptor (a pidfd) becomes readable."""
        self._poller.register(descriptor, zmq.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Forget a descriptor."""
        self._poller.unregister(descriptor)

    def wait(self, timeout_s: float) -> Iterator[tuple[str, object]]:
        """What is ready: (RANK|VIEW, None) or (PROCESS, descriptor); ZAP requests are answered here."""
        for socket, _ in self._poller.poll(max(0, int(timeout_s * 1000))):
            kind = self._kinds.get(socket, PROCESS)
            if kind == ZAP:
                self._answer_zap()
            else:
                yield kind, socket if kind == PROCESS else None

    def receive(self, kind: str, at_most: int = 500) -> Iterator[tuple[bytes, bytes, str]]:
        """(peer, frame, role) of what has come in, bounded so that one flooding peer cannot hold the loop.

        The role is what the peer's key stands for (VIEWER or CONTROLLER); ranks have none.
        """
        socket = self._ranks if kind == RANK else self._viewers
        for _ in range(at_most):
            try:
                parts = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            data = parts[1].bytes if len(parts) == 2 else b""
            yield parts[0].bytes, data, "" if kind == RANK else _role(parts[-1])

    def send(self, kind: str, peer: bytes, frame: bytes) -> bool:
        """Queue a frame for a peer; False if its queue is full or it has gone."""
        socket = self._ranks if kind == RANK else self._viewers
        try:
            socket.send_multipart((peer, frame), zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def broadcast(self, peers: Iterable[bytes], frame: bytes) -> list[bytes]:
        """Queue a frame for viewers; the peers that did not take it."""
        return [peer for peer in peers if not self.send(VIEW, peer, frame)]

    def _answer_zap(self) -> None:
        while True:
            try:
                request = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(request) < 6:
                self._zap.send_multipart([b"1.0", b"", b"400", b"malformed", b"", b""])
                continue
            version, identifier, _domain, _address, _identity, mechanism, *credentials = request
            from zmq.utils import z85

            role = None
            if mechanism == b"CURVE" and credentials and len(credentials[0]) == 32:
                role = self._roles.get(z85.encode(credentials[0]))
            if role is None:
                self.refused += 1
                self._zap.send_multipart([version, identifier, b"400", b"not a key of this user", b"", b""])
            else:
                self._zap.send_multipart([version, identifier, b"200", b"OK", role.encode(), b""])

    def close(self) -> None:
        """Close everything; nothing lingers."""
        self._context.destroy(linger=0)


def _role(frame: zmq.Frame) -> str:
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""
