"""`ddtop check` on two hosts that are network namespaces."""

import subprocess
import sys

import pytest

from tests import netns

if why := netns.unable():
    pytest.skip(why, allow_module_level=True)

DDTOP = [sys.executable, "-m", "ddtop", "check", "--"]
WORDS = [
    "--nnodes",
    "2",
    "--nproc-per-node",
    "1",
    "--master-addr",
    "node0",
    "--master-port",
    "29555",
]
END_S = 60.0


@pytest.fixture
def net(tmp_path):
    made = netns.Net(tmp_path / "net", ("node0", "node1"))
    yield made
    made.close()


def check(host, number, program, **variables):
    command = [*DDTOP, *netns.TORCHRUN, *WORDS, "--node-rank", str(number), program]
    return subprocess.Popen(
        [*host.inside, *command],
        env=host.environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_check_on_two_hosts_sees_both_and_one_bad_name(net):
    program = str(netns.PROGRAMS / "apart.py")

    both = [check(net[f"node{number}"], number, program) for number in (0, 1)]
    said = [one.communicate(timeout=END_S)[0] for one in both]

    for one, text in zip(both, said, strict=True):
        assert one.returncode == 0, text
        assert "2 ranks on 2 nodes have met" in text
        assert "ok   clock            node1 and node0 differ by less than" in text
        assert "ok   all_reduce gloo  2 ranks" in text

    net.resolve("node1", node0="127.0.0.1")
    alone = check(net["node1"], 1, program)
    text = alone.communicate(timeout=END_S)[0]

    assert alone.returncode == 1
    assert "node0 resolves to 127.0.0.1: each node would look for the others on itself" in text
