"""What a thread of another Python waits for inside its process, by its stacks and its text."""

import os
import threading

import pytest

from ddtop.procfs import names_in
from ddtop.relay.processes.inside import Inside, followed, inside
from ddtop.relay.processes.sockets import sleeping_in
from ddtop.wire.records import StackFrame, ThreadStack
from tests.relay.processes.once import once

PROGRAM = """\
import threading, sys, time
guard, inner, turn = threading.Lock(), threading.Lock(), threading.Condition()
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
def rests(begun):
    with inner:
        begun.set(); time.sleep(99)
def outer(begun):
    with guard:
        begun.set(); shelf(1)
def shelf(n):
    with inner:
        return n
def through(*first):
    for target in (rests, outer)[len(first):]:
        begun = threading.Event()
        threading.Thread(target=target, args=(begun,), daemon=True).start()
        begun.wait()
    shard(1)
def back():
    with inner:
        through(1)
class Shelf:
    full = threading.Event()
    def take(self):
        self.full.wait()
    def fill(self):
        time.sleep(99); self.full.set()
def takes():
    Shelf().take()
globals()[sys.argv[1]]()
"""
SHARD = ("shard", 4)
FUTURE = ("result", 446, "/usr/lib/python3.12/concurrent/futures/_base.py")
WAITER = ("wait", 327, "/usr/lib/python3.12/threading.py")
WORKER = ("_worker", 83, "/usr/lib/python3.12/concurrent/futures/thread.py")


@pytest.fixture
def waits(start, tmp_path):
    """What the main thread of this program waits for. `frames`: of each thread, its functions and
    their lines, innermost first; of libraries also the file."""
    path = tmp_path / "index.py"
    path.write_text(PROGRAM)
    os.utime(path, (0, 0))

    def run(name, *frames, calls=("futex",), look=inside, comes=True):
        code = f"import sys, runpy; sys.argv = ['', {name!r}]; runpy.run_path({str(path)!r})"
        pid = start(code).pid
        once(lambda: sleeping_in(pid).call in calls)
        threads = tuple(
            ThreadStack(
                tuple(
                    StackFrame(at, *(of or [str(path) if line else threading.__file__]), line or 1)
                    for at, line, *of in one
                ),
                f"thread {n}",
                n,
            )
            for n, one in enumerate(frames)
        )

        def seen():
            return look(pid, threads[0], threads, dict(enumerate(map(int, names_in(pid, "task")))))

        # It may wait for a moment in another futex first.
        return once(lambda: seen() != Inside() and seen()) if comes else seen()

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
    assert waits("alone", (SHARD, ("alone", 19)), (("refresh", 9),), comes=False) == Inside()


def test_the_call_in_which_it_waits_for_another_thread_is_told(waits):
    (link,), tid, _ = waits("wakes", (("wait", None), ("wakes", 17)))

    assert (link.resource, link.named, link.does, tid) == (
        "object",
        "threading.Event().wait()",
        "call",
        0,
    )


def test_a_lock_that_blocks_the_event_loop_of_the_only_thread_is_told_so(waits):
    """A task of that loop may have it."""
    loop = ("BaseEventLoop._run_once", 1919, "/usr/lib/python3.12/asyncio/base_events.py")
    (link,), _, _ = waits("alone", (("alone", 19), loop))

    assert (link.named, link.does, link.nobody) == ("guard", "blocks", True)


@pytest.mark.parametrize(
    ("other", "who"), [(("Shelf.fill", 46), "thread 1"), (("Shelf.take", 44), None)]
)
def test_the_line_that_would_end_a_wait_is_told_and_the_thread_that_comes_to_it(waits, other, who):
    (link,), _, _ = waits("takes", (("wait", None), ("Shelf.take", 44), ("takes", 48)), (other,))

    assert (link.named, link.who, link.nobody) == ("self.full.wait()", who, who is None)
    assert (link.does, link.at.function) == ("time.sleep(99); self.full.set()", "fill")


def test_a_thread_that_waits_for_no_lock_has_none(waits):
    calls = ("clock_nanosleep", "select", "pselect6")

    assert waits("sleeps", (("sleeps", 22),), calls=calls, comes=False) == Inside()


@pytest.mark.parametrize(("innermost", "waits"), [("serve_client", True), ("recv", False)])
def test_a_manager_waits_for_an_object_where_it_does_not_wait_for_a_client(innermost, waits):
    files = {"recv": "connection.py", "serve_client": "managers.py"}
    frames = [
        StackFrame(f"Server.{name}", f"/lib/python3.11/multiprocessing/{files[name]}", 7)
        for name in dict.fromkeys((innermost, "serve_client"))
    ]
    found = inside(os.getpid(), None, (ThreadStack(tuple(frames), "", 1),), {})

    assert found.of_client is waits


def test_the_thread_that_has_a_lock_may_wait_for_that_of_another_one(waits):
    outer = (("shelf", 30), ("outer", 28))
    links, tid, _ = waits(
        "through", (SHARD, ("through", 37)), (("rests", 25),), outer, look=followed
    )

    assert [(one.named, one.who, one.circle) for one in links] == [
        ("guard", "thread 2", False),
        ("inner", "thread 1", False),
    ]
    assert tid


def test_two_threads_that_have_the_lock_of_each_other_are_a_circle(waits):
    outer = (("shelf", 30), ("outer", 28))
    main = (SHARD, ("through", 37), ("back", 40))
    links, tid, _ = waits("back", main, outer, look=followed)

    assert [(one.named, one.who, one.circle) for one in links] == [
        ("guard", "thread 1", False),
        ("inner", "thread 0", True),
    ]
    assert tid == 0


def test_tasks_of_a_pool_that_all_wait_for_tasks_have_no_thread_left(waits):
    task = (WAITER, FUTURE, ("shard", 4), WORKER)
    (link,), _, _ = waits("alone", (WAITER, FUTURE, ("alone", 19)), task, task)

    assert (link.named, link.does, link.nobody) == ("future", "starved", True)


@pytest.mark.parametrize(
    "other",
    [(WORKER,), (("sleeps", 22), WORKER), (("run", 9, "/lib/concurrent/futures/process.py"),)],
    ids=["a thread is free", "a task runs", "a process may compute it"],
)
def test_a_future_that_another_thread_may_finish_is_only_told_as_a_call(waits, other):
    task = (WAITER, FUTURE, ("shard", 4), WORKER)
    (link,), _, _ = waits("alone", (WAITER, FUTURE, ("alone", 19)), task, other)

    assert (link.named, link.does) == ("guard.acquire(); shard(1)", "call")
