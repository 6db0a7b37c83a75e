"""Where the hub may be: a thread resolves names, and a name that hangs blocks nothing."""

import socket
import threading
import time

from ddtop import registry
from ddtop.link.leaf_side import PLACES_MAX
from ddtop.relay.hub import topology
from ddtop.relay.hub.topology import HubSearch, Topology, derived_ports, seek
from tests.entries import fresh
from tests.waiting import until

DEADLINE_S = 10.0


def entry(**more):
    hub = {"role": "hub", "public_address": "10.0.0.7", "public_port": 7000}
    return fresh(age_s=0.0, **({"sender": "a" * 12, "relay_pid": 1, "port": 5} | hub | more))


def test_the_place_that_the_user_names_is_the_only_one(home):
    found = seek(
        "train",
        "b" * 12,
        Topology(True, wanted=("10.0.0.1", 7000), hosts=("10.0.0.2",), ports=(1, 2)),
    )

    assert (found.places, found.text) == (("tcp://10.0.0.1:7000",), "10.0.0.1:7000")


def test_each_host_is_asked_at_each_port(home):
    found = seek("train", "b" * 12, Topology(True, hosts=("10.0.0.1", "::1"), ports=(1, 2)))

    assert found.places == (
        "tcp://10.0.0.1:1",
        "tcp://[::1]:1",
        "tcp://10.0.0.1:2",
        "tcp://[::1]:2",
    )


def test_no_host_is_left_out_because_the_ones_before_it_have_many_addresses_and_ports(
    home, monkeypatch
):
    """A hub is nearly always at its first port; only some addresses are tried at once."""
    hosts = ("node0", "node1", "node2")

    def two_each(name, *_arguments, **_more):
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"10.0.{net}.{name[-1]}", 0))
            for net in (1, 2)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", two_each)
    found = seek("train", "b" * 12, Topology(True, hosts=hosts, ports=derived_ports("train")))
    asked = found.places[:PLACES_MAX]

    assert {one.removeprefix("tcp://").partition(":")[0][-1] for one in asked} == {"0", "1", "2"}
    assert len(found.places) == 48


def test_the_hubs_job_file_in_a_shared_folder_goes_first(home):
    registry.write_entry(entry())
    found = seek("train", "b" * 12, Topology(True, hosts=("10.0.0.1",), ports=(1,)))

    assert found.places == ("tcp://10.0.0.7:7000", "tcp://10.0.0.1:1")


def test_other_jobs_leaves_and_the_dead_are_no_hubs(home):
    for number, more in enumerate(
        (
            {"job": "other"},
            {"role": "leaf"},
            {"heartbeat_unix_ns": 1},
            {"ended_unix_ns": 1},
            {"sender": "b" * 12},
        )
    ):
        registry.write_entry(entry(run=f"r{number}", **more))

    assert seek("train", "b" * 12, Topology(True)).places == ()


def test_a_name_that_nobody_knows_is_reported(home, monkeypatch):
    def unknown(*_arguments, **_more):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    found = seek("train", "b" * 12, Topology(True, hosts=("nowhere",), ports=(1,)))

    assert (found.places, found.problem) == ((), "nowhere: Name or service not known")


def test_a_name_server_that_hangs_holds_nobody_up_and_is_asked_no_third_time(home, monkeypatch):
    go, began = threading.Event(), []

    def hang(*_arguments, **_more):
        began.append(time.monotonic())
        go.wait(DEADLINE_S)
        raise OSError("too late")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(topology, "DEADLINE_S", 0.0)
    seeker, where = HubSearch("train", "b" * 12), Topology(True, hosts=("slow",), ports=(1,))
    for _ in range(5):
        seeker.begin(where)
    until(lambda: len(began) >= 2)
    hangs, found = seeker.hangs(), seeker.take()
    go.set()

    assert (len(began), hangs, found) == (2, True, None)


def test_what_was_found_is_given_once(home):
    seeker, end = HubSearch("train", "b" * 12), time.monotonic() + DEADLINE_S
    seeker.begin(Topology(True, wanted=("10.0.0.1", 7000)))
    while (found := seeker.take()) is None and time.monotonic() < end:
        time.sleep(0.01)

    assert found.places == ("tcp://10.0.0.1:7000",)
    assert seeker.take() is None
