"""The relay's sockets: a unix socket for ranks (`rank_listener`), a ROUTER on TCP for viewers and
relays.

The ROUTER has CURVE and ZAP. The relay's own loop answers ZAP, and the handler is bound before the
TCP socket: a CURVE server without one accepts any client key.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.utils import z85

from ddtop.link.keys import CONTROLLER, SERVER, VIEWER, derive
from ddtop.link.leaf_side import NOW, LeafLink, send_parts
from ddtop.link.listeners import Listeners
from ddtop.link.options import Options, set_options
from ddtop.link.rank_listener import Credentials, RankListener
from ddtop.wire.frames import FRAME_BYTES_MAX

# -- What waits for the viewers of a relay, in a queue of its own for each
#
# Problem: libzmq copies each frame for each peer, and keeps the copy until the peer has read it. 50
# viewers that joined and read nothing made a relay take 1.2 GB. What we do: libzmq gets at most 1
# MiB for a peer. The rest waits here as references to frames that the history has too, and all of
# it together is bounded. The kernel closes a connection whose peer reads nothing for `UNREAD_S`.


HELD_MESSAGES, PIECE_BYTES = 16, 64 << 10
"""libzmq holds so many messages for a peer, of at most so many bytes; a larger frame is alone."""
WAITING_BYTES_MAX, SHARE_BYTES = 64 << 20, 1 << 20
"""All queues together. Above it, a queue of less than a share takes frames all the same: viewers
that read nothing do not stop the frames of those that read."""
TURN_BYTES = 1 << 20
"""What is sent in one turn: 5 ms. Then the ranks are served."""
UNREAD_S = 10.0
AGAIN_S, AGAIN_MOST_S = 0.002, 0.1
TRIM_AFTER_BYTES = 8 << 20


@dataclass
class _Queue:
    """`moved_s`: when libzmq last took something of it."""

    moved_s: float
    frames: deque[bytes]
    size_bytes: int


class PeerQueues:
    """The queues of one ROUTER. Used by the thread of the ROUTER only."""

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        self._router = router
        self._queues: dict[bytes, _Queue] = {}
        self._turn_s = float("inf")
        self._moved_bytes = 0
        router.setsockopt(zmq.SNDHWM, HELD_MESSAGES)
        # It also counts the time in which the peer's window is closed (tcp(7), TCP_USER_TIMEOUT).
        router.setsockopt(zmq.TCP_MAXRT, int(UNREAD_S * 1000))

    @property
    def waiting_bytes(self) -> int:
        """What waits in all queues."""
        return sum(queue.size_bytes for queue in self._queues.values())

    def owes(self, peer: bytes) -> bool:
        """Whether something waits for this peer."""
        return peer in self._queues

    def put(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        """Send these frames, or queue what libzmq does not take yet.

        False: too much waits already, and they are dropped.

        Raises:
            zmq.ZMQError: the peer has gone.
        """
        queue = self._queues.get(peer)
        if queue is not None:
            if queue.size_bytes > SHARE_BYTES and self.waiting_bytes > WAITING_BYTES_MAX:
                return False
            queue.frames.extend(frames)
            queue.size_bytes += sum(map(len, frames))
        elif len(frames) > 1 or not self._push(peer, frames):
            now = time.monotonic()
            queue = _Queue(now, deque(frames), sum(map(len, frames)))
            self._send(peer, queue, TURN_BYTES, now)
            if queue.frames:
                self._queues[peer] = queue
                self._turn_s = min(self._turn_s, now + AGAIN_S)
        return True

    def due_in_s(self) -> float:
        """Seconds until the next turn; infinity if nothing waits."""
        return max(0.0, self._turn_s - time.monotonic())

    def turn(self) -> None:
        """Send what the peers take now, each its share."""
        now = time.monotonic()
        if now < self._turn_s:
            return
        share = TURN_BYTES // max(len(self._queues), 1)
        pauses = []
        for peer, queue in list(self._queues.items()):
            try:
                self._send(peer, queue, share, now)
            except zmq.ZMQError:
                queue.frames.clear()
            still_s = now - queue.moved_s
            if not queue.frames or still_s > UNREAD_S:
                # All is sent, or it has left, so nothing counts as dropped.
                del self._queues[peer]
            else:
                pauses.append(min(max(still_s / 4, AGAIN_S), AGAIN_MOST_S))
        self._turn_s = now + min(pauses, default=float("inf"))

    def _send(self, peer: bytes, queue: _Queue, share: int, now: float) -> None:
        while queue.frames and share > 0:
            piece, size = _piece(queue.frames)
            if not self._push(peer, piece):
                return
            for _ in piece:
                queue.frames.popleft()
            queue.moved_s = now
            queue.size_bytes -= size
            self._moved_bytes += size
            share -= size

    def _push(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        try:
            send_parts(self._router, (peer, *frames))
        except zmq.Again:
            return False
        return True

    def give_back_memory(self) -> None:
        """Give back what libzmq has freed: glibc keeps it, in pieces between other objects."""
        if self._moved_bytes > TRIM_AFTER_BYTES and not self._queues:
            self._moved_bytes = 0
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)


def _piece(frames: Iterable[bytes]) -> tuple[list[bytes], int]:
    """The first frames that go into one message, and their size."""
    piece: list[bytes] = []
    size = 0
    for frame in frames:
        if piece and size + len(frame) > PIECE_BYTES:
            break
        piece.append(frame)
        size += len(frame)
    return piece, size


# -- The sockets of a relay for its viewers


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
            self._viewers = self._context.socket(zmq.ROUTER)
            self.queues = PeerQueues(self._viewers)
            server = derive(secret, SERVER)
            options: Options = {
                zmq.LINGER: 0,
                zmq.RCVHWM: INCOMING_FRAMES,
                zmq.MAXMSGSIZE: FRAME_BYTES_MAX,
                # Without it, frames for a full or closed peer are dropped silently.
                zmq.ROUTER_MANDATORY: 1,
                zmq.CURVE_SERVER: 1,
                zmq.CURVE_PUBLICKEY: server.public,
                zmq.CURVE_SECRETKEY: server.secret,
                zmq.ZAP_DOMAIN: b"ddtop",
                zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
                zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS,
            }
            set_options(self._viewers, options)
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
            parts = _other_parts(self._viewers) if head.more else [b""]
            if (role != SERVER and len(parts) != 1) or len(parts) > BATCH_FRAMES_MAX:
                parts = [b""]
            at_most -= len(parts)
            peer = head.bytes
            if kind == VIEW and role != SERVER and peer not in self._addresses:
                self._note_address(peer, head)
            for part in parts:
                yield peer, part, role

    def credentials(self, peer: bytes) -> Credentials | None:
        """The process that made this connection to the unix socket; None if it is closed."""
        return self._ranks.credentials(peer)

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


def _other_parts(socket: zmq.Socket[bytes]) -> list[bytes]:
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
