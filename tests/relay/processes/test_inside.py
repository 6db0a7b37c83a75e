"""What a thread of another Python waits for inside its process, by its stacks and its text."""

import os
import threading

import pytest

from ddtop.relay.processes.inside import Inside, inside
from ddtop.relay.processes.sockets import sleeping_in
from ddtop.wire.records import StackFrame, ThreadStack
from tests.relay.processes.once import once

PROGRAM = """\
import threading, sys, time
guard, turn = threading.Lock(), threading.Condition()
def shard(n):
    with guard:
        return n
def twice():
    with guard:
        shard(1)
def refresh(begun):
    with guard:
        begun.set(); time.sleep(99)
def other():
    begun = threading.Event()
    threading.Thread(target=refresh, args=(begun,), daemon=True).start()
    begun.wait(); shard(1)
def wakes():
    threading.Event().wait()
def alone():
    guard.acquire(); shard(1)
def sleeps():
    with guard:
        time.sleep(99)
globals()[sys.argv[1]]()
"""
SHARD = ("shard", 4)


@pytest.fixture
def waits(start, tmp_path):
    """What the main thread of this program waits for. `frames`: of each thread, its functions and
    their lines, innermost first."""
    path = tmp_path / "index.py"
    path.write_text(PROGRAM)
    os.utime(path, (0, 0))

    def run(name, *frames, calls=("futex",)):
        code = f"import sys, runpy; sys.argv = ['', {name!r}]; runpy.run_path({str(path)!r})"
        pid = start(code).pid
        once(lambda: sleeping_in(pid).call in calls)
        threads = tuple(
            ThreadStack(
                tuple(
                    StackFrame(at, str(path) if line else threading.__file__, line or 1)
                    for at, line in one
                ),
                f"thread {n}",
                n,
            )
            for n, one in enumerate(frames)
        )
        return inside(pid, threads[0], threads, {0: pid, 1: pid + 1})

    return run


def test_a_lock_that_its_thread_has_taken_before_is_a_circle(waits):
    (link,), tid, _ = waits("twice", (SHARD, ("twice", 8)))

    assert (link.resource, link.named, link.does, link.circle) == ("lock", "guard", "twice", True)
    assert (link.place.function, link.place.line, tid) == ("twice", 8, 0)


def test_the_other_thread_that_is_inside_a_with_of_the_lock_has_it(waits):
    (link,), tid, _ = waits("other", (SHARD, ("other", 15)), (("refresh", 11),))

    assert (link.named, link.who, link.place.function) == ("guard", "thread 1", "refresh")
    assert tid


def test_of_a_lock_that_no_thread_is_seen_to_have_nothing_is_said(waits):
    """A fork may have copied it as taken."""
    assert waits("alone", (SHARD, ("alone", 19)), (("refresh", 9),)) == Inside()


def test_the_call_in_which_it_waits_for_another_thread_is_told(waits):
    (link,), tid, _ = waits("wakes", (("wait", None), ("wakes", 17)))

    assert (link.resource, link.named, link.does, tid) == (
        "object",
        "threading.Event().wait()",
        "call",
        0,
    )


def test_a_thread_that_waits_for_no_lock_has_none(waits):
    calls = ("clock_nanosleep", "select", "pselect6")

    assert waits("sleeps", (("sleeps", 22),), calls=calls) == Inside()


@pytest.mark.parametrize(("innermost", "waits"), [("serve_client", True), ("recv", False)])
def test_a_manager_waits_for_an_object_where_it_does_not_wait_for_a_client(innermost, waits):
    files = {"recv": "connection.py", "serve_client": "managers.py"}
    frames = [
        StackFrame(f"Server.{name}", f"/lib/python3.11/multiprocessing/{files[name]}", 7)
        for name in dict.fromkeys((innermost, "serve_client"))
    ]
    found = inside(os.getpid(), None, (ThreadStack(tuple(frames), "", 1),), {})

    assert found.of_client is waits
