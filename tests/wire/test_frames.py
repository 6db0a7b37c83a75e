"""Envelopes as bytes: whole ones come back, all others are refused with the reason."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtop import redaction
from ddtop.wire import frames
from ddtop.wire.records import Command, Hello, RankState, Reply
from tests import planted
from tests.wire.strategies import INTEGERS, RECORDS, TEXTS, filled, simplest, struct_of

SMALL = st.integers(-(2**31), 2**31)
RECORD_AT = frames.Envelope.__struct_fields__.index("record")


def sealed(record=None, **more):
    given = {"sender": "abc", "unix_ns": 5, "mono_ns": 4} | more
    return frames.seal(record or Command("join", history_s=30.0), **given)


def taken_apart(data):
    return msgspec.msgpack.decode(data)


def opened(data):
    """The record of these bytes; any error in them is a WireError."""
    try:
        return frames.open_record(frames.open_envelope(data))
    except frames.WireError:
        return None


@settings(max_examples=300)
@given(
    st.one_of([struct_of(cls) for cls in RECORDS]),
    TEXTS,
    INTEGERS,
    INTEGERS,
    SMALL,
    st.none() | SMALL,
    st.none() | TEXTS,
)
def test_every_record_in_its_envelope_comes_back_as_it_went(
    record, sender, unix_ns, mono_ns, attempt, rank, key
):
    data = frames.seal(
        record,
        sender=sender,
        unix_ns=unix_ns,
        mono_ns=mono_ns,
        attempt=attempt,
        rank=rank,
        pid=rank,
        stuck_key=key,
    )
    envelope = frames.open_envelope(data)

    assert frames.open_record(envelope) == record
    assert envelope.kind == type(record).__name__
    assert (envelope.sender, envelope.unix_ns, envelope.mono_ns) == (sender, unix_ns, mono_ns)
    assert envelope.attempt == attempt
    assert envelope.rank == rank
    assert envelope.pid == rank
    assert envelope.stuck_key == key


def test_a_relay_reads_the_envelope_without_knowing_the_record():
    """A relay of 0.1 forwards the records of an agent of 0.2. Only the viewer has to understand
    them.
    """
    words = taken_apart(sealed())
    words[2], words[RECORD_AT] = "Weather", msgspec.Raw(msgspec.msgpack.encode(["Weather", "rain"]))
    envelope = frames.open_envelope(msgspec.msgpack.encode(words))

    assert envelope.kind == "Weather"
    with pytest.raises(frames.WireError, match="Weather cannot be read"):
        frames.open_record(envelope)


def test_a_longer_envelope_of_a_newer_minor_version_is_read():
    words = taken_apart(sealed(Reply("live")))
    words[1] += 7
    words[RECORD_AT] = msgspec.Raw(msgspec.msgpack.encode(words[RECORD_AT]))

    assert opened(msgspec.msgpack.encode([*words, "tail", 3])) == Reply("live")


@pytest.mark.parametrize("major", [0, 1, 99, 1000])
def test_another_major_version_is_refused_and_both_versions_are_named(major):
    """The login node has ddtop 3, the job's environment ddtop 1.

    The answer must say so, not "garbled".
    """
    words = taken_apart(sealed())
    words[0] = major

    with pytest.raises(
        frames.SchemaError, match=rf"speaks schema {major}, this ddtop speaks {frames.SCHEMA_MAJOR}"
    ):
        frames.open_envelope(msgspec.msgpack.encode(words))


def test_another_major_version_with_another_envelope_is_still_told_by_its_first_number():
    with pytest.raises(frames.SchemaError, match="speaks schema 1"):
        frames.open_envelope(msgspec.msgpack.encode([1, {"kind": "Hello"}, b"..."]))


def test_an_envelope_that_announces_another_record_is_refused():
    words = taken_apart(sealed(Reply("live")))
    words[2], words[RECORD_AT] = "Command", msgspec.Raw(msgspec.msgpack.encode(words[RECORD_AT]))

    with pytest.raises(frames.WireError, match="says Command, the record is a Reply"):
        frames.open_record(frames.open_envelope(msgspec.msgpack.encode(words)))


def test_a_frame_over_the_limit_is_refused_unread():
    with pytest.raises(frames.WireError, match="at most"):
        frames.open_envelope(b"\x9b" + b"\x00" * frames.FRAME_BYTES_MAX)


@pytest.mark.parametrize("cls", RECORDS)
def test_a_frame_cut_anywhere_is_refused(cls):
    """Half a frame at the end of a journal whose relay was killed with the step."""
    data = sealed(simplest(cls))

    assert [opened(data[:size]) for size in range(len(data))] == [None] * len(data)


@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_foreign_bytes_are_refused_with_a_wire_error_and_nothing_else(data):
    """A port scanner, or a foreign HTTP client, on the viewers' port."""
    opened(data)


@pytest.mark.parametrize(
    "record",
    [
        ["RankState", 7],
        ["RankState", "running", None, "three"],
        ["Hello", "job"],
        {"name": "join"},
        None,
        "RankState",
        [],
    ],
)
def test_a_record_of_wrong_types_is_refused(record):
    words = taken_apart(sealed())
    words[2], words[RECORD_AT] = "RankState", msgspec.Raw(msgspec.msgpack.encode(record))

    with pytest.raises(frames.WireError):
        frames.open_record(frames.open_envelope(msgspec.msgpack.encode(words)))


def test_a_rank_and_a_candidate_differ_in_the_envelope():
    hello = Hello("j", "r", 0, None, None, None, "h", 9, 1)

    assert frames.open_envelope(sealed(hello)).rank is None
    assert frames.open_envelope(sealed(RankState("running"), rank=0)).rank == 0


@pytest.mark.parametrize("cls", [cls for cls in RECORDS if cls not in (Command, Reply)])
def test_no_text_of_a_record_leaves_with_a_secret(cls):
    """Names of files and functions, folders of saves, names of threads: whatever is sent, recorded
    and shown.
    """
    token, core = planted.KINDS["hugging face"](random.Random(1))
    record = filled(cls, f"/data/{token}/run.py")

    data = sealed(record, stuck_key=f"1|{token}|0")

    assert core.encode() not in data
    assert opened(data) == filled(cls, "/data/(redacted)/run.py")


@pytest.mark.parametrize("cls", [Command, Reply])
def test_the_words_of_a_request_stay(cls):
    """A relay knows a run by its name, however random that is."""
    record = filled(cls, planted.KINDS["bare and long"](random.Random(1))[0])

    assert opened(sealed(record)) == record


@pytest.mark.parametrize("cls", RECORDS)
def test_a_record_without_a_secret_is_sealed_as_it_is(cls):
    record = filled(cls, "/data/run.py")

    assert taken_apart(sealed(record))[RECORD_AT] == taken_apart(frames.encode(record))


def test_a_person_who_switches_redaction_off_gets_the_whole_text(monkeypatch):
    monkeypatch.setattr(redaction, "is_on", lambda: False)
    redaction.known.cache_clear()
    token = planted.KINDS["hugging face"](random.Random(2))[0]

    try:
        assert token.encode() in sealed(filled(Hello, token))
    finally:
        redaction.known.cache_clear()
