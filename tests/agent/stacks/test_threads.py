"""All threads' stacks, taken inside the process."""

import gc
import threading
import weakref

import pytest

from ddtop.agent.stacks import dump
from ddtop.agent.stacks.frames import FrameReader


def wait_in_user_code(ready, done):
    ready.set()
    done.wait()


@pytest.fixture
def other():
    """A thread that waits in ddtop's own code."""
    ready, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=wait_in_user_code, args=(ready, done), name="loader-7")
    thread.start()
    ready.wait()
    yield thread
    done.set()
    thread.join()


def taken_elsewhere():
    """It takes the stacks as the agent does: from a thread that is itself left out."""
    found = []
    thread = threading.Thread(
        target=lambda: found.append(dump.take("q", 3, 4711, FrameReader(), True)), name="ddtop"
    )
    thread.start()
    thread.join()
    return found[0]


def test_all_threads_but_the_taker_are_there_main_first_innermost_first(other):
    found = taken_elsewhere()

    assert (found.request, found.of_rank, found.pid, found.method) == ("q", 3, 4711, "agent")
    assert found.automatic is True
    assert [thread.main for thread in found.threads] == [True] + [False] * (len(found.threads) - 1)
    assert "ddtop" not in [thread.name for thread in found.threads]
    (theirs,) = [thread for thread in found.threads if thread.name == "loader-7"]
    names = [frame.function for frame in theirs.frames]
    assert names.index("wait_in_user_code") > 0, "the event's own frames lie inside"
    assert names[-1].endswith("_bootstrap")


def test_own_code_and_library_code_are_distinguished(other):
    (theirs,) = [thread for thread in taken_elsewhere().threads if thread.name == "loader-7"]
    judged = {frame.function.rpartition(".")[2]: frame.user for frame in theirs.frames}

    assert judged["wait_in_user_code"] is True
    assert judged["_bootstrap"] is False


def test_a_line_can_be_looked_up_in_its_file(other):
    (theirs,) = [thread for thread in taken_elsewhere().threads if thread.name == "loader-7"]
    (frame,) = [frame for frame in theirs.frames if frame.function == "wait_in_user_code"]

    with open(frame.file) as file:
        assert "done.wait()" in file.readlines()[frame.line - 1]


def test_a_deep_stack_keeps_its_innermost_frames_and_counts_the_rest():
    def deeper(left):
        return taken_elsewhere() if not left else deeper(left - 1)

    main = deeper(dump.FRAMES_MAX + 50).threads[0]

    assert len(main.frames) == dump.FRAMES_MAX
    assert main.omitted > 50


def test_no_frame_outlives_the_taking():
    """A frame's locals hold tensors: gigabytes would stay until the next look."""

    class Tensor:
        pass

    def step():
        tensor = Tensor()
        alive = weakref.ref(tensor)
        taken_elsewhere()
        return alive

    alive = step()
    gc.collect()

    assert alive() is None


def test_it_says_how_long_it_took():
    found = taken_elsewhere()

    assert found.pause_ns is not None
    assert 0 < found.pause_ns < 10**9
