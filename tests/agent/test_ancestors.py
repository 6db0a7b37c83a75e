"""The command lines of the processes above a rank."""

from __future__ import annotations

import os
import subprocess
import sys

from ddtop import launch
from ddtop.agent.ancestors import ancestors
from ddtop.procfs import parent_of
from tests.launch.environments import HYDRA


def test_the_launcher_is_found_above_a_shell(tmp_path):
    """torchrun is the parent of the ranks, or their grandparent if a shell script is in between."""
    program = tmp_path / "torchrun"
    program.write_text(
        "import subprocess; subprocess.run(['sh', '-c', 'echo $$; read line; true'])"
    )
    torchrun = subprocess.Popen(
        [sys.executable, str(program), "--nnodes", "2", "--master-addr=node0", "train.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        shell = int(torchrun.stdout.readline())
        found = [launch.node_options({}, ancestors(pid))[:2] for pid in (torchrun.pid, shell)]
        assert found == [("node0:29500", 2)] * 2
    finally:
        torchrun.stdin.close()
        torchrun.wait(10)
        torchrun.stdout.close()


def test_hydras_ranks_find_the_proxy_above_them():
    """mpiexec > hydra_pmi_proxy --control-port HOST:PORT > sh > python."""
    code = (
        "import os, subprocess; print(os.getpid(), flush=True);subprocess.run(['sh', '-c', 'read"
        " line; true'])"
    )
    proxy = subprocess.Popen(
        [sys.executable, "-c", code, "--control-port", "node0:4711", "--rmk", "user"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert proxy.stdout.readline().strip() == str(proxy.pid).encode()
        start = launch.find_start(HYDRA, ancestors(proxy.pid))
        assert start == ("hydra-node0:4711", "4711", False)
    finally:
        proxy.stdin.close()
        proxy.wait(10)
        proxy.stdout.close()


def test_a_process_that_is_gone_ends_the_list():
    assert list(ancestors(1 << 22)()) == []
    assert list(ancestors(0)()) == []


def test_the_nearest_process_comes_first():
    lines = list(ancestors(os.getpid())())

    assert lines[0] == sys.orig_argv
    assert 1 <= len(lines) <= 4


def test_the_parent_of_a_process_is_read_from_proc():
    assert parent_of(os.getpid()) == os.getppid()
    assert parent_of(1 << 22) is None
