"""The hosts and the wire of the tests behave as documented, and leave nothing behind."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import netns

pytestmark = pytest.mark.job
if why := netns.unable():
    pytest.skip(why, allow_module_level=True)

HEARS = """
import json, socket, time
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind(("", 9))
heard = []
while (data := one.recv(100).decode()) != "end":
    if data == "hello":
        open("heard", "w").close()
    else:
        heard.append([int(data), time.monotonic()])
print(json.dumps(heard))
"""
SAYS = """
import socket, sys, time
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for word in sys.argv[1].split():
    at = time.monotonic()
    one.sendto(word.encode(), ("10.77.0.2", 9))
print(at)
"""
KILLED = """
import sys, time
from pathlib import Path
from tests.netns import Net
net = Net(Path(sys.argv[1]), ("node0", "login"))
sleeper = net["node0"].start_command(["sh", "-c", "echo there; exec sleep 3600"])
net["node0"].until(lambda: net["node0"].output(sleeper)[0], 60, "a sleeper")  # What gave it its host name has ended then.
print(net.prefix, flush=True)
time.sleep(3600)
"""  # noqa: E501


@pytest.fixture
def net(tmp_path):
    made = netns.Net(tmp_path / "net", ("node0", "node1"))
    yield made
    made.close()


def say(net, *words):
    """Sends datagrams from node0 to node1. Returns when the last one was about to be sent."""
    process = net["node0"].start_command(
        [sys.executable, "-S", "-c", SAYS, " ".join(map(str, words))]
    )
    assert net["node0"].done(process) == 0
    return float(net["node0"].output(process)[0])


def listen(net):
    """A listener on node1, from now on."""
    hears = net["node1"].start_command([sys.executable, "-S", "-c", HEARS])
    net["node1"].until(
        lambda: say(net, "hello") and (net["node1"].folder / "heard").exists(),
        10,
        "a first datagram",
    )
    return hears


def heard(net, hears):
    """What it has received until "end": (number, when)."""
    say(net, "end")
    assert net["node1"].done(hears) == 0
    return json.loads(net["node1"].output(hears)[0])


def test_hosts_have_names_of_their_own_and_know_each_others(net):
    for name in ("node0", "node1"):
        process = net[name].start_command(["sh", "-c", "hostname; getent hosts node1"])
        assert net[name].done(process) == 0
        first, second = net[name].output(process)[0].splitlines()
        assert (first, second.split()) == (name, ["10.77.0.2", "node1"])


def test_the_agent_logs_in_there_with_nothing_of_our_environment(net):
    process = net["node0"].start_command(
        [str(net.agent), "node1", "hostname;", "echo", "$SECRET-$DDTOP_RUNTIME"], SECRET=1
    )

    assert net["node0"].done(process) == 0
    assert net["node0"].output(process)[0].split() == ["node1", f"-{net['node1'].home.runtime}"]


def test_a_blocked_way_lets_nothing_through_and_the_other_way_everything(net):
    hears = listen(net)
    net.cable("node1", blocked="to")
    say(net, 1, 2)
    net.cable("node1", blocked="from")
    say(net, 3, 4)
    net.cable("node1")

    assert [number for number, _ in heard(net, hears)] == [3, 4]


def test_a_lossy_cable_loses_some_frames(net):
    hears = listen(net)
    net.cable("node0", loss_ratio=0.3)
    say(net, *range(100))
    net.cable("node0")

    assert 50 < len(heard(net, hears)) < 90


def test_a_slow_cable_delays_by_what_it_was_reported(net):
    hears = listen(net)
    net.cable("node1", delay_to_ms=300)
    sent = say(net, 1)

    ((_, at),) = heard(net, hears)

    assert at - sent > 0.25


def test_a_link_that_is_down_is_up_again(net):
    hears = listen(net)
    net["node1"].link("down")
    say(net, 1)
    net["node1"].link("up")
    # The first datagram only makes the kernel look up its neighbour.
    net["node1"].until(
        lambda: say(net, "hello") and say(net, 2) and net.cable("node1")[0], 10, "a carried frame"
    )

    assert 1 not in [number for number, _ in heard(net, hears)]


def test_nothing_is_left_when_the_test_is_killed(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "net")],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    prefix = process.stdout.readline().strip()
    spaces = [path.name for path in netns.SPACES.glob(f"{prefix}*")]
    inside = {
        int(pid) for name in spaces for pid in netns._output("ip", "netns", "pids", name).split()
    }
    watched = [os.pidfd_open(pid) for pid in inside]

    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()

    assert len(spaces) == 3
    assert len(inside) == 2  # The sleeper and the wire.
    for descriptor in watched:
        assert select.select([descriptor], [], [], 20)[0]
        os.close(descriptor)
    # The wire's process ends last.
    assert [
        path
        for place in (netns.SPACES, netns.FILES, netns.RUNTIMES)
        for path in place.glob(f"{prefix}*")
    ] == []


def test_what_a_killed_wire_could_not_remove_goes_at_the_next_start(tmp_path):
    left = f"{netns.PREFIX}{os.getpid()}.1-0-node0"  # Our pid, and another process.
    subprocess.run(["ip", "netns", "add", left], check=True)

    netns.sweep_abandoned()

    assert not (netns.SPACES / left).exists()
