"""Valid bytes with some of them changed. Every reader of foreign bytes reports the error, or
accepts them, and never crashes.

Every listener where bytes come in says what is wrong, or takes them, and never falls.
"""

import contextlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtop import journal
from ddtop.registry import SCHEMA, entry_of
from ddtop.wire import bridge, frames
from ddtop.wire import page as layout
from ddtop.wire.mpi import read_mpi
from ddtop.wire.records import LastException
from tests.entries import entry
from tests.wire.strategies import RECORDS, simplest

WHOLE = [
    frames.seal(
        simplest(cls),
        sender="h",
        unix_ns=1 << 60,
        mono_ns=1 << 40,
        rank=3,
        pid=4730,
        stuck_key="g|1",
        wait_ratio=0.5,
    )
    for cls in RECORDS
]
ENTRY = msgspec.json.encode(entry())
CHANGES = st.lists(
    st.tuples(
        st.integers(0, 1 << 16), st.integers(0, 255), st.sampled_from(["set", "drop", "add"])
    ),
    max_size=6,
)


def bent(data, changes):
    """The bytes with these changes."""
    changed = bytearray(data)
    for at, value, how in changes:
        if how == "add" or not changed:
            changed.insert(at % (len(changed) + 1), value)
        elif how == "drop":
            del changed[at % len(changed)]
        else:
            changed[at % len(changed)] = value
    return bytes(changed)


@given(st.sampled_from(WHOLE), CHANGES)
def test_a_frame_is_read_or_refused(data, changes):
    try:
        envelope = frames.open_envelope(bent(data, changes))
        record = frames.open_record(envelope)
    except frames.WireError:
        return
    assert type(record).__name__ == envelope.kind


@settings(max_examples=200)
@given(st.sampled_from(WHOLE), st.binary(max_size=40))
def test_a_record_of_any_bytes_in_a_good_envelope_is_read_or_refused(data, record):
    """A relay forwards what it has not looked at: the viewer looks."""
    words = msgspec.msgpack.decode(data)
    words[10] = msgspec.Raw(record or b"\xc0")
    with contextlib.suppress(frames.WireError):
        assert frames.open_record(frames.open_envelope(msgspec.msgpack.encode(words))) is not None


@pytest.mark.parametrize(
    "head",
    [b"\x91", b"\x81\xa0", b"\xdd\x00\x00\x00\x01", b"\x92\x01"],
    ids=["array", "map", "array32", "pair"],
)
def test_what_is_nested_without_end_is_refused(head):
    words = msgspec.msgpack.decode(WHOLE[0])
    for deep in (1000, 50_000):
        words[10] = msgspec.Raw(head * deep + b"\x01")
        for data in (head * deep, msgspec.msgpack.encode(words)):
            with pytest.raises(frames.WireError):
                frames.open_record(frames.open_envelope(data))


@given(CHANGES)
def test_a_job_file_is_read_or_refused(changes):
    try:
        entry = entry_of(bent(ENTRY, changes))
    except (ValueError, RecursionError):
        return
    assert entry.schema == SCHEMA
    assert "/" not in entry.job
    assert 0 <= entry.port <= 65535


@given(CHANGES)
def test_a_journal_gives_whole_frames_only(changes):
    packed = b"".join(journal._pack(frame) for frame in WHOLE[:4])
    reading = journal.parse(bent(packed, changes))

    assert all(0 < len(frame) <= frames.FRAME_BYTES_MAX for frame in reading.frames)
    # A checksum of 32 bits: what comes out is what went in.
    assert all(frame in WHOLE[:4] for frame in reading.frames)


@given(st.lists(CHANGES, min_size=1, max_size=3), st.integers(1, 50))
def test_a_bridge_is_understood_or_refused_however_its_bytes_are_cut(all_changes, step):
    messages = (bridge.part(bridge.NEWER, 5, b"12345"), *map(bridge.BridgeFrame, WHOLE))
    said = bridge.greet("1", "h") + b"".join(map(bridge.pack, messages))
    for changes in all_changes:
        said = bent(said, changes)
    incoming = bridge.Incoming(greeted=False)
    with contextlib.suppress(bridge.BridgeError):
        for at in range(0, len(said), step):
            for message in incoming.feed(said[at : at + step]):
                if isinstance(message, bridge.Part):
                    assert len(message.data()) <= bridge.PART_BYTES
    assert len(incoming._held) <= bridge.MESSAGE_BYTES_MAX + bridge.NOISE_BYTES_MAX


WORDS = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 70)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(2, layout.PAGE_BYTES // 8 - 1), WORDS), max_size=60),
    st.binary(max_size=80),
)
def test_a_state_page_with_any_words_is_read_or_refused(words, exception):
    """Slots of MPI and of calls among them.

    The writer may have died in the middle, or written with another version.
    """
    page = bytearray(layout.PAGE_BYTES)
    view = memoryview(page).cast("q")
    view[layout.MAGIC_AT], view[layout.VERSION_AT] = layout.MAGIC, layout.VERSION
    view[layout.EXCEPTION_SEQUENCE_AT], view[layout.EXCEPTION_BYTES_AT] = 2, len(exception)
    page[layout.EXCEPTION_AT_BYTES : layout.EXCEPTION_AT_BYTES + len(exception)] = exception
    for at, value in words:
        view[at] = value
    found = layout.read_page(bytes(page))
    if found.mpi:
        read_mpi(found.mpi, 1 << 60, 1 << 50)

    assert found.exception is None or isinstance(found.exception, LastException)
