"""The sockets: a client with the right key is served, all others are refused and counted, and no
client can block the relay.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import zmq

from ddtop.link.keys import SERVER, VIEWER, derive
from ddtop.link.relay_side import PROCESS, VIEW, RelayLink
from ddtop.link.viewer_side import AsyncViewerLink, FrameQueue, admits
from ddtop.wire.frames import FRAME_BYTES_MAX
from tests.link.secrets import DEADLINE_S, SECRET
from tests.viewers import ViewerLink


@pytest.fixture
def relay(home):
    """A relay's sockets; the runtime folder is short enough for a unix socket."""
    found = RelayLink(home.runtime / "r.sock", SECRET, "127.0.0.1")
    yield found
    found.close()


def heard(relay, kind, wanted=1, give_up_s=DEADLINE_S, stop=lambda: False):
    """The frames that arrived: at least this many, or those until `stop` held or the time was
    over.
    """
    frames, end = [], time.monotonic() + give_up_s
    while len(frames) < wanted and time.monotonic() < end and not stop():
        for ready, _ in relay.wait(0.05):
            if ready == kind:
                frames += [(peer, data) for peer, data, _ in relay.receive(kind)]
    return frames


def first(frames):
    """The first of some frames."""
    return next(iter(frames), None)


# -- viewers


def test_a_viewer_with_the_key_is_served(relay):
    with closing(ViewerLink("127.0.0.1", relay.port, SECRET)) as viewer:
        viewer.send(b"join")
        ((peer, data),) = heard(relay, VIEW)
        assert relay.send(VIEW, peer, b"welcome")
        answer = first(viewer.receive(DEADLINE_S))

    assert (data, answer, relay.refused) == (b"join", b"welcome", 0)


async def test_the_dashboards_viewer_is_served_too(relay):
    with closing(AsyncViewerLink("127.0.0.1", relay.port, SECRET)) as viewer:
        await viewer.send(b"join")
        ((peer, _),) = heard(relay, VIEW)
        relay.send(VIEW, peer, b"welcome")
        answers = [frame async for frame in viewer.receive(0.5)]

    assert answers == [b"welcome"]


@pytest.mark.parametrize(("secret", "admitted"), [(SECRET, True), (b"of somebody else, 16", False)])
def test_who_only_asks_whether_we_are_let_in_is_reported_and_is_no_stranger(
    relay, secret, admitted
):
    """Commands from other hosts first check the port this way. Each of them was counted as a
    refused connection.
    """
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(admits, "127.0.0.1", relay.port, secret, DEADLINE_S)
        heard(relay, VIEW, stop=asked.done)
    with closing(ViewerLink("127.0.0.1", relay.port, SECRET)) as after:
        after.send(b"join")
        heard(relay, VIEW)

    assert asked.result() is admitted
    assert (relay.refused == 0) is admitted


def test_where_nobody_listens_nobody_lets_us_in():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))

        assert not admits("127.0.0.1", taken.getsockname()[1], SECRET, DEADLINE_S)


def test_a_viewer_that_is_gone_is_distinguished_from_one_whose_queue_is_full(relay):
    viewer = ViewerLink("127.0.0.1", relay.port, SECRET)
    viewer.send(b"join")
    ((peer, _),) = heard(relay, VIEW)
    viewer.close()
    end = time.monotonic() + DEADLINE_S
    while relay.broadcast([peer], b"x") == ([], []) and time.monotonic() < end:
        list(relay.wait(0.02))

    assert relay.broadcast([peer, b"never seen"], b"x") == ([], [peer, b"never seen"])


ASKS_AND_WAITS = """
import sys
from tests.viewers import ViewerLink
from tests.link.secrets import SECRET
viewer = ViewerLink("127.0.0.1", int(sys.argv[1]), SECRET)
viewer.send(b"join")
sys.stdin.read()
"""


def test_a_viewer_that_does_not_read_is_full_and_not_gone(home):
    """A viewer was stopped with Ctrl-Z: its connection stays open, and nothing reads from it."""
    relay = RelayLink(home.runtime / "full.sock", SECRET, "127.0.0.1")
    words = [sys.executable, "-c", ASKS_AND_WAITS, str(relay.port)]
    viewer = subprocess.Popen(words, stdin=subprocess.PIPE)
    try:
        ((peer, _),) = heard(relay, VIEW)
        os.kill(viewer.pid, signal.SIGSTOP)
        told = (relay.broadcast([peer], *[b"x" * 60_000] * 10) for _ in range(1000))
        found = next((one for one in told if one != ([], [])), None)
    finally:
        viewer.kill()
        viewer.communicate()
        relay.close()

    assert found == ([peer], [])


FLOOD = 120_000
"""More than any queue of libzmq is given elsewhere: one that was full may abort the process."""


@pytest.fixture
def flood():
    """A relay's socket that sends this many frames to every client that asks, as fast as
    possible.
    """
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    keys = derive(SECRET, SERVER)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.LINGER, 0)
    port = socket.bind_to_random_port("tcp://127.0.0.1")

    def send():
        peer, _ = socket.recv_multipart()
        for number in range(FLOOD):
            socket.send_multipart([peer, b"%d" % number])
        return peer

    with ThreadPoolExecutor(1) as pool:
        yield port, pool.submit(send)
    context.destroy(linger=0)


def test_a_viewer_that_is_busy_while_much_comes_gets_it_in_order_and_lives(flood):
    port, sent = flood
    with closing(ViewerLink("127.0.0.1", port, SECRET)) as viewer:
        viewer.send(b"join")
        sent.result(8 * DEADLINE_S)
        frames = []
        for data in viewer.receive(8 * DEADLINE_S):
            frames.append(data)
            if len(frames) == FLOOD:
                break

    assert frames == [b"%d" % number for number in range(FLOOD)]


def test_a_dashboard_that_does_not_take_frames_keeps_so_many_and_counts_the_others(flood):
    """A bridge whose ssh is slow. Frames that arrive meanwhile must not pile up without a bound."""
    port, sent = flood

    async def feed():
        link = AsyncViewerLink("127.0.0.1", port, SECRET)
        link.waiting = FrameQueue(bytes_max=100_000)
        try:
            await link.send(b"join")
            stream = link.receive(8 * DEADLINE_S)
            first = await stream.__anext__()
            end = time.monotonic() + 8 * DEADLINE_S
            while not sent.done() or link.waiting.dropped < FLOOD / 2:
                assert time.monotonic() < end
                await asyncio.sleep(0.02)
            kept = len(link.waiting)
            second = await stream.__anext__()
            return first, second, kept, link.waiting.dropped
        finally:
            link.close()

    first_frame, second, kept, dropped = asyncio.run(feed())

    assert (first_frame, second) == (b"0", b"1")
    assert 100 < kept < 1000
    assert dropped > FLOOD / 2


def test_a_frame_over_the_limit_ends_its_senders_connection(relay):
    with closing(ViewerLink("127.0.0.1", relay.port, SECRET)) as viewer:
        viewer.send(b"x" * (FRAME_BYTES_MAX + 1))
        frames = heard(relay, VIEW, give_up_s=0.7)

    assert frames == []


# -- processes


def test_the_end_of_a_process_wakes_the_relay(relay):
    child = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(child.pid)
    try:
        relay.watch(pidfd)
        ready = list(relay.wait(DEADLINE_S))
        relay.unwatch(pidfd)
    finally:
        os.close(pidfd)
        child.wait()

    assert ready == [(PROCESS, pidfd)]
    assert list(relay.wait(0)) == []


def test_a_socket_that_cannot_be_bound_is_an_os_error_and_leaks_nothing(home):
    with pytest.raises(OSError, match="cannot bind"):
        RelayLink(home.runtime / "no such folder" / "r.sock", SECRET, "127.0.0.1")


def test_each_key_stands_for_its_role(relay):
    assert relay._roles[derive(SECRET, VIEWER).public] == VIEWER
    assert relay._roles[derive(SECRET, SERVER).public] == SERVER
