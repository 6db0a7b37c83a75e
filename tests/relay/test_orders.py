"""What a viewer may order, and what is refused."""

import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop import registry
from ddtop.relay.processes.sample import Watched
from ddtop.relay.requests import OrderError, ranks_of, send_signal
from ddtop.wire.records import Hello
from ddtop.words.sentences import rank_list


@given(st.sets(st.integers(0, 99_999), min_size=1, max_size=50))
def test_ranks_come_back_as_they_were_written(ranks):
    assert ranks_of(rank_list(ranks)) == ranks


@given(st.text(max_size=30))
def test_any_text_is_a_list_of_ranks_or_refused(text):
    try:
        found = ranks_of(text)
    except OrderError:
        return
    assert found is None or all(rank >= 0 for rank in found)


@pytest.mark.parametrize("text", ["x", "1,,2", "-1", "1-", "0x3", "999999", "1;2", "٣"])
def test_what_is_no_list_of_ranks_is_refused(text):
    with pytest.raises(OrderError):
        ranks_of(text)


@pytest.fixture
def watched():
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.readline()"], stdin=subprocess.PIPE
    )
    hello = Hello("j", "r", 0, 3, 3, 4, "h", child.pid, registry.start_ticks(child.pid) or 0)
    pidfd = os.pidfd_open(child.pid)
    yield Watched(hello, pidfd, spoke=True), child
    os.close(pidfd)
    child.kill()
    child.communicate()


def test_a_signal_reaches_the_rank_that_was_meant(watched):
    one, child = watched

    said = send_signal(one, ("3", str(child.pid), str(int(signal.SIGTERM))))

    assert said == f"sent SIGTERM to rank 3 (pid {child.pid})"
    assert child.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("rank", "pid", "number"),
    [
        ("2", None, "15"),
        ("3", "1", "15"),
        ("3", None, "0"),
        ("3", None, "99"),
        ("3", None, "-9"),
        ("3", None, "KILL"),
        ("3", None, "9.0"),
        ("3", None, "\x1b[2J"),
        ("3", None, ""),
        ("3", None, str(1 << 31)),
        ("", None, "9"),
    ],
)
def test_an_order_that_does_not_fit_the_process_is_refused(watched, rank, pid, number):
    """The rank, the pid or the signal is not the one that the person saw when deciding."""
    one, child = watched

    with pytest.raises(OrderError):
        send_signal(one, (rank, pid or str(child.pid), number))

    assert child.poll() is None


def test_a_pid_that_was_given_to_another_process_is_not_signalled(watched):
    one, child = watched
    older = Hello("j", "r", 0, 3, 3, 4, "h", child.pid, one.hello.start_ticks - 1)

    with pytest.raises(OrderError, match="is another process now"):
        send_signal(Watched(older, one.pidfd, spoke=True), ("3", str(child.pid), "15"))

    assert child.poll() is None


def test_a_process_that_has_not_said_hello_itself_is_not_signalled(watched):
    """The previous relay wrote it to its file, and another process may have sent it."""
    one, child = watched

    with pytest.raises(OrderError, match="has not itself reported"):
        send_signal(Watched(one.hello, one.pidfd), ("3", str(child.pid), "15"))

    assert child.poll() is None


def test_pid_1_is_never_signalled(watched):
    """It would end a container. The descriptor is that of a child here."""
    one, child = watched
    first = Hello("j", "r", 0, 3, 3, 4, "h", 1, registry.start_ticks(1) or 0)

    with pytest.raises(OrderError, match="pid 1 is never signalled"):
        send_signal(Watched(first, one.pidfd, spoke=True), ("3", "1", "15"))

    assert child.poll() is None


def test_a_rank_that_is_gone_is_not_signalled():
    with pytest.raises(OrderError, match="not running"):
        send_signal(None, ("3", "4711", "15"))
