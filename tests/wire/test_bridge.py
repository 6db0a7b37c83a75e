"""What a bridge sends, and how its reader handles foreign bytes."""

import contextlib
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.wire import bridge
from ddtop.wire.bridge import (
    AskFiles,
    AskJobs,
    BridgeError,
    BridgeFrame,
    BridgeJob,
    Done,
    Incoming,
    Jobs,
    Open,
    Part,
    Refused,
)

MESSAGES = (
    AskJobs(),
    Jobs(1, (BridgeJob(b"{}", True, False),)),
    Open("train", "r1", True),
    bridge.Opened(),
    bridge.Gone(),
    AskFiles("train", "r1", False),
    bridge.part(bridge.NEWER, 5, b"12345"),
    Done(),
    BridgeFrame(b"\x00\xff"),
    Refused("no"),
)
WHOLE = bridge.greet("0.1.0", "node3") + b"".join(bridge.pack(message) for message in MESSAGES)


def in_pieces(data, cuts):
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(edges)]


@given(st.lists(st.integers(0, len(WHOLE))), st.binary(max_size=300))
def test_messages_come_whole_however_the_bytes_are_cut_and_whatever_stands_before(cuts, noise):
    incoming = Incoming(greeted=False)
    found = [
        message for piece in in_pieces(noise + WHOLE, cuts) for message in incoming.feed(piece)
    ]

    assert tuple(found) == MESSAGES
    assert (incoming.greeting.version, incoming.greeting.host) == ("0.1.0", "node3")


@given(st.booleans(), st.lists(st.binary(max_size=2000), max_size=60))
def test_foreign_bytes_give_messages_or_one_error_and_never_more_than_a_message_is_held(
    greeted, pieces
):
    incoming = Incoming(greeted=greeted)
    with contextlib.suppress(BridgeError):
        for piece in pieces:
            incoming.feed(piece)
            assert len(incoming._held) <= bridge.MESSAGE_BYTES_MAX + len(piece)


def test_a_program_that_never_greets_is_read_no_further_than_a_login_may_print():
    incoming = Incoming(greeted=False)
    incoming.feed(b"x" * bridge.NOISE_BYTES_MAX)

    with pytest.raises(BridgeError, match="64 KiB of other text"):
        incoming.feed(b"x")


def test_a_message_too_long_to_be_one_is_refused_before_it_is_held():
    with pytest.raises(BridgeError, match="a message of 4294967295 bytes"):
        Incoming(greeted=True).feed(b"\xff\xff\xff\xff")


def test_another_protocol_names_both_and_what_to_do():
    with pytest.raises(
        BridgeError, match=r"'2.0', which speaks 2, this one speaks 1: install the same version"
    ):
        Incoming(greeted=False).feed(
            b'\nddtop-bridge {"protocol":2,"version":"2.0","host":"h","new":[]}\n'
        )


def test_a_part_that_unpacks_to_more_than_a_part_may_hold_is_refused():
    """A few KB can unpack to gigabytes."""
    bomb = Part(bridge.LAST, 1, zlib.compress(bytes(100 << 20), 9))

    with pytest.raises(BridgeError, match="damaged"):
        bomb.data()
