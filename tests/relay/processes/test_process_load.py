"""The effects of the host's load on a process: this test's own."""

import os
import resource
import subprocess
import sys
import threading
import time

import pytest

from ddtop import procfs
from ddtop.relay.processes import sample
from ddtop.relay.processes.sample import stat_fields


def look(watch=None):
    return sample.look_at_process(
        watch or sample.ProcessWatch(), os.getpid(), stat_fields(os.getpid())
    )


def test_a_process_that_computes_has_run_and_its_limits_are_its_own():
    watch = sample.ProcessWatch()
    before = look(watch)
    until = time.process_time() + 0.02
    while time.process_time() < until:
        pass
    after = look(watch)

    assert after.run_delay_ns >= before.run_delay_ns
    assert after.cpus_count == len(os.sched_getaffinity(0))
    assert after.files_limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 0 < after.files <= len(os.listdir("/proc/self/fd")) + 1


LIMITED = """
import resource, sys
for limit, most in ((resource.RLIMIT_AS, 4 << 30), (resource.RLIMIT_DATA, 3 << 30)):
    resource.setrlimit(limit, (most, most))
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_limits_of_a_process_are_read_with_what_it_uses_of_them():
    child = subprocess.Popen(
        [sys.executable, "-c", LIMITED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout.readline() == b"ready\n"
    found = sample.look_at_process(sample.ProcessWatch(), child.pid, stat_fields(child.pid)).limits
    child.communicate()

    by_name = {one.name: one for one in found}
    assert by_name["RLIMIT_AS"].limit == 4 << 30
    assert by_name["RLIMIT_DATA"].limit == 3 << 30
    assert 1 << 20 < by_name["RLIMIT_DATA"].used <= by_name["RLIMIT_AS"].used < 4 << 30


def test_a_process_without_limits_has_none_of_memory():
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY

    assert not {one.name for one in look().limits} & {"RLIMIT_AS", "RLIMIT_DATA"}


def test_of_a_process_that_is_gone_nothing_is_measured():
    found = sample.look_at_process(sample.ProcessWatch(), 1 << 30, ["0"] * 30)

    assert (found.run_delay_ns, found.cpus, found.files) == (None, None, None)


def test_what_other_threads_wait_for_a_cpu_only_grows_though_threads_end(monkeypatch):
    """When a pool of threads ends, its counters disappear from /proc."""
    # The threads that other tests have left here may be more than are looked at.
    monkeypatch.setattr(sample, "THREADS_MAX", 1 << 16)
    watch, go_on = sample.ProcessWatch(), threading.Event()

    def compute():
        while not go_on.is_set():
            sum(range(1000))

    helpers = [threading.Thread(target=compute) for _ in range(4)]
    for one in helpers:
        one.start()
    first = look(watch).threads_delay_ns
    go_on.set()
    ended = {f"{os.getpid()}/task/{one.native_id}" for one in helpers}
    assert ended <= set(watch.delays)
    # The kernel's thread outlives the join by a moment.
    while ended & set(procfs.tasks(os.getpid())):
        pass
    watch.looks = 0
    second = look(watch).threads_delay_ns

    assert 0 <= first <= second
    assert not ended & set(watch.delays)


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 1), ("0-3", 4), ("0-3,8,10-11", 7), ("", None), ("x", None), (None, None)],
)
def test_cpus_are_counted_as_the_kernel_lists_them(text, count):
    assert sample._count(text) == count
