"""The processes beside the ranks: real children of a real parent."""

import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from ddtop import registry
from ddtop.procfs import children
from ddtop.relay.processes.family import HelperWatch
from ddtop.relay.processes.sample import Watched
from ddtop.wire.page import PageView
from ddtop.wire.records import Exit, Hello, LastException

PARENT = """
import os, subprocess, sys
started = [subprocess.Popen([sys.executable, "-c", "import os, sys; os.write(1, bytes([10])); sys.stdin.read()"], stdin=subprocess.PIPE) for _ in range(3)]
os.write(1, bytes([10]))
sys.stdin.read()
for one in started:
    one.kill()
    one.wait()
sys.exit(5)
"""  # noqa: E501


class Family:
    """A program with three children: two ranks and one helper."""

    def __init__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.program = subprocess.Popen([sys.executable, "-c", PARENT], **pipes)
        # A child that has only just called exec has no command line yet.
        assert [self.program.stdout.readline() for _ in range(4)] == [b"\n"] * 4
        *ranks, self.helper = children(self.program.pid)
        self.ranks = [self.rank(number, pid) for number, pid in enumerate(ranks)]

    def rank(self, number, pid, claim="init"):
        ticks = registry.start_ticks(pid)
        return Watched(
            Hello(
                "j",
                "r",
                0,
                number,
                1,
                2,
                "h",
                pid,
                ticks,
                claim=claim,
                launcher_pid=self.program.pid,
            ),
            -1,
        )

    def close(self):
        self.program.stdin.close()
        self.program.wait()
        self.program.stdout.close()


@pytest.fixture
def family(home):
    found = Family()
    yield found
    found.close()


@pytest.fixture
def beside():
    found = HelperWatch()
    yield found
    found.close()


def soon(beside, ranks, wanted):
    """The first look that finds this many processes."""
    for _ in range(500):
        found = beside.look(ranks, time.time_ns())
        if len(found) >= wanted:
            return found
        time.sleep(0.01)
    pytest.fail(f"{found} after 5 s")


def test_a_helper_that_a_signal_ended_is_reported(family, beside):
    assert beside.look(family.ranks, time.time_ns()) == ()
    os.kill(family.helper, signal.SIGKILL)

    (found,) = soon(beside, family.ranks, 1)

    assert (found.pid, found.signal, found.launcher) == (family.helper, 9, False)
    assert found.command.endswith("sys.stdin.read()")
    assert beside.changed
    assert beside.look(family.ranks, time.time_ns()) == (found,)
    assert not beside.changed


def test_the_exception_that_a_helper_left_is_reported_and_its_file_removed(family, beside, home):
    beside.look(family.ranks, time.time_ns())
    name = registry.helper_file(
        family.program.pid, family.helper, registry.start_ticks(family.helper)
    )
    said = LastException("ValueError", "no such table", 77)
    (home.runtime / name).write_bytes(msgspec.json.encode(said))
    os.kill(family.helper, signal.SIGTERM)

    (found,) = soon(beside, family.ranks, 1)

    assert (found.exception, found.unix_ns) == (said, 77)
    assert not (home.runtime / name).exists()


def entered(ranks):
    """These ranks are inside init_process_group, as their state pages say."""
    for one in ranks:
        one.page = PageView(0, None, 0, None, init_since_mono_ns=1)
    return ranks


def test_a_child_that_was_killed_before_any_rank_joined_is_reported_while_ranks_wait(
    family, beside
):
    """The parent has not waited for it, so it is a zombie, which has no command line."""
    os.kill(family.helper, signal.SIGKILL)
    while registry.start_ticks(family.helper) is not None:
        time.sleep(0.01)

    assert beside.look(family.ranks, time.time_ns()) == ()
    (found,) = beside.look(entered(family.ranks), time.time_ns())

    assert (found.pid, found.signal, found.launcher) == (family.helper, 9, False)
    assert beside.look(family.ranks, time.time_ns()) == (found,)


def test_a_rank_that_was_killed_is_no_process_beside_the_ranks(family, beside):
    beside.look(entered(family.ranks), time.time_ns())
    dead, living = family.ranks
    os.kill(dead.hello.pid, signal.SIGKILL)
    while registry.start_ticks(dead.hello.pid) is not None:
        time.sleep(0.01)

    assert beside.look([living], time.time_ns()) == ()


def test_the_end_of_a_rank_that_started_the_ranks_is_that_of_their_program(family, beside):
    """torchrun gives RANK=0 to a script that calls mp.spawn. The ranks it starts may be gone before
    anyone looks."""
    beside.on_hello(family.ranks[0].hello)
    error = LastException("KeyError", "'best_loss'", 77)
    end = Exit(0, family.program.pid, 1, None, None, 2, "pidfd", exception=error)
    beside.rank_ended(end, 99)

    (found,) = beside.look([], time.time_ns())

    assert (found.pid, found.unix_ns, found.code, found.launcher) == (end.pid, 99, 1, True)
    assert found.exception == error


@pytest.mark.parametrize("of_a_rank", [True, False])
def test_the_end_of_a_rank_and_a_good_end_are_none_of_a_program(family, beside, of_a_rank):
    beside.on_hello(family.ranks[0].hello)
    pid = family.ranks[1].hello.pid if of_a_rank else family.program.pid
    beside.rank_ended(Exit(0, pid, int(of_a_rank), None, None, 2, "pidfd"), 99)

    assert beside.look(family.ranks, time.time_ns()) == ()


def test_the_exit_code_of_the_program_that_started_the_ranks_is_reported(family, beside):
    beside.look(family.ranks, time.time_ns())
    family.program.stdin.close()

    # The ranks are still watched as ranks. The helper's end is reported too.
    (launcher,) = [one for one in soon(beside, (), 2) if one.launcher]

    assert (launcher.pid, launcher.code) == (family.program.pid, 5)


def test_beside_ranks_of_a_launcher_nothing_is_watched(family, beside):
    """torchrun's own exit code is 1 after a cancellation too."""
    ranks = [family.rank(0, family.ranks[0].hello.pid, claim="env")]
    beside.look(ranks, time.time_ns())
    os.kill(family.helper, signal.SIGKILL)
    while registry.start_ticks(family.helper) is not None:
        time.sleep(0.01)

    assert beside.look(ranks, time.time_ns()) == ()


def test_who_becomes_a_rank_is_no_helper(family, beside):
    beside.look(family.ranks, time.time_ns())
    beside.look([*family.ranks, family.rank(2, family.helper)], time.time_ns())
    os.kill(family.helper, signal.SIGKILL)
    while registry.start_ticks(family.helper) is not None:
        time.sleep(0.01)

    assert beside.look(family.ranks, time.time_ns()) == ()
