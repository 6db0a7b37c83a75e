"""Ranks that end while a viewer looks, and ranks that had ended before."""

import os
import subprocess
import sys
import time

import pytest

from ddtop import registry
from ddtop.feeds.outside.jobs import Departed
from ddtop.feeds.outside.look import STARTED_S, DepartedRanks, take_ended
from ddtop.relay.processes import sample
from ddtop.wire.records import COLLECTIVE, Hello, OutsideLook

BY_TORCHRUN = Departed(1, by_torchrun=True)
DEFAULT = "import sys; print(flush=True); sys.stdin.read()"
CATCHES = f"import signal; signal.signal(signal.SIGTERM, lambda *_: None); {DEFAULT}"
ASLEEP = OutsideLook(COLLECTIVE, "all_reduce", 1, True)
LONG_AGO = time.time_ns() - int((STARTED_S + 5) * 1e9)


@pytest.fixture
def process():
    """Starts a Python that runs until the test ends."""
    started = []

    def start(code):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        one = subprocess.Popen([sys.executable, "-c", code], **pipes)
        started.append(one)
        one.stdout.readline()
        return one

    yield start
    for one in started:
        one.kill()
        one.communicate()


def test_a_rank_of_torchrun_without_a_process_has_left_when_the_others_are_old(process):
    own = process(DEFAULT)

    assert DepartedRanks([BY_TORCHRUN], [own.pid]).take_due({}, LONG_AGO) == [BY_TORCHRUN]
    assert DepartedRanks([BY_TORCHRUN], [own.pid]).take_due({}, time.time_ns()) == []


def test_a_rank_is_departed_once_the_others_communicate(process):
    departed = DepartedRanks([Departed(1)], [process(DEFAULT).pid])

    assert departed.take_due({0: None}, LONG_AGO) == []
    assert departed.take_due({0: ASLEEP}, LONG_AGO) == [Departed(1)]
    assert departed.take_due({0: ASLEEP}, LONG_AGO) == []


def test_others_that_outlive_sigterm_say_nothing_of_how_it_left(process):
    """torchrun sends SIGTERM to all ranks when one has failed, so a rank that is gone need not have
    exited normally.
    """
    departed = DepartedRanks([BY_TORCHRUN], [process(CATCHES).pid])

    (found,) = departed.take_due({0: ASLEEP}, LONG_AGO)

    assert (found.rank, found.by_torchrun) == (1, False)


def test_who_has_ended_is_known_at_once(process):
    """The ranks in the order of their ends: the first one is the cause."""
    one, other = process(DEFAULT), process(DEFAULT)
    watched = [watch(rank, each.pid) for rank, each in enumerate((one, other))]
    assert take_ended(watched) == []

    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)

    assert [each.hello.rank for each in take_ended(watched)] == [1]
    for each in watched:
        sample.forget(each)


def watch(rank, pid):
    ticks = registry.start_ticks(pid)
    hello = Hello("job", "outside", 0, rank, rank, 2, "host", pid, ticks, script="train")
    return sample.watch(hello, time.monotonic_ns())
