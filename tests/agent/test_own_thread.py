"""Other tools can recognise the agent's threads, and the CPU time of these threads is counted."""

import os
import threading
import time
from pathlib import Path

from ddtop.agent.own_thread import OwnThread


def names():
    tasks = Path("/proc/self/task").iterdir()
    return {int(task.name): (task / "comm").read_text().strip() for task in tasks}


def test_the_kernel_calls_the_agents_thread_ddtop_and_all_others_as_before():
    before, seen, done = names(), threading.Event(), threading.Event()
    thread = OwnThread(lambda: (seen.set(), done.wait()))
    thread.start()
    seen.wait()
    during = names()
    done.set()

    assert [name for tid, name in during.items() if tid not in before] == ["ddtop"]
    assert during[os.getpid()] == before[os.getpid()]


def test_a_thread_that_cannot_be_named_works_all_the_same(monkeypatch):
    def missing(*_arguments):
        raise FileNotFoundError

    worked = threading.Event()
    monkeypatch.setattr("builtins.open", missing)
    OwnThread(worked.set).start()

    assert worked.wait(10)


def test_the_cpu_time_of_a_thread_that_has_ended_is_counted():
    """Another thread reads torch's entries: 30 ms that no other counter shows."""

    def compute():
        until = time.thread_time_ns() + 5_000_000
        while time.thread_time_ns() < until:
            pass

    before = OwnThread.ended_cpu_ns
    thread = OwnThread(compute)
    thread.start()

    assert thread.join(10)
    assert OwnThread.ended_cpu_ns - before >= 5_000_000
