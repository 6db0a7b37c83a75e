"""What a process waits for in the kernel: real processes, pipes, locks and sockets."""

import fcntl
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from ddtop.procfs import children, link, wchan
from ddtop.relay.processes.chains import LINKS_MAX, Chains, chain_of
from ddtop.relay.processes.sockets import sleeping_in
from ddtop.wire.page import ITS_CHILDREN, OF_CHILDREN
from ddtop.wire.records import ProcessState

SLEEPS = "import time; time.sleep(99)"
LOCKS = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)"


@pytest.fixture
def start():
    """Starts a Python, and ends it and its children."""
    with ExitStack() as stack:

        def run(code, *words, **more):
            process = subprocess.Popen([sys.executable, "-c", code, *map(str, words)], **more)
            stack.callback(ends, process)
            return process

        yield run


def ends(process):
    for child in children(process.pid):
        os.kill(child, 9)
    process.kill()
    process.wait()


def once(true):
    """What `true` gives when it is true."""
    until = time.monotonic() + 20
    while not (found := true()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def told(process):
    """The chain, once it is there."""
    return once(lambda: chain_of(process.pid))


def test_a_child_that_opens_a_pipe_which_nobody_writes(start, tmp_path):
    fifo = tmp_path / "shard-100"
    os.mkfifo(fifo)
    process = start("import subprocess, sys; subprocess.run(['cat', sys.argv[1]])", fifo)
    child, pipe = once(lambda: len(found := chain_of(process.pid)) == 2 and found)

    assert (child.resource, child.who) == ("child", "cat")
    assert (pipe.resource, pipe.named, pipe.nobody, pipe.does) == (
        "pipe",
        str(fifo),
        True,
        "writes",
    )


def test_a_thread_of_the_rank_is_followed_by_what_itself_waits_for(start, tmp_path):
    """Not by what the main thread does meanwhile."""
    fifo = tmp_path / "index"
    os.mkfifo(fifo)
    code = (
        "import sys, threading, time\n"
        "threading.Thread(target=open, args=(sys.argv[1],), daemon=True).start()\ntime.sleep(99)"
    )
    process = start(code, fifo)
    once(lambda: sleeping_in(process.pid).call == "clock_nanosleep")
    tid = max(map(int, os.listdir(f"/proc/{process.pid}/task")))
    (pipe,) = once(lambda: chain_of(process.pid, tid))

    assert (pipe.resource, pipe.named, pipe.nobody) == ("pipe", str(fifo), True)
    assert chain_of(process.pid) == ()


def test_the_writer_of_a_pipe_and_the_holder_of_the_lock_that_it_waits_for(start, tmp_path):
    path = tmp_path / "tiles.idx"
    path.touch()
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code = (
            "import subprocess, sys\n"
            f"p = subprocess.Popen([sys.executable, '-c', {LOCKS!r}, sys.argv[1]],"
            " stdout=subprocess.PIPE)\np.stdout.read()"
        )
        process = start(code, path)
        pipe, lock = once(lambda: len(found := chain_of(process.pid)) == 2 and found)

    assert (pipe.resource, pipe.nobody, pipe.pid) == ("pipe", False, children(process.pid)[0])
    assert (lock.resource, lock.named, lock.pid) == ("file lock", str(path), os.getpid())


def test_the_server_at_the_other_end_of_a_connection_on_this_host(start):
    code = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        process = start(code, port)
        connection = server.accept()[0]
        with connection:
            (found,) = told(process)

    assert (found.resource, found.pid, found.does) == ("connection", os.getpid(), "ESTABLISHED")
    assert found.named == f"127.0.0.1:{port}"


def test_a_process_that_sleeps_or_computes_waits_for_nobody(start):
    sleeps, computes = start(SLEEPS), start("while True: pass")
    once(lambda: sleeping_in(sleeps.pid).call == "clock_nanosleep")

    assert chain_of(sleeps.pid) == chain_of(computes.pid) == ()


def test_a_process_that_has_gone_has_no_chain(start):
    process = start("")
    process.wait()

    assert chain_of(process.pid) == ()


def test_two_that_wait_for_each_other_are_told_once(start):
    """A chain that bites its tail ends there."""
    first, second = os.pipe(), os.pipe()
    reads = "import os, sys; os.read(int(sys.argv[1]), 1)"
    one = start(reads, first[0], pass_fds=(first[0], second[1]))
    two = start(reads, second[0], pass_fds=(second[0], first[1]))
    for end in (*first, *second):
        os.close(end)
    found = once(lambda: len(found := chain_of(one.pid)) >= 2 and found)

    assert [one.pid for one in found] == [two.pid, one.pid]
    assert len(found) < LINKS_MAX


def test_a_descriptor_that_may_not_be_read_is_no_evidence(start, monkeypatch):
    """Too many descriptors: nobody is said to write only after all were looked at."""
    monkeypatch.setattr("ddtop.relay.processes.chains.DESCRIPTORS_MAX", 0)
    read, write = os.pipe()
    process = start("import os, sys; os.read(int(sys.argv[1]), 1)", read, pass_fds=(read,))
    once(lambda: "pipe" in (wchan(process.pid) or "") and link(process.pid, f"fd/{read}"))
    (found,) = told(process)
    os.close(read)
    os.close(write)

    assert (found.nobody, found.pid) == (False, None)


def test_a_child_that_a_signal_has_ended_is_told_to_who_waits_for_what_it_puts(start):
    code = (
        "import os, signal, sys, time\n"
        "if (child := os.fork()) == 0: time.sleep(99)\n"
        "os.kill(child, signal.SIGKILL)\n"
        "read, write = os.pipe(); os.read(read, 1)"
    )
    process = start(code)
    (found,) = once(lambda: chain_of(process.pid, OF_CHILDREN))

    assert (found.resource, found.does) == ("child", "signal 9")
    assert [one.does for one in chain_of(process.pid)] == ["writes"]


def test_a_child_that_has_ended_well_is_not_told(start):
    process = start("import os, time\nif os.fork() == 0: os._exit(0)\ntime.sleep(99)")
    once(lambda: sleeping_in(process.pid).call == "clock_nanosleep")

    assert chain_of(process.pid, ITS_CHILDREN) == ()


def test_a_lock_of_another_process_on_a_file_that_it_asks_for_again_and_again(start, tmp_path):
    path = tmp_path / "runs.db"
    with open(path, "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        process = start("import sys, time; file = open(sys.argv[1], 'r+'); time.sleep(99)", path)
        (found,) = told(process)

    assert (found.resource, found.named, found.pid) == ("file lock", str(path), os.getpid())


def test_the_chains_of_ranks_that_stand_are_looked_for_now_and_then_and_go_with_the_wait(start):
    process = start("import subprocess; subprocess.run(['sleep', '99'])")
    told(process)
    chains, state = Chains(), ProcessState(0, process.pid, "S")
    (found,) = chains.look({process.pid: 0}, [state], 10**9)
    (again,) = chains.look({process.pid: 0}, [state], 2 * 10**9)
    (gone,) = chains.look({}, [state], 3 * 10**9)

    assert [link.who for link in found.chain] == ["sleep"]
    assert (again.chain, gone.chain) == (found.chain, ())


def test_a_read_that_is_under_way_ends_with_the_chains(start, monkeypatch):
    """It outlived the watcher, as a process that nobody had waited for."""
    killed = []

    class Reading:
        def __init__(self, pid, nonblocking):
            self.pid = pid

        def poll(self):
            return None

        def kill(self):
            killed.append(self.pid)

    monkeypatch.setattr("ddtop.relay.processes.chains.PySpy", Reading)
    process = start(f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{SLEEPS}'])")
    (link,) = told(process)
    chains = Chains()
    chains.look({process.pid: 0}, [ProcessState(0, process.pid, "S")], 10**9)
    chains.close()

    assert killed == [link.pid]
