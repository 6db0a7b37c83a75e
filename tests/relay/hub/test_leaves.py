"""One hub and other hosts' relays: records reach its viewers, and orders every host."""

import os
import signal
import socket
import time

import pytest

from ddtop import registry
from ddtop.relay.hub import role, topology
from ddtop.relay.triggers import DumpTrigger
from ddtop.wire import frames
from ddtop.wire.records import (
    ALONE,
    HUB,
    LEAF,
    Arrivals,
    Exit,
    Hello,
    HostState,
    RankState,
    Reply,
    Stacks,
)
from tests.relay.hosts import (
    DEADLINE_S,
    World,
    connected,
    gather,
    heard,
    hears,
    host_of,
    iteration,
    of_rank,
    order,
    reply,
)


@pytest.fixture
def world(home):
    found = World()
    yield found
    found.close()


@pytest.fixture
def three(world, agents_count_as_heard):
    """A hub with rank 0 and two leaves with a rank each, as a viewer at the hub has seen."""
    hosts = [world.host(name) for name in ("aaa", "bbb", "ccc")]
    for number, host in enumerate(hosts):
        host.rank(number)
    viewer = hosts[0].viewer()

    def key(envelope, record):
        if isinstance(record, Hello):
            return record.rank
        return (
            "leaves"
            if isinstance(record, HostState) and record.hub and record.hub.leaves == 2
            else None
        )

    gather(viewer, key, lambda found: len(found) == 4)
    return hosts, viewer


def test_what_the_ranks_of_all_hosts_say_reaches_a_viewer_of_the_hub(three):
    hosts, viewer = three
    for number, host in enumerate(hosts):
        host.says(number, RankState("running", iteration=7))
    seen = gather(
        viewer,
        lambda envelope, record: (
            (envelope.rank, envelope.sender) if isinstance(record, RankState) else None
        ),
        lambda found: len(found) == 3,
    )

    assert sorted(seen) == [(0, "aaa"), (1, "bbb"), (2, "ccc")]


def test_every_host_says_how_it_stands(three):
    _, viewer = three
    states = gather(
        viewer,
        lambda envelope, record: envelope.sender if isinstance(record, HostState) else None,
        lambda found: len(found) == 3 and found["bbb"].clock,
    )

    assert states["aaa"].hub.role == HUB
    assert states["aaa"].hub.leaves == 2
    assert states["aaa"].clock is None
    assert (states["bbb"].hub.role, states["bbb"].hub.connected) == (LEAF, True)
    assert states["bbb"].hub.why is None
    assert abs(states["bbb"].clock.offset_ns) <= states["bbb"].clock.error_ns + 1_000_000


def test_a_late_viewer_gets_the_hellos_of_all_hosts(three):
    hosts, _ = three
    found = heard(hosts[0].viewer(), reply("live"))

    assert {record.rank for _, record in found if isinstance(record, Hello)} == {0, 1, 2}


def test_the_exit_on_another_host_is_told_at_once(three, world):
    _, viewer = three
    world.children[2].kill()

    envelope, found = heard(viewer, of_rank(2, Exit))[-1]

    assert (envelope.sender, found.signal) == ("ccc", signal.SIGKILL)


def test_a_hub_that_comes_last_gets_everything_that_was_said_before(world):
    """srun starts the steps in any order; the node of rank 0 may be the last to boot."""
    leaf = world.host("bbb")
    leaf.rank(1)
    early = leaf.viewer()
    heard(early, host_of("bbb", lambda record: record.hub is not None and record.hub.why))
    leaf.says(1, RankState("running", iteration=3))
    heard(early, iteration(1, 3))
    late = world.host("aaa")
    late.rank(0)
    viewer = late.viewer()

    found = heard(viewer, iteration(1, 3))

    assert [
        record.rank
        for envelope, record in found
        if isinstance(record, Hello) and envelope.sender == "bbb"
    ] == [1]


def test_a_leaf_without_a_hub_says_what_it_looks_for(world):
    leaf = world.host("bbb")
    leaf.rank(1)

    found = hears(
        leaf.viewer(),
        host_of(
            "bbb", lambda record: record.hub is not None and "127.0.0.1" in (record.hub.why or "")
        ),
    )

    assert (found.hub.role, found.hub.connected) == (LEAF, False)
    assert found.hub.why.startswith("nobody with this job's key answers at 127.0.0.1:")


def test_the_job_files_say_which_is_the_hub_and_which_are_its_parts(three, world):
    hosts, _ = three
    entries, end = {}, time.monotonic() + DEADLINE_S
    while time.monotonic() < end and not (
        len(entries) == 3
        and entries["bbb"].part_of
        and entries["ccc"].part_of
        and entries["aaa"].public_port
    ):
        entries = {entry.sender: entry for entry in registry.read_entries()}
        heard(hosts[0].viewer(), reply("live"))

    assert (entries["aaa"].role, entries["bbb"].role) == (HUB, LEAF)
    assert entries["bbb"].part_of == entries["ccc"].part_of == "run-aaa"
    assert entries["aaa"].endpoint() == (entries["aaa"].public_address, entries["aaa"].public_port)
    assert registry.choose_job(entries.values(), world.job, time.time_ns()).sender == "aaa"


# -- orders


def stacks_of(host, number, request):
    return Stacks(request, number, host.pids[number], time.time_ns(), "agent")


def test_stacks_of_all_ranks_are_asked_for_on_all_hosts(three):
    hosts, viewer = three
    order(viewer, "stacks", "q1", "", "")
    for number, host in enumerate(hosts):
        asked = host.orders(number, "dump")
        host.says(number, stacks_of(host, number, asked.arguments[0]))
    key = lambda _, record: (  # noqa: E731
        record.of_rank
        if isinstance(record, Stacks)
        else record.name
        if isinstance(record, Reply)
        else None
    )
    found = gather(viewer, key, lambda found: {0, 1, 2, "stacks"} <= set(found))

    assert [found[number].request for number in range(3)] == ["q1"] * 3
    assert found["stacks"].count == 3


def test_stacks_of_one_rank_are_asked_for_on_its_host_only(three):
    hosts, viewer = three
    order(viewer, "stacks", "q1", "2", "")
    hosts[2].orders(2, "dump")

    assert hears(viewer, reply("stacks")).count == 1


def test_a_host_that_is_not_connected_is_answered_for(three, monkeypatch):
    hosts, viewer = three
    hosts[1].stop()
    # Three beats of the others would take six seconds.
    monkeypatch.setattr(role, "LOST_S", 0.5)
    heard(viewer, host_of("aaa", lambda record: record.hub.leaves == 1))
    order(viewer, "stacks", "q1", "1", "")

    found = hears(viewer, of_rank(1, Stacks))

    assert (found.request, found.method) == ("q1", "")
    assert found.why.startswith("its host is not connected")


def test_of_requests_that_a_host_does_not_answer_the_newest_are_remembered(three, monkeypatch):
    """A viewer that asks again and again must not fill the hub's memory."""
    hub = three[0][0].server._role.hub
    monkeypatch.setattr(role, "ORDERS_MAX", 2)
    monkeypatch.setattr(hub, "_say", lambda *_: None)
    for request in ("q1", "q2", "q3"):
        hub.ask_stacks(request, None, "")

    assert [list(leaf.asked) for leaf in hub._leaves.values()] == [["q2", "q3"]] * 2


def test_a_signal_is_sent_by_the_host_of_its_rank(three, world):
    hosts, _ = three
    controller = hosts[0].viewer(controller=True)
    order(controller, "signal", "2", str(hosts[2].pids[2]), str(int(signal.SIGTERM)))

    found = hears(controller, reply("signal"))

    assert (found.ok, found.text) == (True, f"sent SIGTERM to rank 2 (pid {hosts[2].pids[2]})")
    assert world.children[2].wait(DEADLINE_S) == -signal.SIGTERM


def test_a_read_only_viewer_cannot_signal_on_other_hosts_either(three, world):
    hosts, viewer = three
    order(viewer, "signal", "2", str(hosts[2].pids[2]), "9")

    found = hears(viewer, reply("signal"))

    assert (found.ok, found.text) == (False, "this viewer is read-only")
    assert world.children[2].poll() is None


@pytest.mark.parametrize("pid", ["1", "x", ""])
def test_a_signal_to_a_pid_that_no_host_has_is_refused_at_the_hub(three, pid):
    hosts, _ = three
    controller = hosts[0].viewer(controller=True)
    order(controller, "signal", "2", pid, "9")

    assert hears(controller, reply("signal")).ok is False


def stuck_until(hosts, wanted):
    """Ranks report a stuck collective until each agent was asked; returns for what."""
    asked, end = {}, time.monotonic() + DEADLINE_S
    while len(asked) < len(hosts) and time.monotonic() < end:
        for number, host in enumerate(hosts):
            if number not in asked:
                ratio = 0.9 if number else 0.1
                host.says(
                    number, RankState("running"), stuck_key="default_pg|5|0", wait_ratio=ratio
                )
        for number, host in enumerate(hosts):
            while (data := host.links[number].receive()) is not None:
                record = frames.open_record(frames.open_envelope(data))
                if record.name == wanted:
                    asked[number] = record.arguments[0]
        hosts[0].links[0].wait(0.1)
    return asked


def test_what_is_stuck_makes_the_hub_ask_all_hosts_under_one_name(three, monkeypatch):
    hosts, _ = three
    monkeypatch.setattr("ddtop.relay.triggers.AUTO_DUMP_STUCK_S", 0.3)
    hosts[0].server._requests._dump_trigger = DumpTrigger(enabled=True)
    asked = stuck_until(hosts, "dump")

    assert len(asked) == 3
    assert len(set(asked.values())) == 1


def test_waits_that_differ_make_the_hub_ask_all_hosts_for_arrivals(three):
    hosts, viewer = three
    asked = stuck_until(hosts, "arrivals")
    hosts[1].says(1, Arrivals(asked[1], ()))

    assert len(set(asked.values())) == 1
    assert hears(viewer, of_rank(1, Arrivals)).request == asked[1]


# -- strangers


def test_the_first_derived_port_may_be_taken(world):
    """Another service, or another job, listens on the port."""
    from ddtop.relay.hub.topology import derived_ports

    ports = derived_ports(world.job)
    with socket.create_server(("", ports[0])):
        first, second = world.host("aaa"), world.host("bbb")
        first.rank(0)
        second.rank(1)
        found = hears(first.viewer(), connected("bbb"))

    assert found.hub.address == f"127.0.0.1:{ports[1]}"


def test_a_hub_that_cannot_listen_says_so_and_serves_its_own_host(world, monkeypatch):
    monkeypatch.setattr(role, "BIND_AGAIN_S", 0.5)
    with socket.create_server(("", 0)) as taken:
        monkeypatch.setenv("DDTOP_HUB", f"127.0.0.1:{taken.getsockname()[1]}")
        first = world.host("aaa")
        first.rank(0)
        viewer = first.viewer()
        why = hears(viewer, host_of("aaa", lambda record: record.hub and record.hub.why)).hub.why
    freed = hears(viewer, host_of("aaa", lambda record: record.hub and record.hub.address))

    assert why.startswith("other hosts cannot reach this one: cannot listen on port")
    assert freed.hub.why is None


def test_only_another_relay_may_speak_for_a_host(three):
    """A viewer's key does not allow what a relay's key allows."""
    _, viewer = three
    order(viewer, "enlist", "1", "", "x", "y", "3", "", "evil")

    assert hears(viewer, reply("enlist")).text == "unknown command enlist"


def test_a_port_that_was_named_is_free_for_the_next_job_soon_after_the_end(world, monkeypatch):
    """The job was restarted with the same DDTOP_HUB."""
    monkeypatch.setattr(role, "NAMED_LINGER_S", 0.2)
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("DDTOP_HUB", f"127.0.0.1:{port}")
    first = world.host("aaa")
    child = first.rank(0)
    viewer = first.viewer()
    heard(viewer, host_of("aaa", lambda record: record.hub and record.hub.address))
    viewer.close()
    world.links.remove(viewer)
    child.communicate(b"\n")
    first.thread.join(DEADLINE_S)

    assert not first.thread.is_alive()
    assert _is_free(port)


@pytest.mark.parametrize("first", [0, 1])
def test_slow_hands_on_one_host_make_no_job_of_several(world, monkeypatch, first):
    """Only when both have joined does the relay know, and closes its port."""
    monkeypatch.setattr(topology, "GRACE_S", 0.0)
    world.size = 2
    here = {"LOCAL_WORLD_SIZE": "", "MASTER_ADDR": os.uname().nodename}
    host = world.host("aaa")
    host.rank(first, environment=here)
    viewer = host.viewer()
    heard(viewer, host_of("aaa", lambda record: record.hub is not None))
    host.rank(1 - first, environment=here)
    heard(viewer, host_of("aaa", lambda record: record.hub is None))

    assert host.server._role.role == ALONE
    assert [port for port in topology.derived_ports(world.job) if not _is_free(port)] == []


def _is_free(port):
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0


# -- the end


def test_the_job_is_over_when_no_host_has_living_ranks(three, world):
    _, viewer = three
    for child in world.children[:2]:
        child.communicate(b"\n")
    heard(viewer, of_rank(0, Exit))
    alive = hears(viewer, host_of("aaa"))
    world.children[2].communicate(b"\n")
    ended = hears(viewer, host_of("aaa", lambda record: record.launcher_alive is False))

    assert (alive.launcher_alive, ended.launcher_alive) == (None, False)
