"""Packets on the unix socket between a rank and its relay: greeting, whole frames, pieces.

The socket is SOCK_SEQPACKET: the kernel preserves packets and their order, and refuses a packet
that is larger than the send buffer (208 KiB on most hosts). So a frame above PIECE_BYTES is sent in
pieces. The first packet of each side is a greeting with the version of this protocol. Every later
version must still be able to read it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ddtop.wire.frames import FRAME_BYTES_MAX

PROTOCOL = 1
"""Raise it when the layout of a packet changes. The frames inside have their own version."""
PIECE_BYTES = 1 << 16
REJOIN_S = 5.0
"""A frame whose pieces take longer is dropped: its sender was stopped, or is hostile."""
_MAGIC = b"ddtop-link"
_GREETING = struct.Struct("<BH")
_WHOLE, _PIECE = b"F", b"P"
_HEAD = struct.Struct("<IHH")
VERSION_CHARACTERS = 40
PACKET_BYTES_MAX = PIECE_BYTES + len(_PIECE) + _HEAD.size
PIECE_BYTES_MIN = 1 << 12
"""The size on a host that allows only small packets."""
PIECES_MAX = FRAME_BYTES_MAX // PIECE_BYTES_MIN
NUMBERS = 1 << 32


class PacketError(ValueError):
    """These bytes are not a packet of this protocol; the text says why."""


def greeting(version: str) -> bytes:
    """The first packet of a side that runs this version of ddtop."""
    return (
        _MAGIC
        + _GREETING.pack(0, PROTOCOL)
        + version.encode("ascii", "replace")[:VERSION_CHARACTERS]
    )


def is_greeting(packet: bytes) -> bool:
    """Whether this packet is a greeting, of any version."""
    return packet.startswith(_MAGIC)


def other_version(packet: bytes) -> str | None:
    """The version of the sender of this greeting, if it uses another protocol; None if it uses
    ours.

    Raises:
        PacketError: it is too short for a greeting.
    """
    if len(packet) < len(_MAGIC) + _GREETING.size:
        raise PacketError("a greeting without a version")
    _, protocol = _GREETING.unpack_from(packet, len(_MAGIC))
    if protocol == PROTOCOL:
        return None
    version = packet[len(_MAGIC) + _GREETING.size :][:VERSION_CHARACTERS].decode("ascii", "replace")
    shown = "".join(character if character.isprintable() else "?" for character in version)
    return f"ddtop {shown or '?'} (link protocol {protocol})"


def packets_of(frame: bytes, number: int, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """The packets of a frame; `number` distinguishes its pieces from those of the previous frame.

    Raises:
        PacketError: the frame is larger than FRAME_BYTES_MAX.
    """
    if len(frame) <= piece_bytes:
        yield _WHOLE + frame
        return
    if len(frame) > FRAME_BYTES_MAX:
        raise PacketError(f"a frame of {len(frame)} bytes, at most {FRAME_BYTES_MAX} are sent")
    count = -(-len(frame) // piece_bytes)
    for index in range(count):
        piece = frame[index * piece_bytes : (index + 1) * piece_bytes]
        yield _PIECE + _HEAD.pack(number % NUMBERS, index, count) + piece


class Rejoiner:
    """Joins the packets of one sender to frames.

    It holds at most one incomplete frame. `broken`: number of dropped frames. Times are the
    caller's monotonic seconds.
    """

    def __init__(self) -> None:
        self.broken = 0
        self.held_bytes = 0
        self._pieces: list[bytes] = []
        self._number = self._count = 0
        self._began_s = 0.0

    def take(self, packet: bytes, now_s: float) -> bytes | None:
        """The frame that this packet is, or completes.

        Raises:
            PacketError: no packet of this protocol, or a piece that does not follow the one before.
        """
        kind = packet[:1]
        if kind == _WHOLE:
            self.drop()
            return packet[1:]
        if kind != _PIECE or len(packet) <= 1 + _HEAD.size:
            self.drop()
            raise PacketError("neither a frame nor a piece of one")
        number, index, count = _HEAD.unpack_from(packet, 1)
        self.expire(now_s)
        if index == 0:
            self.drop()
            if not 1 < count <= PIECES_MAX:
                raise PacketError(f"a frame of {count} pieces, at most {PIECES_MAX} are joined")
            self._number, self._count, self._began_s = number, count, now_s
        elif (number, count, index) != (self._number, self._count, len(self._pieces)):
            self.drop()
            raise PacketError("a piece that does not follow the one before")
        self._pieces.append(packet[1 + _HEAD.size :])
        self.held_bytes += len(packet)
        if len(self._pieces) < self._count:
            return None
        frame = b"".join(self._pieces)
        self._forget()
        return frame

    def expire(self, now_s: float) -> None:
        """Drop an incomplete frame that has waited too long."""
        if self._pieces and now_s - self._began_s > REJOIN_S:
            self.drop()

    def drop(self) -> None:
        """Drop an incomplete frame, and count it."""
        self.broken += bool(self._pieces)
        self._forget()

    def _forget(self) -> None:
        self._pieces, self.held_bytes, self._count = [], 0, 0
