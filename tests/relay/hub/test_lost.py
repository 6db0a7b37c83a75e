"""Hosts and hubs that disappear and return: all data is there again without a restart."""

import socket
import threading
from contextlib import closing

import pytest

from ddtop.relay.hub import uplink
from ddtop.relay.hub.topology import derived_ports
from ddtop.wire.records import Hello, HostState, RankState
from tests.relay.hosts import World, connected, gather, heard, hears, host_of, iteration


@pytest.fixture
def world(home, monkeypatch):
    monkeypatch.setattr(uplink, "LOST_S", 1.5)
    monkeypatch.setattr(uplink, "BEAT_S", 0.3)
    # On a slow machine a search may find nobody.
    monkeypatch.setattr(uplink, "SEEK_S", 1.0)
    found = World(2)
    yield found
    found.close()


@pytest.fixture
def pair(world):
    """(a hub whose relay can be killed, its leaf, a viewer of the leaf), with a rank each."""
    hub, leaf = world.host("aaa", own_process=True), world.host("bbb")
    hub.rank(0)
    leaf.rank(1)
    own = leaf.viewer()
    heard(own, connected("bbb"))
    return hub, leaf, own


def hellos(viewer):
    """Waits until the ranks of both hosts have sent Hello. Returns the records by rank."""
    return gather(
        viewer,
        lambda _, record: record.rank if isinstance(record, Hello) else None,
        lambda found: len(found) == 2,
    )


def test_a_hub_that_was_killed_and_followed_by_another_gets_all_facts_again(pair):
    """kill -9 of the hub's relay; its agents start another one within ten seconds."""
    hub, _, own = pair
    hub.kill()
    lost = hears(own, host_of("bbb", lambda record: record.hub.connected is False)).hub
    hub.start()
    hub.greet(0)
    found = hellos(hub.viewer())
    again = hears(own, connected("bbb")).hub

    assert sorted(found) == [0, 1]
    assert lost.why
    assert again.why is None


def test_a_hub_on_another_port_is_found_again(pair, world):
    """Another program took its port while it was away."""
    hub, _, own = pair
    ports = derived_ports(world.job)
    assert hears(own, connected("bbb")).hub.address == f"127.0.0.1:{ports[0]}"
    hub.kill()
    with socket.create_server(("", ports[0])):
        hub.start()
        hub.greet(0)
        moved = host_of(
            "bbb",
            lambda record: record.hub.connected and record.hub.address.endswith(str(ports[1])),
        )
        heard(own, moved)
        found = hellos(hub.viewer())

    assert sorted(found) == [0, 1]


def test_a_leaf_that_was_killed_and_followed_by_another_is_the_same_host_to_the_hub(world):
    hub, leaf = world.host("aaa"), world.host("bbb", own_process=True)
    hub.rank(0)
    leaf.rank(1)
    viewer = hub.viewer()
    heard(viewer, host_of("aaa", lambda record: record.hub is not None and record.hub.leaves == 1))
    leaf.kill()
    leaf.start()
    leaf.greet(1)
    leaf.says(1, RankState("running", iteration=9))
    heard(viewer, iteration(1, 9))
    states = gather(
        viewer,
        lambda envelope, record: envelope.sender if isinstance(record, HostState) else None,
        lambda found: len(found) == 2 and found["bbb"].hub.connected,
    )

    assert states["aaa"].hub.leaves == 1


class Wire:
    """A wire that can be cut: bytes are swallowed, and the connections stay open."""

    def __init__(self, port):
        self.cut = threading.Event()
        self._to, self._server = port, socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._server]
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                one, _ = self._server.accept()
                if self.cut.is_set():
                    # It looks as if no hub were there, until the wire is whole again.
                    one.close()
                    continue
                other = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            self._sockets += [one, other]
            for pair in ((one, other), (other, one)):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source, to):
        try:
            while data := source.recv(1 << 16):
                if not self.cut.is_set():
                    to.sendall(data)
        except OSError:
            return
        finally:
            source.close()

    def close(self):
        for one in self._sockets:
            one.close()


def test_a_cut_wire_is_noticed_though_tcp_says_nothing_and_fixed_without_a_restart(
    world, monkeypatch
):
    """After a pulled cable both ends still regard the connection as open."""
    hub = world.host("aaa")
    hub.rank(0)
    viewer = hub.viewer()
    address = hears(
        viewer, host_of("aaa", lambda record: record.hub and record.hub.address)
    ).hub.address
    with closing(Wire(int(address.rpartition(":")[2]))) as wire:
        monkeypatch.setenv("DDTOP_HUB", f"127.0.0.1:{wire.port}")
        leaf = world.host("bbb")
        leaf.rank(1)
        own = leaf.viewer()
        heard(own, connected("bbb"))
        wire.cut.set()
        hears(own, host_of("bbb", lambda record: record.hub.connected is False))
        heard(viewer, host_of("aaa", lambda record: record.hub.leaves == 0))
        wire.cut.clear()
        heard(viewer, host_of("aaa", lambda record: record.hub.leaves == 1))
        leaf.says(1, RankState("running", iteration=11))
        heard(viewer, iteration(1, 11))
