"""The messages between `ddtop attach --ssh` and the bridge on the other host, over a pair of pipes.

The bridge begins with one line of ASCII, so that text which a login prints before can be skipped.
Then both sides send messages, each after its length (4 bytes, big-endian). Reading is bounded:
whatever another program prints, this holds at most one message.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import TypeAlias, Union

import msgspec

from ddtop.wire.frames import FRAME_BYTES_MAX

PROTOCOL = 1
"""Increase it if the two sides could not understand each other any more; not for new fields of a
message."""
NOISE_BYTES_MAX = 1 << 16
"""Banners, messages of the day and what a profile prints: pages of text, not more."""
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX + 1024
PART_BYTES = 1 << 18
"""The part of a file in one message, before compression."""
_MARK = b"ddtop-bridge "
_GREETING = re.compile(rb"(?:^|\n)" + _MARK + rb"(\{[^\n]{0,1000}\})\r?\n")
_LENGTH = struct.Struct(">I")
_END_OF_LINE = b"\xa3end\x0a"


class BridgeError(ValueError):
    """The input does not come from a bridge; the text says what it is."""


class Greeting(msgspec.Struct, frozen=True):
    """The bridge's first line. `version` is that of its ddtop, `host` its own name for its host."""

    protocol: int
    version: str
    host: str


class AskJobs(msgspec.Struct, frozen=True, tag="jobs?"):
    """Which jobs are there?"""


class BridgeJob(msgspec.Struct, frozen=True):
    """One job: its job file as JSON.

    That host can look at the relay's process, so it says whether the relay can be asked
    (`reachable`) and whether nothing more will come (`over`).
    """

    entry: bytes
    reachable: bool
    over: bool


class Jobs(msgspec.Struct, frozen=True, tag="jobs"):
    """The jobs of that host's state folder, newest first.

    `now_unix_ns` on its clock, which wrote their times.
    """

    now_unix_ns: int
    jobs: tuple[BridgeJob, ...]


class Open(msgspec.Struct, frozen=True, tag="open"):
    """Join the relay of this run, in place of the one before."""

    job: str
    run: str
    controller: bool


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """After this, frames are sent in both directions."""


class Gone(msgspec.Struct, frozen=True, tag="gone"):
    """That run no longer has a relay, but there may be files."""


class AskFiles(msgspec.Struct, frozen=True, tag="files?"):
    """What has the relay of this run left behind? `last`: the last state is enough."""

    job: str
    run: str
    last: bool


class AskOutside(msgspec.Struct, frozen=True, tag="outside?"):
    """Look for this long at the job of that host that was started without ddtop. Its records come
    as frames, then `Done`."""

    seconds: float


class Part(msgspec.Struct, frozen=True, tag="part"):
    """A piece of a file, packed; its pieces come in order.

    `size_bytes` of the whole file when it was opened.
    """

    kind: str
    size_bytes: int
    packed: bytes

    def data(self) -> bytes:
        """The piece.

        Raises:
            BridgeError: it cannot be unpacked, or is larger than a piece may be.
        """
        try:
            opened = zlib.decompressobj()
            data = opened.decompress(self.packed, PART_BYTES)
        except zlib.error as error:
            raise BridgeError(f"a part of a file cannot be unpacked: {error}") from None
        if opened.unconsumed_tail or not opened.eof:
            raise BridgeError("a part of a file is damaged")
        return data


LAST, NEWER, OLDER = "last", "journal", "journal.1"
FILE_KINDS = (LAST, NEWER, OLDER)


class Done(msgspec.Struct, frozen=True, tag="done"):
    """All parts have been sent."""


class BridgeFrame(msgspec.Struct, frozen=True, tag="frame"):
    """To or from the relay."""

    data: bytes


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The request is refused; the text says why."""

    text: str


Message: TypeAlias = Union[
    AskJobs, Jobs, Open, Opened, Gone, AskFiles, AskOutside, Part, Done, BridgeFrame, Refused
]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)
_greeting_decoder = msgspec.json.Decoder(Greeting)


def greet(version: str, host: str) -> bytes:
    """The bridge's first line, with an end of line before it for what a login leaves open."""
    return b"\n" + _MARK + msgspec.json.encode(Greeting(PROTOCOL, version, host)) + b"\n"


def pack(message: Message) -> bytes:
    """A message behind its length.

    Its last field is the number 10, which is an end of line, because srun holds back data after the
    last end of line. A reader ignores unknown fields.
    """
    data = _encoder.encode(message)
    # A map of at most 15 fields has their number in its first byte.
    return b"".join(
        (_LENGTH.pack(len(data) + len(_END_OF_LINE)), bytes((data[0] + 1,)), data[1:], _END_OF_LINE)
    )


def part(kind: str, size_bytes: int, data: bytes) -> Part:
    """A piece of a file, at most PART_BYTES of it."""
    return Part(kind, size_bytes, zlib.compress(data, 1))


class Incoming:
    """Splits the incoming bytes into messages.

    `greeting` is None until the bridge's line has been read.
    """

    def __init__(self, *, greeted: bool) -> None:
        """`greeted`: do not wait for a greeting."""
        self.greeting: Greeting | None = None
        self._greeted = greeted
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now.

        Raises:
            BridgeError: no bridge speaks here, another protocol is spoken, or a message is
                damaged. Nothing more can be read.
        """
        self._held += data
        if not self._greeted and not self._find_greeting():
            return []
        found, at = [], 0
        while len(self._held) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._held, at)
            if not 0 < size <= MESSAGE_BYTES_MAX:
                raise BridgeError(f"a message of {size} bytes")
            if len(self._held) - at - _LENGTH.size < size:
                break
            at += _LENGTH.size + size
            found.append(_message(bytes(self._held[at - size : at])))
        del self._held[:at]
        return found

    def _find_greeting(self) -> bool:
        for match in _GREETING.finditer(bytes(self._held)):
            try:
                greeting = _greeting_decoder.decode(match[1])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if greeting.protocol != PROTOCOL:
                theirs = f"ddtop {greeting.version[:20]!r}, which speaks {greeting.protocol}"
                raise BridgeError(
                    f"the bridge of {theirs}, this one speaks {PROTOCOL}: "
                    "install the same version on both"
                )
            self.greeting, self._greeted = greeting, True
            del self._held[: match.end()]
            return True
        if len(self._held) > NOISE_BYTES_MAX:
            raise BridgeError(f"{NOISE_BYTES_MAX >> 10} KiB of other text")
        return False


def _message(data: bytes) -> Message:
    try:
        message: Message = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BridgeError(f"a message that cannot be read: {error}") from None
    return message
