"""The relay's sockets: a unix socket for ranks (`rank_listener`), a ROUTER on TCP for viewers and
relays.

The ROUTER has CURVE and ZAP. The relay's own loop answers ZAP, and the handler is bound before the
TCP socket: a CURVE server without one accepts any client key.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator
from pathlib import Path

import zmq
from zmq.utils import z85

from ddtop.link.keys import CONTROLLER, SERVER, VIEWER, derive
from ddtop.link.leaf_side import NOW, LeafLink
from ddtop.link.listeners import Listeners
from ddtop.link.peer_queues import PeerQueues
from ddtop.link.rank_listener import Credentials, RankListener
from ddtop.wire.frames import FRAME_BYTES_MAX

INCOMING_FRAMES = 1000
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 2000, 10_000
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"

STRANGERS_MAX, VIEWER_BYTES_MAX = 2048, 1 << 16
"""Peers in the handshake at once, and the largest command of a viewer: unknown peers can use 128
MiB of memory."""
RELAYS_MAX = 256
"""The same for the port of other relays, whose frames are larger: 256 MiB. A thousand relays that
connect in the same second have to wait for a moment."""
BATCH_FRAMES_MAX = 4096
"""The maximum number of parts of a message; a leaf sends 128."""
ADDRESSES_KEPT = 1024
"""The addresses of viewers that have sent nothing for long are forgotten."""
RANK, VIEW, HUB, ZAP, PROCESS, LISTENERS = "rank", "view", "hub", "zap", "process", "listeners"


class RelayLink:
    """All sockets of one relay. Made, used and closed by one thread.

    Raises (from the constructor):
        OSError: a socket cannot be bound.
    """

    def __init__(self, path: Path, secret: bytes, address: str) -> None:
        self._context = zmq.Context(io_threads=1)
        self._secret = secret
        self._roles = {derive(secret, role).public: role for role in (VIEWER, CONTROLLER, SERVER)}
        try:
            self._ranks = RankListener(path)
        except OSError as error:
            self._context.destroy(linger=0)
            raise OSError(error.errno, f"cannot bind: {error}") from None
        try:
            self._zap = self._context.socket(zmq.REP)
            self._zap.setsockopt(zmq.LINGER, 0)
            self._zap.bind(_ZAP_ENDPOINT)
            self._viewers = self._router()
            self.queues = PeerQueues(self._viewers)
            server = derive(secret, SERVER)
            self._viewers.setsockopt(zmq.CURVE_SERVER, 1)
            self._viewers.setsockopt(zmq.CURVE_PUBLICKEY, server.public)
            self._viewers.setsockopt(zmq.CURVE_SECRETKEY, server.secret)
            self._viewers.setsockopt(zmq.ZAP_DOMAIN, b"ddtop")
            self._viewers.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
            self._viewers.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
            self._listeners = Listeners(self._viewers)
            self.port = self._listeners.open(address, 0, STRANGERS_MAX, VIEWER_BYTES_MAX)
        except (OSError, zmq.ZMQError) as error:
            self._context.destroy(linger=0)
            self._ranks.close()
            raise OSError(error.errno, f"cannot bind: {error}") from None
        self._addresses: dict[bytes, str] = {}
        self._poller = zmq.Poller()
        self._kinds: dict[object, str] = {
            self._ranks.descriptor: RANK,
            self._viewers: VIEW,
            self._zap: ZAP,
            self._listeners.monitor: LISTENERS,
        }
        for socket in (self._ranks.descriptor, self._viewers, self._zap, self._listeners.monitor):
            self._poller.register(socket, zmq.POLLIN)

    def _router(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, INCOMING_FRAMES)
        socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        # Without it, frames for a full or closed peer are dropped silently.
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        return socket

    def bind_public(self, ports: Iterable[int]) -> tuple[int | None, str]:
        """Listen on all interfaces too, on the first of these ports that is free.

        Returns (that port, ""), or (None, the reason).
        """
        why = "no port to listen on"
        for port in ports:
            # With IPv6, one socket serves both; a host without IPv6 has only IPv4.
            for address in ("::", "0.0.0.0"):
                try:
                    return self._listeners.open(address, port, RELAYS_MAX, FRAME_BYTES_MAX), ""
                except OSError as error:
                    why = f"cannot listen on port {port}: {error.strerror or error}"
                    if error.errno == errno.EADDRINUSE:
                        break
        return None, why

    def unbind_public(self) -> None:
        """Listen for this host only, as before."""
        self._listeners.close_all_but(self.port)

    def leaf(self) -> LeafLink:
        """The ends towards a hub; `wait` reports what comes in there as HUB."""
        return LeafLink(self._context, self._secret, self._register_hub, self._unregister_hub)

    def _register_hub(self, socket: zmq.Socket[bytes]) -> None:
        self._kinds[socket] = HUB
        self._poller.register(socket, zmq.POLLIN)

    def _unregister_hub(self, socket: zmq.Socket[bytes]) -> None:
        del self._kinds[socket]
        self._poller.unregister(socket)

    def watch(self, descriptor: int) -> None:
        """Let `wait` report when this descriptor (a pidfd) becomes readable."""
        self._poller.register(descriptor, zmq.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        """Forget a descriptor."""
        self._poller.unregister(descriptor)

    def wait(self, timeout_s: float) -> Iterator[tuple[str, object]]:
        """Yield what is ready: (RANK|VIEW, None), (HUB, socket) or (PROCESS, descriptor).

        ZAP requests are answered in here.
        """
        timeout_s = max(0.0, min(timeout_s, self.queues.due_in_s()))
        for socket, _ in self._poller.poll(int(timeout_s * 1000)):
            kind = self._kinds.get(socket, PROCESS)
            if kind == ZAP:
                self._answer_zap()
            elif kind != LISTENERS:
                yield kind, socket if kind in (PROCESS, HUB) else None
        self._listeners.look()
        self.queues.turn()

    def receive(self, kind: str, at_most: int = 500) -> Iterator[tuple[bytes, bytes, str]]:
        """(peer, frame, role) of what has come in, bounded so that one flooding peer cannot hold
        the loop.

        The role follows from the peer's key (VIEWER, CONTROLLER, or SERVER: another relay of this
        user); ranks have none. Only another relay may send several frames in one message; such a
        message from any other peer becomes one empty frame.
        """
        if kind == RANK:
            yield from ((name, frame, "") for name, frame in self._ranks.receive(at_most))
            return
        while at_most > 0:
            try:
                # Only the first part has the role of the key; this saves an object for each other
                # part.
                head = self._viewers.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            role = _role(head)
            parts = _rest(self._viewers) if head.more else [b""]
            if (role != SERVER and len(parts) != 1) or len(parts) > BATCH_FRAMES_MAX:
                parts = [b""]
            at_most -= len(parts)
            peer = head.bytes
            if kind == VIEW and role != SERVER and peer not in self._addresses:
                self._note_address(peer, head)
            for part in parts:
                yield peer, part, role

    def who(self, peer: bytes) -> Credentials | None:
        """The process that made this connection to the unix socket; None if it is closed."""
        return self._ranks.who(peer)

    def _note_address(self, peer: bytes, head: zmq.Frame) -> None:
        while len(self._addresses) >= ADDRESSES_KEPT:
            del self._addresses[next(iter(self._addresses))]
        with contextlib.suppress(zmq.ZMQError):
            self._addresses[peer] = str(head.get("Peer-Address"))

    def address_of(self, peer: bytes) -> str:
        """The IP address that a viewer connected from, by the kernel.

        Empty where it is not known.
        """
        return self._addresses.get(peer, "")

    def send(self, kind: str, peer: bytes, *frames: bytes) -> bool:
        """Queue frames for a peer.

        False if its queue is full or it has gone.
        """
        if kind == RANK:
            return all(self._ranks.send(peer, frame) for frame in frames)
        try:
            return self.queues.put(peer, frames)
        except zmq.ZMQError:
            return False

    def broadcast(self, peers: Iterable[bytes], *frames: bytes) -> tuple[list[bytes], list[bytes]]:
        """Queue frames for viewers.

        Returns the peers whose queue is full, and the peers that have gone.
        """
        full: list[bytes] = []
        gone: list[bytes] = []
        for peer in peers:
            try:
                if not self.queues.put(peer, frames):
                    full.append(peer)
            except zmq.ZMQError:
                gone.append(peer)
        return full, gone

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
            role = None
            if mechanism == b"CURVE" and credentials and len(credentials[0]) == 32:
                role = self._roles.get(z85.encode(credentials[0]))
            if role is None:
                self._zap.send_multipart(
                    [version, identifier, b"400", b"not a key of this user", b"", b""]
                )
            else:
                self._zap.send_multipart([version, identifier, b"200", b"OK", role.encode(), b""])

    @property
    def refused(self) -> int:
        """How many connections were refused.

        The peer had another key, user or version, no key, or spoke another protocol.
        """
        return self._listeners.refused + self._ranks.refused

    @property
    def broken(self) -> int:
        """Invalid packets of ranks, and their incomplete frames."""
        return self._ranks.broken

    @property
    def complaint(self) -> str | None:
        """A sentence about a version problem."""
        return self._ranks.complaint

    def close(self) -> None:
        """Close everything; nothing lingers."""
        self._ranks.close()
        self._listeners.close()
        self._context.destroy(linger=0)


def _rest(socket: zmq.Socket[bytes]) -> list[bytes]:
    """The other parts of a message whose first one is taken."""
    parts, more = [], True
    while more:
        frame = socket.recv(NOW, copy=False)
        parts.append(frame.bytes)
        more = frame.more
    return parts


def _role(frame: zmq.Frame) -> str:
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""
