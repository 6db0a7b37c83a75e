"""Who has a lock in memory that processes share: real processes."""

import pytest

from ddtop.procfs import children, read
from ddtop.relay.processes.chains import chain_of
from ddtop.relay.processes.shared_locks import MUTEX, holder, lock_of
from ddtop.relay.processes.sockets import parsed_wait, sleeping_in
from tests.relay.processes.once import once

OF_PROCESSES = (
    "import multiprocessing, os, time; lock = multiprocessing.get_context('fork').Lock()\n"
    "lock.acquire(); {}; lock.acquire()"
)
ROBUST = """
import ctypes, mmap, os, sys, time
libc = ctypes.CDLL(None)
with open(sys.argv[1], "w+b") as file:
    file.truncate(4096)
    kept = mmap.mmap(file.fileno(), 4096)
mutex, kind = (ctypes.c_char * 4096).from_buffer(kept), (ctypes.c_char * 64)()
libc.pthread_mutexattr_init(kind)
libc.pthread_mutexattr_setpshared(kind, 1)
libc.pthread_mutexattr_setrobust(kind, 1)
libc.pthread_mutex_init(mutex, kind)
libc.pthread_mutex_lock(mutex)
if os.fork():
    time.sleep(99)
libc.pthread_mutex_lock(mutex)
"""


def stands(process):
    """The process, once it waits for the lock."""
    once(lambda: sleeping_in(process.pid).call == "futex")
    return process.pid


@pytest.mark.parametrize(
    ("others", "nobody"),
    [("pass", True), ("os.fork() or time.sleep(99)", False), ("os.fork()", True)],
    ids=["no other process", "a child that sleeps", "a child that waits too"],
)
def test_a_lock_of_processes_is_told_with_those_that_can_release_it(start, others, nobody):
    pid = stands(start(OF_PROCESSES.format(others)))
    if others == "os.fork()":
        once(lambda: [sleeping_in(one).call for one in children(pid)] == ["futex"])
    (found,) = chain_of(pid)

    assert (found.resource, found.named, found.nobody) == ("shared lock", "", nobody)
    assert [found.pid] == (list(children(pid)) if not nobody else [None])


def test_a_child_that_an_error_has_ended_is_told_instead(start):
    (found,) = chain_of(stands(start(OF_PROCESSES.format("os.fork() or os._exit(3)"))))

    assert (found.resource, found.does) == ("child", "exit code 3")


def test_a_lock_of_threads_is_none_of_processes(start):
    code = "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"

    assert chain_of(stands(start(code))) == ()


def test_a_mutex_in_a_file_says_which_process_has_it(start, tmp_path):
    path = tmp_path / "lock.mdb"
    holder = start(ROBUST, path)
    (child,) = once(lambda: children(holder.pid))
    once(lambda: sleeping_in(child).call == "futex")
    (found,) = chain_of(child)

    assert (found.resource, found.named, found.pid) == ("file lock", str(path), holder.pid)


def test_the_words_of_a_semaphore_are_no_thread_that_has_it(start):
    """glibc keeps 128 where a mutex has its thread, and some process may have that number."""
    pid = stands(start(OF_PROCESSES.format("os.fork() or time.sleep(99)")))
    other = start("import time; time.sleep(99)")
    lock = lock_of(pid, *parsed_wait((read(pid, "syscall") or b"").decode()))

    assert holder(pid, lock, MUTEX.pack(0, 1, other.pid)) is None
    assert holder(pid, lock, MUTEX.pack(0, 1, children(pid)[0])) == children(pid)[0]
