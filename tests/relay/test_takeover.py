"""A relay that follows a killed one must know which ranks that one watched."""

import time

import pytest

from ddtop import journal, registry
from ddtop.wire import frames
from ddtop.wire.records import Exit, Hello, HostState
from tests.relay.stage import Stage, is_a


def sealed(record, rank, pid):
    return frames.seal(record, sender="h", unix_ns=time.time_ns(), mono_ns=0, rank=rank, pid=pid)


@pytest.fixture
def stage(home):
    """A relay whose predecessor left a roster: rank 1, alive, and the exit of rank 0."""
    found = Stage.__new__(Stage)
    found.links, found.children = [], []
    import subprocess
    import sys

    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.readline()"], stdin=subprocess.PIPE
    )
    hello = Hello(
        "train",
        "r1",
        0,
        1,
        1,
        2,
        "h",
        child.pid,
        registry.start_ticks(child.pid) or 0,
        script="train",
    )
    gone = Exit(rank=0, pid=999_999, code=None, signal=9, oom=None, order=0, how="pidfd")
    journal.write(
        registry.roster_path("train", "r1"),
        [sealed(hello, 1, child.pid), sealed(gone, 0, 999_999), b"not a frame"],
    )
    Stage.__init__(found, home)
    found.children.append(child)
    yield found
    found.close()


def test_a_rank_that_cannot_say_hello_again_is_watched_by_the_next_relay(stage):
    """The culprit is stopped and silent: the verdict was "never seen"."""
    viewer = stage.viewer()
    host = stage.heard(viewer, is_a(HostState))[-1]

    assert [process.pid for process in host.processes] == [stage.children[0].pid]
    assert host.garbled == 1


def test_the_exits_that_the_first_relay_saw_are_told_by_the_next(stage):
    viewer = stage.viewer()
    found = stage.heard(viewer, is_a(Exit))[-1]

    assert (found.rank, found.signal) == (0, 9)


def test_a_relay_that_ends_in_good_order_leaves_no_roster(home):
    found = Stage(home)
    found.rank()
    viewer = found.viewer()
    found.heard(viewer, is_a(Hello))
    found.close()

    assert list(home.runtime.glob("*.roster")) == []
