"""How network faults affect a job of three hosts, and what ddtop reports and does then."""

import os
import signal
import sys
from contextlib import closing

import pytest

from tests import netns

if why := netns.unable():
    pytest.skip(why, allow_module_level=True)

NODES = netns.NODES[:-1]


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """Two ranks on each of three hosts. Every test leaves the hosts healthy."""
    with closing(netns.Net(tmp_path_factory.mktemp("hosts") / "net")) as net:
        net.plain("apart")
        net["login"].moving()
        yield net


@pytest.fixture
def net(walk):
    """The hosts are healthy before and after; no rank was restarted, and none stopped."""
    pids = ranks(walk)
    before = steps(walk)
    yield walk
    for name, host in walk.hosts.items():
        walk.cable(name)
        host.link("up")
    well(walk)
    assert ranks(walk) == pids
    assert all(now > then for now, then in zip(steps(walk), before, strict=True))


def ranks(net):
    """(host, pid) of each reporting rank."""
    return [(row["host"], row["pid"]) for row in net["login"].status()]


def well(net, within_s=40):
    """All six report to the hub and nothing is wrong."""
    view = net["login"]

    def found():
        now = view.diagnose()
        return now["reporting"] == 6 and not now["findings"]

    view.until(found, within_s, "six ranks and no finding")


def steps(net):
    """How many steps each rank has made, in tens: the dots in its output."""
    return [len(net[name].output(process)[0]) for name in NODES for process in net[name].launched()]


def go_on(net):
    """All ranks go on, whatever state ddtop is in."""
    before = steps(net)
    net["login"].until(
        lambda: all(now > then + 1 for now, then in zip(steps(net), before, strict=True)),
        20,
        "moving ranks",
    )


def test_a_host_that_is_cut_off_is_lost_with_its_ranks_and_then_resumes(net):
    net.cable("node2", blocked="both")

    finding = net["login"].finding("host-lost", 40)

    assert (finding["severity"], finding["ranks"]) == ("warning", [4, 5])
    assert "node2" in finding["summary"]
    go_on(net)
    rows = net["login"].status()
    assert [row["state"] == "lost" for row in rows] == [False] * 4 + [True] * 2
    relay = net["node2"].relay()

    net.cable("node2")

    well(net)
    assert net["node2"].relay() == relay


def test_one_way_is_enough_to_lose_a_host(net):
    """A firewall's rule, a broken fibre: nothing arrives from one host, and from the other only
    what needs no acknowledgement.
    """
    net.cable("node1", blocked="from")
    net.cable("node2", blocked="to")

    net["login"].until(lambda: lost(net) == [2, 3, 4, 5], 90, "two lost hosts")

    go_on(net)


def lost(net):
    """Ranks of hosts that are lost."""
    findings = [one for one in net["login"].diagnose()["findings"] if one["kind"] == "host-lost"]
    return sorted(rank for one in findings for rank in one["ranks"])


def test_the_hubs_cable_is_pulled_and_each_host_can_still_be_looked_at(net):
    """A host's own relay answers for its own ranks, and says that these are not all."""
    net["node0"].link("down")

    def alone():
        done = net["node1"].ddtop("status", net["node1"].job())
        return "this host only" in done.stderr and done

    seen = net["node1"].until(alone, 90, "a status of this host only")
    assert "  2/6 ranks" in seen.stdout
    go_on(net)


def test_a_hubs_relay_that_is_killed_is_followed_by_another_that_knows_all(net):
    """A viewer that was attached stays attached."""
    relay = net["node0"].relay()
    watch = watching(net)
    pid = net["login"].status()[5]["pid"]

    os.kill(relay, signal.SIGKILL)

    go_on(net)
    well(net, 60)
    assert net["node0"].relay() != relay
    os.kill(pid, signal.SIGSTOP)
    net["login"].until(
        lambda: "rank-stopped" in net["login"].output(watch)[0], 90, "news for who was attached"
    )
    os.kill(pid, signal.SIGCONT)
    net["login"].until(lambda: "cleared" in net["login"].output(watch)[0], 90, "the end of it")
    watch.send_signal(signal.SIGINT)
    net["login"].done(watch)


def watching(net):
    """A viewer that stays attached for long."""
    found = net["login"].start_command(
        [sys.executable, "-m", "ddtop", "watch", net["login"].job()], ddtop=False
    )
    net["login"].until(lambda: net["login"].output(found)[0], 90, "a first line")
    return found


def test_loss_and_latency_alone_are_no_finding(net):
    """5 % of all frames are lost, and there are 200 ms of delay in each direction: the host is
    slower, not silent.
    """
    for name in NODES:
        net.cable(name, loss_ratio=0.05, delay_to_ms=100, delay_from_ms=100)

    # Existing connections notice it at once; a new one needs several of those round trips.
    for _ in range(2):
        now = net["login"].diagnose(4.0)
        assert (now["reporting"], now["findings"]) == (6, [])


def test_a_viewer_that_stops_reading_holds_up_nobody(net):
    stopped = watching(net)
    os.kill(stopped.pid, signal.SIGSTOP)

    go_on(net)
    well(net)

    os.kill(stopped.pid, signal.SIGCONT)
    stopped.send_signal(signal.SIGINT)
    net["login"].done(stopped)


def test_a_name_that_leads_nowhere_costs_a_host_until_it_is_right(tmp_path):
    """One host gets a stale address from a name server. Its ranks go on, and its relay reports what
    is missing and asks again by itself.
    """
    net = netns.Net(tmp_path / "net", shared=False)
    for host in net.hosts.values():
        host.environment["DDTOP_KEY"] = "a-key-of-these-tests-only"
    hub, astray = net["node0"], net["node2"]
    try:
        net.resolve("node2", node0="10.77.0.99")
        net.plain("apart")
        hub.until(lambda: hub.diagnose()["reporting"] == 4, 90, "two hosts of three")
        go_on(net)
        # The relay has to try several ports before it can report that none of them answers.
        said = astray.until(
            lambda: "hub not reached" in (text := astray.ddtop("diagnose").stdout) and text,
            60,
            "a reason",
        )
        assert (
            "this host only: hub not reached: nobody with this job's key answers at node0:" in said
        )

        net.resolve("node2")

        assert hub.moving()["world_size"] == 6
    finally:
        net.close()
