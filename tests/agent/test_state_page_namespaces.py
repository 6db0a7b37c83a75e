"""Two containers that share /dev/shm (`--ipc=host`): neither deletes the other's pages."""

import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from ddtop import registry
from ddtop.agent.state_page import StatePage
from ddtop.relay.processes.sample import abandoned_files
if sys.argv[1] == "lives":
    page = StatePage(os.getpid(), registry.start_ticks(os.getpid()) or 0)
    print(page.path, flush=True)
    sys.stdin.read()
    page.path.unlink()
    page.path.parent.rmdir()
else:
    print(*abandoned_files(), sep="\\n")
"""


def in_a_container(word):
    """A process that has pid 1 in its own pid namespace."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", PROGRAM, word]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, check=False
    ).returncode,
    reason="no pid namespaces can be made here",
)
def test_a_relay_does_not_sweep_away_the_pages_of_another_containers_ranks(home):
    """Each is pid 1 of its own namespace, so the other's page looked abandoned."""
    rank = in_a_container("lives")
    try:
        path = rank.stdout.readline().strip()
        swept, _ = in_a_container("sweeps").communicate(timeout=60)
    finally:
        rank.communicate(timeout=60)

    assert path.endswith(".page")
    assert path not in swept.splitlines()
