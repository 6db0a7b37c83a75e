"""The listeners of a relay: they are closed while too many strangers wait in them, and meanwhile
the port stays reserved.
"""

import contextlib
import socket
import time

import pytest
import zmq

from ddtop.link import listeners
from ddtop.link.listeners import FAILED_MAX, Listeners
from tests.ports import connecting

DEADLINE_S = 10.0


@pytest.fixture
def made(monkeypatch):
    """Listeners of a ROUTER that allow an eighth of a second for a handshake."""
    monkeypatch.setattr(listeners, "HANDSHAKE_S", 0.125)
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    found = Listeners(router)
    yield found
    found.close()
    context.destroy(linger=0)


def until(made, holds):
    """Poll until the condition holds."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        made.look()
        if holds():
            return True
        made.monitor.poll(20)
    return False


def test_a_listener_is_closed_while_too_many_strangers_connect(made):
    """A client that connects meanwhile gets no answer; TCP tries again by itself."""
    port = made.open("127.0.0.1", 0, strangers_max=4, bytes_max=1000)
    held = [connecting(port) for _ in range(4)]
    try:
        assert until(made, lambda: not made.is_open(port))
        held.append(connecting(port))
        assert until(made, lambda: made.refused == 4)
        assert until(made, lambda: made.is_open(port))
        assert until(made, lambda: made.refused == 5)
    finally:
        for one in held:
            one.close()


def test_who_has_shaken_hands_stays_connected_while_the_listener_is_closed(made):
    port = made.open("127.0.0.1", 0, strangers_max=4, bytes_max=1000)
    router, friend = made._router, made._router.context.socket(zmq.DEALER)
    friend.connect(f"tcp://127.0.0.1:{port}")
    friend.send(b"before")
    assert until(made, lambda: router.poll(0))
    router.recv_multipart()
    held = [connecting(port) for _ in range(4)]
    try:
        assert until(made, lambda: not made.is_open(port))
        friend.send(b"while it is shut")
        assert until(made, lambda: router.poll(0))
        peer, said = router.recv_multipart()
        router.send_multipart((peer, b"welcome"))
        answer = friend.recv() if friend.poll(DEADLINE_S * 1000) else None
    finally:
        friend.close(0)
        for one in held:
            one.close()

    assert (said, answer) == (b"while it is shut", b"welcome")


def test_nobody_else_gets_the_port_while_the_listener_is_closed(made):
    """Otherwise another user of the host could put a relay of his own in its place."""
    port = made.open("127.0.0.1", 0, strangers_max=1, bytes_max=1000)
    with connecting(port):
        assert until(made, lambda: not made.is_open(port))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))


def test_a_crowd_at_one_listener_does_not_close_the_other(made):
    """Viewers on the hub's own host are accepted while its public port is attacked."""
    public = made.open("127.0.0.1", 0, strangers_max=2, bytes_max=1000)
    own = made.open("127.0.0.1", 0, strangers_max=2, bytes_max=1000)
    with contextlib.ExitStack() as held:
        for _ in range(8):
            held.enter_context(connecting(public))
        assert until(made, lambda: not made.is_open(public))
        assert made.is_open(own)


def test_a_port_that_is_taken_is_an_os_error(made):
    port = made.open("127.0.0.1", 0, strangers_max=2, bytes_max=1000)

    with pytest.raises(OSError, match="in use"):
        made.open("127.0.0.1", port, strangers_max=2, bytes_max=1000)


def own_address():
    """An address of this host that is not loopback; None if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            # Nothing is sent: the kernel only chooses the source address.
            asking.connect(("192.0.2.1", 9))
            address = asking.getsockname()[0]
        except OSError:
            return None
    return None if address.startswith("127.") else address


@pytest.mark.skipif(own_address() is None, reason="this host has only loopback")
def test_an_address_that_fails_again_and_again_is_kept_out_and_others_come_in(made):
    """Of 6,581 failed handshakes a second nearly all were dropped by the kernel after this."""
    address = own_address()
    port = made.open("0.0.0.0", 0, strangers_max=1000, bytes_max=1000)
    held = [
        socket.create_connection((address, port), timeout=DEADLINE_S) for _ in range(FAILED_MAX)
    ]
    assert until(made, lambda: made.refused == FAILED_MAX)
    for one in held:
        one.close()

    with (
        socket.socket() as again,
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S),
    ):
        again.settimeout(0.3)
        with pytest.raises(TimeoutError):
            again.connect((address, port))
