"""Between relays: batches in one message, and only among holders of a relay's key."""

import socket
import time
from contextlib import closing

import pytest

from ddtop.link.keys import SERVER, VIEWER
from ddtop.link.relay_side import HUB, VIEW, RelayLink
from ddtop.link.viewer_side import AsyncViewerLink
from tests.link.secrets import DEADLINE_S, SECRET
from tests.ports import free_port
from tests.viewers import ViewerLink


@pytest.fixture
def hub(home):
    found = RelayLink(home.runtime / "hub.sock", SECRET, "127.0.0.1")
    yield found
    found.close()


@pytest.fixture
def leaf(home):
    found = RelayLink(home.runtime / "leaf.sock", SECRET, "127.0.0.1")
    yield found
    found.close()


def turn(*relays):
    """What has arrived at the sockets of viewers and hubs.

    (frames with peer and role, frames with place).
    """
    views, hubs = [], []
    for relay, ends in relays:
        for kind, what in relay.wait(0.02):
            if kind == VIEW:
                views += relay.receive(VIEW)
            elif kind == HUB:
                hubs += ends.receive(what)
    return views, hubs


def until(wanted, *relays):
    found, end = ([], []), time.monotonic() + DEADLINE_S
    while not wanted(*found) and time.monotonic() < end:
        views, hubs = turn(*relays)
        found[0].extend(views)
        found[1].extend(hubs)
    return found


def send(ends, place, parts, *relays):
    """Waits until they are connected."""
    end = time.monotonic() + DEADLINE_S
    while not ends.send(place, parts) and time.monotonic() < end:
        turn(*relays)


def test_a_batch_of_another_relay_comes_as_its_frames_with_its_role_and_is_answered(hub, leaf):
    port, why = hub.bind_public([free_port()])
    ends, place = leaf.leaf(), f"tcp://127.0.0.1:{port}"
    ends.keep_only([place])
    both = ((hub, None), (leaf, ends))
    send(ends, place, [b"one", b"two", b"three"], *both)
    views, _ = until(lambda views, hubs: len(views) == 3, *both)
    hub.send(VIEW, views[0][0], b"yes")
    _, answers = until(lambda views, hubs: hubs, *both)
    ends.close()

    assert why == ""
    assert [(data, role) for _, data, role in views] == [
        (b"one", SERVER),
        (b"two", SERVER),
        (b"three", SERVER),
    ]
    assert answers == [(place, b"yes")]


def test_a_viewers_batch_is_one_empty_frame(hub):
    with closing(ViewerLink("127.0.0.1", hub.port, SECRET)) as viewer:
        viewer._links._sockets[""].send_multipart([b"one", b"two"])
        views, _ = until(lambda views, hubs: views, (hub, None))

    assert [(data, role) for _, data, role in views] == [(b"", VIEWER)]


def test_a_leaf_with_another_key_sends_nothing(hub, home):
    """Nothing is queued for a place where no holder of the key answers, so nothing grows."""
    port, _ = hub.bind_public([free_port()])
    with closing(
        RelayLink(home.runtime / "stranger.sock", b"another users secret", "127.0.0.1")
    ) as stranger:
        ends, place = stranger.leaf(), f"tcp://127.0.0.1:{port}"
        ends.keep_only([place])
        views, _ = until(lambda views, hubs: hub.refused > 0, (hub, None), (stranger, ends))
        sent = ends.send(place, [b"x"])
        ends.close()

    assert (views, sent) == ([], False)
    assert hub.refused > 0


def test_places_are_left_when_they_are_not_wanted_any_more(leaf):
    ends = leaf.leaf()
    ends.keep_only(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "nonsense", "tcp://127.0.0.1:1"])
    all_places = ends.places
    ends.keep_only(["tcp://127.0.0.1:2"])
    one = ends.places
    ends.close()

    assert all_places == ("tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
    assert one == ("tcp://127.0.0.1:2",)
    assert ends.places == ()


def test_the_first_free_port_is_taken_and_all_hosts_may_come(hub):
    wanted = free_port()
    with socket.create_server(("", 0)) as taken:
        port, why = hub.bind_public([taken.getsockname()[1], wanted])
        none, why_not = hub.bind_public([taken.getsockname()[1]])

    assert (port, why, none) == (wanted, "", None)
    assert why_not.startswith("cannot listen on port")


def test_a_hub_that_is_none_after_all_listens_for_its_own_host_only(hub):
    port, _ = hub.bind_public([free_port()])
    viewer = ViewerLink("127.0.0.1", hub.port, SECRET)
    viewer.send(b"before")
    until(lambda views, _: views, (hub, None))

    hub.unbind_public()
    viewer.send(b"after")
    still, _ = until(lambda views, _: views, (hub, None))
    end = time.monotonic() + DEADLINE_S
    while _takes(port) and time.monotonic() < end:
        turn((hub, None))
    viewer.close()

    assert [data for _, data, _ in still] == [b"after"]
    assert not _takes(port)
    assert hub.bind_public([port]) == (port, "")


def _takes(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_a_viewer_reaches_a_hub_at_an_address_of_version_6(hub):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    port, _ = hub.bind_public([free_port()])
    viewer = ViewerLink("::1", port, SECRET)
    viewer.send(b"hello")
    views, _ = until(lambda views, _: views, (hub, None))
    viewer.close()

    assert [data for _, data, _ in views] == [b"hello"]


async def test_a_viewer_takes_a_message_of_several_frames_apart(hub):
    """What a leaf has sent as one message is forwarded as one."""
    plain = ViewerLink("127.0.0.1", hub.port, SECRET)
    screen = AsyncViewerLink("127.0.0.1", hub.port, SECRET)
    batch = [b"%d" % number for number in range(700)]
    try:
        plain.send(b"join")
        await screen.send(b"join")
        views, _ = until(lambda views, hubs: len(views) == 2, (hub, None))
        undelivered = hub.broadcast([peer for peer, _, _ in views], *batch)
        one, two = [], []
        for data in plain.receive(DEADLINE_S):
            one.append(data)
            if len(one) == len(batch):
                break
        async for data in screen.receive(DEADLINE_S):
            two.append(data)
            if len(two) == len(batch):
                break
    finally:
        plain.close()
        screen.close()

    assert undelivered == ([], [])
    assert one == two == batch
