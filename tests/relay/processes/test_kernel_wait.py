"""The system call in which a real process sleeps, and the file or process that it waits for."""

import fcntl
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.relay.processes import sockets

pytestmark = pytest.mark.skipif(
    os.uname().machine not in ("x86_64", "aarch64"), reason="no table of system calls"
)


@contextmanager
def sleeping(program, *words):
    """A process that runs this code. It is ended by its pid."""
    child = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield child.pid
    finally:
        child.kill()
        child.communicate()


def seen(pid, call):
    """The wait, as soon as the process is in that call."""
    for _ in range(2000):
        found = sockets.sleeping_in(pid)
        if found.call in call:
            return found
        threading.Event().wait(0.005)
    raise AssertionError(f"never seen in {call}, but in {found}")


@pytest.mark.parametrize(
    ("program", "calls", "about"),
    [
        (
            "import time; time.sleep(600)",
            ("clock_nanosleep", "nanosleep", "pselect6", "select"),
            None,
        ),
        ("import os; os.read(os.pipe()[0], 1)", ("read",), "pipe"),
        (
            "import threading; one = threading.Lock(); one.acquire(); one.acquire()",
            ("futex",),
            None,
        ),
        ("import sys; sys.stdin.readline()", ("read",), "stdin"),
        ("input()", ("read",), "stdin"),
        ("import socket; a, b = socket.socketpair(); a.recv(1)", ("recvfrom",), "socket"),
        ("import signal; signal.pause()", ("pause", "ppoll"), None),
    ],
)
def test_the_call_in_which_a_process_sleeps_is_named(program, calls, about):
    with sleeping(program) as pid:
        assert seen(pid, calls).file == about


@pytest.mark.parametrize("name", ["{0}/labels", "labels"], ids=["full path", "relative"])
def test_a_named_pipe_that_is_opened_is_named_by_its_path(tmp_path, name):
    """There is no descriptor yet, so the path is read from the memory of the process."""
    os.mkfifo(tmp_path / "labels")
    program = "import os, sys; os.chdir(sys.argv[1]); open(sys.argv[2])"
    with sleeping(program, str(tmp_path), name.format(tmp_path)) as pid:
        assert seen(pid, ("openat", "open")).file == str(tmp_path / "labels")


def test_memory_that_is_not_there_is_no_path():
    assert sockets._path(os.getpid(), 16) is None
    assert sockets._path(1 << 30, 0) is None
    assert sockets._path(os.getpid(), 1 << 65) is None


def test_a_wait_for_one_child_names_it():
    program = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()']).wait()"
    with sleeping(program) as pid:
        child = int(seen(pid, ("wait4",)).file.removeprefix("child "))
        assert Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1] == str(pid)


def test_a_file_lock_and_a_named_pipe_are_reported_with_their_paths(tmp_path):
    lock, fifo = tmp_path / "cache.lock", tmp_path / "requests"
    os.mkfifo(fifo)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        program = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)"
        with sleeping(program, str(lock)) as pid:
            assert seen(pid, ("flock",)) == ("flock", str(lock), None)
    with sleeping("import os, sys; os.read(os.open(sys.argv[1], os.O_RDWR), 1)", str(fifo)) as pid:
        assert seen(pid, ("read",)) == ("read", str(fifo), None)


@pytest.mark.parametrize(
    ("family", "host", "told"), [("AF_INET", "127.0.0.1", "{}:{}"), ("AF_INET6", "::1", "[{}]:{}")]
)
def test_the_server_that_a_socket_leads_to_is_found_by_the_sockets_inode(family, host, told):
    """A metrics server accepted the connection and never answered."""
    with socket.socket(getattr(socket, family)) as server:
        server.bind((host, 0))
        server.listen()
        port = server.getsockname()[1]
        program = (
            "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2]))).recv(1)"
        )
        with sleeping(program, host, str(port)) as pid:
            sleep = seen(pid, ("recvfrom",))

            assert sockets.remote(pid, sleep.socket) == told.format(host, port)


def test_a_socket_that_leads_nowhere_has_no_server():
    with sleeping("import socket; a, b = socket.socketpair(); a.recv(1)") as pid:
        assert sockets.remote(pid, seen(pid, ("recvfrom",)).socket) is None
    with sleeping("import socket; a = socket.create_server(('127.0.0.1', 0)); a.accept()") as pid:
        assert sockets.remote(pid, seen(pid, ("accept4",)).socket) is None


def test_a_process_that_computes_is_in_no_call():
    assert sockets.parsed_wait("running\n") == (None, ())
    assert sockets.parsed_wait("-1 0x7ffc 0x7f4c\n")[0] is None


def test_a_process_that_is_gone_is_in_no_call():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()

    assert sockets.sleeping_in(child.pid) == (None, None, None)


@given(st.text(max_size=200))
def test_no_line_of_proc_makes_it_raise(text):
    name, arguments = sockets.parsed_wait(text)

    assert name is None or isinstance(name, str)
    assert all(isinstance(one, int) for one in arguments)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_numbers_of_a_machine_are_each_one_call(machine):
    calls = sockets.calls_of(machine)

    assert len(set(calls.values())) == len(calls) > 50
    assert calls[{"x86_64": 0, "aarch64": 63}[machine]] == "read"
    assert sockets.calls_of("riscv64") == {}


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("socket:[123]", "socket"),
        ("pipe:[9]", "pipe"),
        ("anon_inode:[eventfd]", "eventfd"),
        ("/dev/pts/3", "terminal"),
        ("/dev/tty1", "terminal"),
        ("/data/shard 7.tar", "/data/shard 7.tar"),
        ("/dev/nvidia0", "/dev/nvidia0"),
        ("/data/old.pt (deleted)", "/data/old.pt (deleted)"),
        ("anon_inode:[eventfd:7]", "eventfd"),
    ],
)
def test_a_descriptor_is_a_path_or_one_word(target, kind):
    assert sockets.kind_of(target) == kind


def test_a_descriptor_that_is_not_open_is_nothing():
    assert sockets.descriptor(os.getpid(), 1 << 19) is None
    assert sockets.descriptor(os.getpid(), (1 << 64) - 1) is None


def test_sockets_of_several_processes_are_counted_once_each():
    """Forked DataLoader workers hold the very sockets of their rank."""
    before = sockets.sockets_of((os.getpid(),))
    one, other = socket.socketpair()
    with one, other:
        assert sockets.sockets_of((os.getpid(), os.getpid())) == before + 2
    assert sockets.sockets_of((1 << 22,)) is None
