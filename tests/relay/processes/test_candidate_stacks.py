"""Where a candidate without progress is: real processes, read by the real py-spy."""

import subprocess
import sys
import time

import pytest

from ddtop.relay.processes import pyspy
from ddtop.relay.processes.candidates import CandidateStacks
from ddtop.wire.records import ProcessState

SLEEPER = """
import sys, time
def fetch_config():
    print("there", flush=True)
    time.sleep(600)
fetch_config()
"""


@pytest.fixture
def sleeper(tmp_path):
    program = tmp_path / "late.py"
    program.write_text(SLEEPER)
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"there\n"
        yield process
        process.kill()
    for reader in pyspy._unreaped:
        reader.wait()
    pyspy._unreaped.clear()


def read(stacks, pid, switches=3, state="S", looks=200):
    """Look until there are frames, as the relay does each second."""
    for _ in range(looks):
        frames = stacks.look(ProcessState(None, pid, state, switches=switches))
        if frames:
            return frames
        time.sleep(0.05)
    return ()


def test_the_line_of_a_candidate_that_sleeps_is_read(sleeper):
    """Rank 3 of a forked start slept in its own code, and only its system call was known."""
    frames = read(CandidateStacks(), sleeper.pid)

    assert [frame.function for frame in frames] == ["fetch_config", "<module>"]
    assert frames[0].file.endswith("late.py")


def test_a_candidate_that_wakes_between_two_looks_is_not_read(sleeper):
    stacks = CandidateStacks()

    frames = [stacks.look(ProcessState(None, sleeper.pid, "S", switches=at)) for at in range(5)]

    assert frames == [()] * 5
    assert stacks._reading_count() == 0


def test_a_candidate_that_runs_is_not_read(sleeper):
    stacks = CandidateStacks()

    assert read(stacks, sleeper.pid, state="R", looks=5) == ()
    assert stacks._reading_count() == 0


def test_a_candidate_that_is_none_any_more_is_forgotten(sleeper):
    stacks = CandidateStacks()
    assert read(stacks, sleeper.pid)

    stacks.keep(())

    assert stacks.look(ProcessState(None, sleeper.pid, "S", switches=3)) == ()
