"""Encodes records: one envelope per record, MessagePack, schema version first.

A relay reads only the envelope to store, order and forward; the record inside remains bytes.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, TypeVar, cast

import msgspec

from ddtop import redaction
from ddtop.wire.records import AnyRecord, Command, Reply

# -- Text that cannot be written as UTF-8: lone surrogates, as in file names that are not UTF-8
#
# It is written as Python writes it (`\udcff`), so that a user sees what is there. Nothing else
# changes.


_T = TypeVar("_T")


def escape(value: _T) -> _T:
    """The same record, tuple, list, dict or text with every lone surrogate in it escaped."""
    found: Any = value
    if isinstance(found, str):
        found = found.encode("utf-8", "backslashreplace").decode("utf-8")
    elif isinstance(found, msgspec.Struct):
        fields = {name: escape(getattr(found, name)) for name in found.__struct_fields__}
        found = msgspec.structs.replace(found, **fields)
    elif isinstance(found, (tuple, list)):
        found = type(found)(escape(item) for item in found)
    elif isinstance(found, dict):
        found = {escape(name): escape(one) for name, one in found.items()}
    return found  # type: ignore[no-any-return]


# -- Envelopes and frames


SCHEMA_MAJOR = 2
SCHEMA_MINOR = 0
FRAME_BYTES_MAX = 1 << 20
"""A larger frame is refused before it is read. The largest real one (a Hello with a long
environment) is about 20 KB."""


class WireError(ValueError):
    """These bytes are not a frame of ours; the text says why."""


class SchemaError(WireError):
    """A frame of another major version; the text names both versions."""


class Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a record comes from and when it was made.

    `sender` is the relay that it goes through (`registry.relay_identity`), `rank` and `pid` are
    None for the relay's own records, `kind` repeats the record's name, so that it is known without
    decoding the record. `stuck_key` names what an agent sees without progress, `wait_ratio` is how
    much of the last 20 s a collective of its rank was pending.
    """

    major: int
    minor: int
    kind: str
    sender: str
    attempt: int
    rank: int | None
    pid: int | None
    unix_ns: int
    mono_ns: int
    stuck_key: str | None
    record: msgspec.Raw
    wait_ratio: float | None = None


def host_of(sender: str) -> str:
    """The identity of the sender's host. Each launcher on a host has its own relay."""
    return sender.partition(".")[0]


_encoder = msgspec.msgpack.Encoder()
_envelope_decoder = msgspec.msgpack.Decoder(Envelope)
_record_decoder = msgspec.msgpack.Decoder(AnyRecord)


def encode(record: msgspec.Struct | list[Any]) -> bytes:
    """The bytes of a record; text that is not UTF-8 is escaped."""
    try:
        return _encoder.encode(record)
    except UnicodeEncodeError:
        return _encoder.encode(escape(record))


def seal(
    record: AnyRecord,
    *,
    sender: str,
    unix_ns: int,
    mono_ns: int,
    attempt: int = 0,
    rank: int | None = None,
    pid: int | None = None,
    stuck_key: str | None = None,
    wait_ratio: float | None = None,
) -> bytes:
    """The record in its envelope, as bytes. Text that is not UTF-8 is escaped, and no text about a
    job has a secret, whatever it is: an argument, the name of a function, a folder.
    """
    return encode(
        Envelope(
            SCHEMA_MAJOR,
            SCHEMA_MINOR,
            type(record).__name__,
            sender,
            attempt,
            rank,
            pid,
            unix_ns,
            mono_ns,
            stuck_key and redaction.redact(stuck_key),
            msgspec.Raw(_without_secrets(record)),
            wait_ratio,
        )
    )


_last: dict[type, tuple[Any, ...]] = {}
"""The fields of the last record of each kind in which no text had a secret."""
_NO_TEXT = frozenset({int, float, bool, type(None)})


def _without_secrets(record: AnyRecord) -> bytes:
    data = encode(record)
    if isinstance(record, (Command, Reply)):
        # By these words programs know runs and requests.
        return data
    # Most fields of a report are as in the last one: those are not looked at again. A dictionary
    # may be the same one with other texts.
    fields = msgspec.structs.astuple(record)
    new = [
        value
        for value, last in zip_longest(fields, _last.get(type(record), ()))
        if (value is not last and type(value) not in _NO_TEXT and value != last)
        or type(value) is dict
    ]
    values = msgspec.msgpack.decode(encode(new))
    if redaction.redact_in(values) != values:
        return _encoder.encode(redaction.redact_in(msgspec.msgpack.decode(data)))
    _last[type(record)] = fields
    return data


def open_envelope(data: bytes) -> Envelope:
    """The envelope of these bytes; the record in it is not decoded.

    Raises:
        SchemaError: another major version.
        WireError: not a frame.
    """
    if len(data) > FRAME_BYTES_MAX:
        raise WireError(f"frame of {len(data)} bytes, at most {FRAME_BYTES_MAX} are read")
    try:
        envelope = _envelope_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _frame_error(data, error) from None
    if envelope.major != SCHEMA_MAJOR:
        raise _other_version(envelope.major)
    return envelope


def open_record(envelope: Envelope) -> AnyRecord:
    """The record of an envelope.

    Raises:
        WireError: the bytes do not make the record that the envelope announces.
    """
    try:
        record = _record_decoder.decode(envelope.record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"{envelope.kind} cannot be read: {error}") from None
    if type(record).__name__ != envelope.kind:
        raise WireError(
            f"the envelope says {envelope.kind}, the record is a {type(record).__name__}"
        )
    return cast(AnyRecord, record)


def _frame_error(data: bytes, error: Exception) -> WireError:
    # Another major version may have another envelope: its first number is still the version.
    if data[:1] and (0x90 <= data[0] <= 0x9F or data[0] in (0xDC, 0xDD)):
        head = {0xDC: 3, 0xDD: 5}.get(data[0], 1)
        if len(data) > head and data[head] <= 0x7F and data[head] != SCHEMA_MAJOR:
            return _other_version(data[head])
    return WireError(f"not a ddtop frame: {error}")


def _other_version(major: int) -> SchemaError:
    return SchemaError(
        f"the other side speaks schema {major}, this ddtop speaks {SCHEMA_MAJOR}: "
        "install the same version on both"
    )
