"""The thread of a rank that is judged: the main thread, or the one that trains for it."""

import pytest

from ddtop.feeds.outside.stacks import ThreadSeen, mark, read, training_thread
from ddtop.wire.records import COLLECTIVE, StackFrame, ThreadStack

LIB = "/usr/lib/python3.11"
SITE = f"{LIB}/site-packages"
MODULE = StackFrame("<module>", "/home/ada/train.py", 77)
BOOTSTRAP = StackFrame("_bootstrap", f"{LIB}/threading.py", 1002)
JOINS = StackFrame("join", f"{LIB}/threading.py", 1119)
RESULT = StackFrame("Future.result", f"{LIB}/concurrent/futures/_base.py", 451)
SHUTDOWN = StackFrame("_shutdown", f"{LIB}/threading.py", 1553)
SERVES = StackFrame("shutdown", f"{SITE}/torch/distributed/rpc/api.py", 385)
RAY = StackFrame("main_loop", f"{SITE}/ray/_private/worker.py", 948)
RAY_MODULE = StackFrame("<module>", f"{SITE}/ray/_private/workers/default_worker.py", 297)
REDUCES = StackFrame("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 3252)
STEP = StackFrame("step", "/home/ada/train.py", 40)
PREFETCHES = StackFrame("prefetch", "/home/ada/data.py", 12)
TAKES = StackFrame("_worker", f"{LIB}/concurrent/futures/thread.py", 81)
TIDS = {number: 5000 + number for number in range(1, 9)}


def main(*frames):
    return ThreadStack(frames, "MainThread", 1, main=True)


def thread(number, *frames):
    return ThreadStack((*frames, BOOTSTRAP), f"t{number}", number)


@pytest.mark.parametrize(
    "waiting",
    [
        main(JOINS, MODULE),
        main(RESULT, MODULE),
        main(SHUTDOWN),
        main(RAY, RAY_MODULE),
        main(JOINS, SERVES, MODULE),
    ],
    ids=["join", "executor", "end of the program", "ray", "rpc"],
)
def test_a_main_thread_that_waits_for_threads_is_judged_by_the_one_that_trains(waiting):
    idle, trains = thread(2, TAKES), thread(3, REDUCES, STEP)

    found = training_thread((waiting, idle, trains), TIDS)

    assert found == (trains, 5003)
    reading = read(ThreadSeen(trains.frames, state="S", torch=True))
    assert (reading.kind, reading.phase, reading.place.function) == (COLLECTIVE, "running", "step")
    assert [one.main for one in mark((waiting, idle, trains), trains)] == [False, False, True]


@pytest.mark.parametrize(
    "threads",
    [
        (main(STEP, MODULE), thread(2, REDUCES, PREFETCHES)),
        (main(JOINS, MODULE), thread(2, TAKES)),
        (main(JOINS, MODULE), thread(2, PREFETCHES), thread(3, STEP)),
        (main(JOINS, MODULE), thread(2, REDUCES, STEP), thread(3, REDUCES, STEP)),
        (main(JOINS, MODULE), thread(99, REDUCES, STEP)),
    ],
    ids=["main works", "idle pool", "two work", "two communicate", "kernel id not known"],
)
def test_in_doubt_the_main_thread_is_judged(threads):
    assert training_thread(threads, TIDS) == (threads[0], None)


def test_of_several_working_threads_the_one_that_communicates_trains():
    found = training_thread(
        (main(JOINS, MODULE), thread(2, PREFETCHES), thread(3, REDUCES, STEP)), TIDS
    )

    assert found is not None
    assert found[1] == 5003


def test_without_a_main_thread_nobody_is_judged():
    assert training_thread((thread(2, REDUCES, STEP),), TIDS) is None
