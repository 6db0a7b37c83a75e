"""The state page as a reader sees it.

Another process may be writing, or may have died while it did.
"""

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtop.wire import page as layout
from ddtop.wire.page import PageError, read_page
from ddtop.wire.records import CallSite, LastCall, LastException, Place

ERROR = LastException("ValueError", "bad sample 7", 99, Place("load", "data.py", 40))


def written(sequence=0, exception=b"", **words):
    """A page as an agent leaves it."""
    data = bytearray(layout.PAGE_BYTES)
    head = {layout.MAGIC_AT: layout.MAGIC, layout.VERSION_AT: layout.VERSION}
    head |= {getattr(layout, name): value for name, value in words.items()}
    head |= {layout.EXCEPTION_SEQUENCE_AT: sequence, layout.EXCEPTION_BYTES_AT: len(exception)}
    for at, value in head.items():
        struct.pack_into("<q", data, at * 8, value)
    data[layout.EXCEPTION_AT_BYTES : layout.EXCEPTION_AT_BYTES + len(exception)] = exception
    return bytes(data)


def test_what_the_agent_wrote_is_read():
    data = written(
        HEARTBEAT_AT=5, ITERATION_AT=1203, ITERATION_SOURCE_AT=1, EXITING_AT=6,
        sequence=2, exception=msgspec.msgpack.encode(ERROR),
    )  # fmt: skip

    assert read_page(data) == layout.PageView(5, 1203, 6, ERROR)
    assert read_page(memoryview(data)) == read_page(data)


def test_a_page_without_an_exception_has_none():
    assert read_page(written()).exception is None


@pytest.mark.parametrize("sequence", [1, 3, 2**62 + 1])
def test_a_torn_exception_is_not_shown(sequence):
    """The OOM killer came while the excepthook wrote.

    Half a sentence of one error and half of another is no evidence.
    """
    data = written(sequence=sequence, exception=msgspec.msgpack.encode(ERROR))

    assert read_page(data).exception is None


@pytest.mark.parametrize("size", [-1, 0, layout.EXCEPTION_BYTES_MAX + 1, 2**62])
def test_an_impossible_length_of_an_exception_is_not_followed(size):
    data = bytearray(written(sequence=2, exception=msgspec.msgpack.encode(ERROR)))
    struct.pack_into("<q", data, layout.EXCEPTION_BYTES_AT * 8, size)

    assert read_page(bytes(data)).exception is None


def test_a_damaged_exception_is_not_shown():
    data = written(sequence=2, exception=msgspec.msgpack.encode(ERROR)[:-3])

    assert read_page(data).exception is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "0 bytes"),
        (written()[:-1], f"{layout.PAGE_BYTES - 1} bytes"),
        (bytes(layout.PAGE_BYTES), "not a state page"),
        (
            written(VERSION_AT=layout.VERSION + 1),
            f"version {layout.VERSION + 1}, this ddtop reads {layout.VERSION}",
        ),
    ],
)
def test_a_page_that_is_short_foreign_or_newer_is_refused_with_the_reason(data, why):
    with pytest.raises(PageError, match=why):
        read_page(data)


@settings(max_examples=100)
@given(st.binary(max_size=64), st.binary(max_size=300), st.integers(0, layout.PAGE_BYTES - 300))
def test_random_bytes_raise_nothing_but_a_page_error(head, middle, at):
    data = bytearray(layout.PAGE_BYTES)
    data[at : at + len(middle)] = middle
    for bytes_of_page in (bytes(head), bytes(data)):
        with pytest.raises(PageError):
            read_page(bytes_of_page)


def test_the_call_slots_and_the_exception_do_not_overlap():
    assert (layout.SLOTS_AT + layout.SLOTS * layout.SLOT_WORDS) * 8 <= layout.EXCEPTION_AT_BYTES
    assert layout.EXCEPTION_BYTES_AT < layout.SLOTS_AT


def with_calls(*texts):
    data = bytearray(written())
    for at, text in zip(layout.LAST_CALLS, texts, strict=False):
        struct.pack_into("<qqq", data, at * 8, 61, 1000, len(text))
        begin = 8 * (at + layout.CALL_TEXT)
        data[begin : begin + len(text)] = text
    return bytes(data)


def test_the_last_calls_are_read_with_their_numbers():
    call = LastCall("0", "all_reduce", "torch.float32", CallSite("all_reduce", "train.py", 40, "f"))

    (found,) = read_page(with_calls(msgspec.json.encode(call))).calls

    assert found == msgspec.structs.replace(call, count=61, numel=1000)


@given(st.binary(min_size=1, max_size=200))
def test_a_call_that_is_half_written_is_left_out(data):
    text = msgspec.json.encode(LastCall("0", "barrier"))

    assert len(read_page(with_calls(data[:100], text)).calls) == 1
