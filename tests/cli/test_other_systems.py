"""Without Linux only a viewer through ssh works: this Python calls itself darwin."""

import os
from contextlib import closing

import pytest

from ddtop.cli import cli
from ddtop.cli.errors import Trait, has
from tests import hosts
from tests.running import python

MAC = """
import fcntl, os, select, signal, socket, sys
import psutil  # which has a version of its own for macOS
for module, names in {
    os: "pidfd_open sched_getaffinity memfd_create O_PATH O_TMPFILE eventfd splice prlimit",
    select: "epoll",
    signal: "pidfd_send_signal SIGRTMIN SIGRTMAX sigwaitinfo sigtimedwait",
    socket: "SO_PEERCRED SCM_CREDENTIALS SOCK_SEQPACKET",
    fcntl: "F_SETPIPE_SZ F_ADD_SEALS",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"
sys.argv = ["ddtop", *sys.argv[1:]]
from ddtop.__main__ import main
main()
"""


ON_LINUX = [name for name in cli.commands if has(cli.load(name), Trait.ON_LINUX)]


def on_a_mac(*words, **variables):
    return python("-c", MAC, *words, check=False, env=os.environ | variables)


def test_a_viewer_through_ssh_works(here, tmp_path, home):
    with closing(hosts.host(hosts.FAKE, tmp_path / "there", home.state, home.runtime)) as there:
        done = on_a_mac("attach", "--ssh", "there", **there.environment)

        assert done.returncode == 0, done.stderr
        assert "1/2 ranks" in done.stdout


@pytest.mark.parametrize(
    "words", [(), ("status",), ("diagnose", "train"), *((one,) for one in ON_LINUX)]
)
def test_what_needs_linux_says_so_and_what_works_instead(home, words):
    done = on_a_mac(*words)

    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("ddtop watches jobs on Linux only. From here: ddtop attach --ssh")


@pytest.mark.parametrize("words", [("--help",), ("explain", "cancelled"), ("config", "show")])
def test_what_needs_no_host_works(home, words):
    done = on_a_mac(*words)

    assert (done.returncode, done.stderr) == (0, "")
