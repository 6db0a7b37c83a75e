"""Which process made a connection: the kernel's record from when it was made."""

import os
import subprocess
import sys

import pytest

from ddtop import registry
from ddtop.link.rank_listener import Credentials
from ddtop.relay.processes.ranks import Peer, peer_of


def test_a_process_of_our_namespace_speaks_for_itself_only():
    me = peer_of(Credentials(os.getpid(), os.getuid()))

    assert me == Peer(os.getpid(), registry.start_ticks(os.getpid()), False)
    assert [me.may_say(pid) for pid in (os.getpid(), os.getppid(), 0, -1)] == [
        True,
        False,
        False,
        False,
    ]


def test_pid_0_is_shown_under_any_number_and_is_nobody_here():
    """It lives in a pid namespace that cannot be seen from here."""
    other = peer_of(Credentials(0, os.getuid()))

    assert other.foreign
    assert other.may_say(17)


def test_a_process_of_another_pid_namespace_speaks_under_its_own_number():
    """In this namespace its number belongs to another process."""
    code = "import sys; print(flush=True); sys.stdin.readline()"
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", code]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if child.stdout.readline() != b"\n":
            pytest.skip("no pid namespace can be made here")
        with open(f"/proc/{child.pid}/task/{child.pid}/children") as children:
            inside = int(children.read())
        other = peer_of(Credentials(inside, os.getuid()))
    finally:
        child.communicate(b"\n")

    assert other == Peer(1, None, True)
    assert other.may_say(1)
    assert not other.may_say(inside)


def test_a_process_that_is_gone_again_is_ours_without_a_start_time():
    """Its last records are still read, but its process is watched no more."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()

    assert peer_of(Credentials(child.pid, os.getuid())) == Peer(child.pid, None, False)
