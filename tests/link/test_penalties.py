"""A client that fails to shake hands again and again is blocked by its address.

Where no address is known, the listener is closed for moments.
"""

import ipaddress
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.link.listeners import (
    FAILED_MAX,
    KEPT,
    LISTENER_CLOSED_S,
    LISTENER_PER_S,
    PENALTY_MOST_S,
    PENALTY_S,
    Penalties,
    filter_argument,
    packet_filter,
)

ATTACH = 26


def fail(penalties, source, times, at):
    return [penalties.failed(source, "listener", at) for _ in range(times)][-1]


def test_who_fails_too_often_is_kept_out_for_a_while_and_longer_each_time():
    penalties, at = Penalties(), 100.0
    for expected_s in (PENALTY_S, 2 * PENALTY_S, 4 * PENALTY_S):
        assert fail(penalties, "10.0.0.7", FAILED_MAX, at)
        assert penalties.kept_out(at + expected_s - 0.1) == [ipaddress.ip_address("10.0.0.7")]
        assert penalties.kept_out(at + expected_s) == []
        at += expected_s + 0.5
    for _ in range(9):
        fail(penalties, "10.0.0.7", FAILED_MAX, at)
        at += PENALTY_MOST_S + 0.5
    assert penalties.kept_out(at - 0.4) == []


def test_a_viewer_with_a_wrong_key_that_tries_every_two_seconds_is_not():
    penalties = Penalties()

    assert not any(
        penalties.failed("10.0.0.7", "listener", 100.0 + 2 * number) for number in range(500)
    )


def test_nobody_is_kept_out_for_what_another_does():
    penalties = Penalties()
    fail(penalties, "10.0.0.7", FAILED_MAX, 100.0)
    fail(penalties, "10.0.0.8", FAILED_MAX - 1, 100.0)

    assert penalties.kept_out(100.0) == [ipaddress.ip_address("10.0.0.7")]


@pytest.mark.parametrize("source", ["127.0.0.1", "::1", "::ffff:127.0.0.1", ""])
def test_on_loopback_the_listener_is_closed_for_moments(source):
    penalties = Penalties()
    fail(penalties, source, LISTENER_PER_S - 1, 100.0)
    assert penalties.shut_s("listener", 100.0) == 0.0
    fail(penalties, source, 1, 100.5)

    assert penalties.kept_out(100.5) == []
    assert penalties.shut_s("listener", 100.5) == LISTENER_CLOSED_S
    assert penalties.shut_s("other", 100.5) == 0.0
    assert penalties.shut_s("listener", 100.6) == 0.0


def verdict(program, header):
    """The result of a machine that runs the filter on this network header."""
    at, value = 0, 0
    while True:
        code, yes, no, k = struct.unpack_from("HBBI", program, 8 * at)
        at += 1
        if code == 0x06:
            return k
        if code in (0x30, 0x20):
            offset = k - (1 << 32) + 0x100000
            value = int.from_bytes(header[offset : offset + (1 if code == 0x30 else 4)], "big")
        elif code == 0x74:
            value >>= k
        else:
            at += yes if value == k else no


def header_from(address):
    if address.version == 4:
        return b"\x45" + bytes(11) + address.packed + bytes(4)
    return b"\x60" + bytes(7) + address.packed + bytes(16)


@given(st.lists(st.ip_addresses(), max_size=KEPT, unique=True), st.ip_addresses())
def test_the_filter_drops_those_addresses_and_no_others(kept_out, other):
    program = packet_filter(kept_out)
    networks = {one.packed if one.version == 4 else one.packed[:8] for one in kept_out}

    assert all(verdict(program, header_from(one)) == 0 for one in kept_out)
    is_out = (other.packed if other.version == 4 else other.packed[:8]) in networks
    assert (verdict(program, header_from(other)) == 0) == is_out


@pytest.mark.parametrize("kept_out", ["127.0.0.1", "10.0.0.7"])
def test_the_kernel_takes_the_filter_and_keeps_out_who_is_in_it(kept_out):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        value, held = filter_argument(
            packet_filter([ipaddress.ip_address(kept_out), ipaddress.ip_address("2001:db8::1")])
        )
        listening.setsockopt(socket.SOL_SOCKET, ATTACH, value)
        del held
        with socket.socket() as caller:
            caller.settimeout(0.3)
            if kept_out == "127.0.0.1":
                with pytest.raises(TimeoutError):
                    caller.connect(listening.getsockname())
            else:
                caller.connect(listening.getsockname())
