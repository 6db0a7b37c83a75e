"""One job on three hosts, watched from a fourth host. Each host is a namespace, joined by a wire
(`tests.netns`).
"""

import os
import signal
import sys
from contextlib import closing

import pytest

from ddtop.relay.hub.topology import derived_ports
from tests import netns

pytestmark = pytest.mark.torch
if why := netns.unable():
    pytest.skip(why, allow_module_level=True)

HOSTS = ["node0", "node0", "node1", "node1", "node2", "node2"]
JOB = "apart-node0-29500"
"""The job of the program `apart`: its script and where its ranks would meet."""
STRANGER = """
import socket, sys, threading
def serve(port):
    one = socket.create_server(("", port))
    print(port, flush=True)
    kept = []
    while True:
        kept.append(one.accept()[0])
        kept[-1].sendall(b"HTTP/1.1 400 Bad Request\\r\\n\\r\\n")
for port in sys.argv[1:]:
    threading.Thread(target=serve, args=(int(port),)).start()
"""
KEY = "a-key-of-these-tests-only"


@pytest.fixture
def net(tmp_path):
    with closing(netns.Net(tmp_path / "net")) as made:
        yield made


@pytest.fixture
def apart(tmp_path):
    """Hosts without a shared folder."""
    with closing(netns.Net(tmp_path / "net", shared=False)) as made:
        yield made


def test_three_hosts_are_one_job_and_the_rank_that_stands_is_named_from_a_fourth(net):
    """The same commands as on one host, without any configuration."""
    orders = net.folder / "orders"
    net.torchrun("together", str(orders), "all")
    view = net["login"]

    healthy = view.moving(10)
    assert (healthy["health"], healthy["findings"], healthy["world_size"]) == ("ok", [], 6)
    assert [row["host"] for row in view.status()] == HOSTS
    (job,) = view.says("jobs")["jobs"]
    assert job["hosts"] == ["node0", "node1", "node2"]
    assert job["reporting"] == 6
    assert job["world_size"] == 6
    assert view.diagnose(5.0)["findings"] == []

    orders.write_text("5")
    finding = view.finding("not-in-collective", 40)
    assert finding["severity"] == "critical"
    assert finding["ranks"] == [5]
    assert finding["victims"] == [0, 1, 2, 3, 4]
    assert "wait_for_licence (together.py:" in finding["summary"]

    stacks = view.says("stacks", view.job())
    assert stacks["unanswered"] == []
    assert {rank for group in stacks["groups"] for rank in group["ranks"]} == set(range(6))
    assert any(
        "wait_for_licence" in str(group["frames"])
        for group in stacks["groups"]
        if group["ranks"] == [5]
    )


@pytest.mark.skipif(
    "DDTOP_TEST_LONG" not in os.environ, reason="takes 40 s: DDTOP_TEST_LONG=1 runs it"
)
def test_a_worker_that_dies_on_one_host_restarts_them_all_and_history_is_kept(net):
    """torchrun's agents agree on a new round, but only the agent whose worker died counts it as a
    restart.
    """
    for name in netns.NODES[:-1]:
        where = [
            "--nnodes",
            "3",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "node0:29400",
            "--rdzv-id",
            "again",
        ]
        program = [str(netns.PROGRAMS / "together.py"), str(net.folder / "orders"), "host"]
        # Each round has a store of its own. In a shared store gloo finds the addresses of the round
        # before.
        net[name].start_command(
            [*netns.TORCHRUN, *where, "--nproc-per-node", "2", "--max-restarts", "2", *program],
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1,
        )
    view = net["login"]
    view.moving(5)
    before = view.status()
    victim = next(row for row in before if row["host"] == "node1")

    os.kill(victim["pid"], signal.SIGKILL)

    def again():
        rows = view.status()
        new = {row["pid"] for row in rows if row["pid"]} - {row["pid"] for row in before}
        return (
            rows
            if len(rows) == len(new) == 6
            and {row["state"] for row in rows} <= {"running", "waiting"}
            else None
        )

    after = view.until(again, 90, "six new ranks")
    assert [row["host"] for row in after] == HOSTS
    assert view.moving(5)["findings"] == []
    late = view.ddtop("diagnose").stdout
    assert "  restart 1  " in late.splitlines()[0]
    assert "note: restarted: attempt 1" in late


def test_without_a_shared_folder_the_hub_is_found_by_the_masters_name_and_a_cut_is_named(apart):
    """Containers: the key is in the environment, the port follows from the job's name. While a host
    is cut off, no other rank is blamed for the waits. TCP then resumes.
    """
    orders = apart.folder / "orders"
    apart.torchrun("together", str(orders), "all", DDTOP_KEY=KEY)
    hub = apart["node0"]
    hub.environment["DDTOP_KEY"] = KEY

    assert hub.moving(10)["findings"] == []
    assert [row["host"] for row in hub.status()] == HOSTS

    (entry,) = hub.entries()
    seen = apart["login"].ddtop("attach", "--hub", f"node0:{entry.public_port}", DDTOP_KEY=KEY)
    assert seen.returncode == 0, seen.stderr
    assert "6/6" in seen.stdout
    refused = apart["login"].ddtop(
        "attach", "--hub", f"node0:{entry.public_port}", DDTOP_KEY="of-somebody-else-entirely"
    )
    assert refused.returncode == 3

    apart.cable("node2", blocked="both")
    lost = hub.finding("host-lost", 40)
    assert (lost["severity"], lost["ranks"], lost["victims"]) == ("critical", [4, 5], [0, 1, 2, 3])
    assert [one["kind"] for one in hub.diagnose()["findings"]] == ["host-lost"]
    apart.cable("node2")
    hub.until(lambda: not hub.diagnose()["findings"], 60, "silence after the cut")
    assert hub.moving(hub.diagnose()["iteration"] + 10)["health"] == "ok"


def test_where_a_stranger_has_the_port_the_hub_takes_the_next(apart):
    """Another service uses the very port: it accepts every connection and sends data that was not
    requested.
    """
    first, second, third, *_ = derived_ports(JOB, 29500)
    stranger = apart["node0"].start_command(
        [sys.executable, "-S", "-c", STRANGER, str(first), str(second)], ddtop=False
    )
    apart["node0"].until(lambda: apart["node0"].output(stranger)[0], 90, "a stranger")

    apart.plain("apart", DDTOP_KEY=KEY)

    hub = apart["node0"]
    hub.environment["DDTOP_KEY"] = KEY
    assert hub.moving(10)["findings"] == []
    assert [entry.public_port for entry in hub.entries()] == [third]


def test_the_hub_can_be_told_where_to_listen(apart):
    apart.plain("apart", DDTOP_KEY=KEY, DDTOP_HUB="node0:7777")
    hub = apart["node0"]
    hub.environment["DDTOP_KEY"] = KEY

    assert hub.moving(10)["findings"] == []
    (entry,) = hub.entries()
    assert entry.public_port == 7777


SERVER = """
import socket, sys, time
def rebuild_index():
    time.sleep(900)
one = socket.create_server(("", 0))
print(one.getsockname()[1], flush=True)
kept = one.accept()
rebuild_index()
"""


def test_a_rank_that_waits_for_a_server_on_another_host_says_what_that_one_does(net):
    address = net.folder / "address"
    net.torchrun("asks_afar", str(address), nodes=["node0", "node1"], ranks=1)
    view = net["login"]
    view.moving(10, ranks=2)
    server = net["node0"].start_command([sys.executable, "-c", SERVER])
    port = view.until(lambda: net["node0"].output(server)[0], 60, "a server").strip()
    address.write_text(f"{net['node0'].address} {port}")

    view.finding("not-in-collective", 60)
    finding = view.until(
        lambda: next(
            (one for one in view.diagnose()["findings"] if "rebuild_index" in one["summary"]), None
        ),
        60,
        "the line of the server",
    )

    assert finding["ranks"] == [1]
    assert f"it waits for an answer of {net['node0'].address}:{port}, which" in finding["summary"]
    assert "on node0) serves, which is asleep in rebuild_index" in finding["summary"]
    assert finding["advice"].startswith("repair python")
