"""How a process ended, read by a process that is not its parent."""

import os
import select
import signal
import subprocess
import sys

import pytest

from ddtop.relay.processes import sample
from ddtop.relay.processes.sample import ProcessEnd, ending


def ended(action, reap):
    """A real child that ends; its parent reaps it before we look, or after."""
    child = os.fork()
    if child == 0:
        action()
        os._exit(99)
    pidfd = os.pidfd_open(child)
    try:
        assert select.select([pidfd], [], [], 10)[0]
        if reap:
            os.waitpid(child, 0)
        found = ending(pidfd, child)
    finally:
        os.close(pidfd)
        if not reap:
            os.waitpid(child, 0)
    return found


def knows_after_reaping():
    """PIDFD_GET_INFO is there: Linux 6.15 and later."""
    return ended(lambda: os._exit(0), reap=True).how == "pidfd"


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_an_exit_code_is_reported(code):
    found = ended(lambda: os._exit(code), reap=False)

    assert (found.code, found.signal) == (code, None)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV])
def test_a_signal_is_reported(number):
    def action():
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        os.kill(os.getpid(), number)

    found = ended(action, reap=False)

    assert (found.code, found.signal) == (None, number)


@pytest.mark.parametrize(
    "action", [lambda: os._exit(7), lambda: os.kill(os.getpid(), signal.SIGKILL)]
)
def test_after_its_parent_has_reaped_it_the_kernel_still_tells_or_it_is_unknown(action):
    """torchrun reaps within microseconds; a guess would be worse than no code."""
    found = ended(action, reap=True)

    assert found in (
        ProcessEnd(7, None, "pidfd"),
        ProcessEnd(None, 9, "pidfd"),
        ProcessEnd(None, None, "unknown"),
    )
    assert (found.how == "pidfd") == knows_after_reaping()


def test_where_the_kernel_does_not_tell_the_zombie_does(monkeypatch):
    monkeypatch.setattr(sample, "_from_pidfd", lambda _: None)

    assert ended(lambda: os._exit(7), reap=False) == ProcessEnd(7, None, "zombie")


def test_a_living_process_has_no_ending(monkeypatch):
    monkeypatch.setattr(sample, "_TRIES", 1)
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    )
    pidfd = os.pidfd_open(child.pid)
    try:
        assert ending(pidfd, child.pid) == ProcessEnd(None, None, "unknown")
    finally:
        os.close(pidfd)
        child.communicate()
