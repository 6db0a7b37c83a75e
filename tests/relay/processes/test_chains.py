"""What a process waits for in the kernel: real processes, pipes, locks and sockets."""

import fcntl
import os
import signal
import socket
import subprocess
from contextlib import ExitStack
from operator import attrgetter
from types import SimpleNamespace

import pytest

from ddtop.procfs import children, link, stat_fields, wchan
from ddtop.relay.processes import sockets
from ddtop.relay.processes.chains import LINKS_MAX, Chains, chain_of, serving
from ddtop.relay.processes.sockets import sleeping_in
from ddtop.wire.page import ITS_CHILDREN, OF_CHILDREN
from ddtop.wire.records import LOOKUP, MOUNT, ProcessState, StackFrame, ThreadStack
from tests.relay.processes.once import once
from tests.silent_fs import NEEDS_FUSE, hangs

SLEEPING = ("clock_nanosleep", "select", "pselect6")
"""The calls of time.sleep; before Python 3.11 it was select without a descriptor."""
SLEEPS = "import time; time.sleep(99)"
LOCKS = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)"


def told(process):
    """The chain, once it is there."""
    return once(lambda: chain_of(process.pid))


def told_as(process, what, *links, awaited=0):
    """The chain, once `what` of its links is this."""

    def found():
        chain = chain_of(process.pid, awaited)
        return chain if tuple(map(what, chain)) == links else None

    return once(found)


def test_a_child_that_opens_a_pipe_which_nobody_writes(start, tmp_path):
    fifo = tmp_path / "shard-100"
    os.mkfifo(fifo)
    process = start("import subprocess, sys; subprocess.run(['cat', sys.argv[1]])", fifo)
    child, pipe = once(lambda: len(found := chain_of(process.pid)) == 2 and found)

    assert (child.resource, child.who) == ("child", "cat")
    assert pipe.resource == "pipe"
    assert pipe.named == str(fifo)
    assert pipe.nobody is True
    assert pipe.does == "writes"


def test_a_thread_of_the_rank_is_followed_by_what_itself_waits_for(start, tmp_path):
    """Not by what the main thread does meanwhile."""
    fifo = tmp_path / "index"
    os.mkfifo(fifo)
    code = (
        "import sys, threading, time\n"
        "threading.Thread(target=open, args=(sys.argv[1],), daemon=True).start()\ntime.sleep(99)"
    )
    process = start(code, fifo)
    once(lambda: sleeping_in(process.pid).call in SLEEPING)
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
    once(lambda: sleeping_in(sleeps.pid).call in SLEEPING)

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
    # Until the signal has come the pipe alone is told.
    (found,) = once(
        lambda: (chain := chain_of(process.pid, OF_CHILDREN)) and chain[0].pid and chain
    )

    assert (found.resource, found.does) == ("child", "signal 9")
    assert [one.does for one in chain_of(process.pid)] == ["writes"]


def test_a_child_that_is_stopped_comes_before_those_that_wait_for_tasks(start):
    code = (
        "import os, signal, time\n"
        "first, second = ((pid := os.fork()) or time.sleep(99) or pid for _ in range(2))\n"
        "os.kill(second, signal.SIGSTOP); time.sleep(99)"
    )
    process = start(code)
    (found,) = told_as(process, lambda link: link.process.state, "T", awaited=ITS_CHILDREN)

    assert (found.resource, found.pid) == ("child", max(children(process.pid)))


def test_a_child_that_has_ended_well_is_told_only_of_what_processes_share(start):
    process = start("import os, time\nif os.fork() == 0: os._exit(0)\ntime.sleep(99)")
    once(lambda: sleeping_in(process.pid).call in SLEEPING)

    assert chain_of(process.pid, ITS_CHILDREN) == ()
    # What it shares with its children, that one may have left undone.
    (found,) = chain_of(process.pid, OF_CHILDREN)
    assert (found.resource, found.does) == ("child", "exit code 0")


@pytest.mark.parametrize("how", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_a_lock_of_another_process_on_a_file_that_it_asks_for_again_and_again(start, tmp_path, how):
    path = tmp_path / "runs.db"
    path.touch()
    with open(path, "r+") as file:
        fcntl.lockf(file, how)
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


def test_the_process_at_the_other_end_of_a_unix_socket(start, tmp_path):
    path = str(tmp_path / "tok.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])"
        process = start(f"{code}; s.recv(1)", path)
        accepted, _ = server.accept()
        with accepted:
            (link,) = told(process)

    assert (link.resource, link.named, link.pid) == ("connection", path, os.getpid())


@pytest.mark.parametrize("family", ["AF_UNIX", "AF_INET"])
def test_a_server_that_waits_for_its_client_is_not_served_by_it(start, tmp_path, family):
    at = f"'{tmp_path}/s'" if family == "AF_UNIX" else "('127.0.0.1', 0)"
    server = start(
        f"import socket; s = socket.socket(socket.{family}); s.bind({at}); s.listen()\n"
        "print(repr(s.getsockname()), flush=True); s.accept()[0].recv(1)",
        stdout=subprocess.PIPE,
        text=True,
    )
    with server.stdout:
        name = server.stdout.readline().strip()
    client = start(
        f"import socket; s = socket.socket(socket.{family}); s.connect({name}); s.recv(1)"
    )
    (waits,) = once(lambda: sleeping_in(server.pid).call == "recvfrom" and chain_of(server.pid)[:1])
    asks = told(client)[0]

    assert (waits.named, waits.pid) == ("", client.pid)
    assert (bool(asks.named), asks.pid) == (True, server.pid)


def test_a_server_that_accepts_nobody(start):
    """Its queue is full, so the kernel does not answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        with socket.create_connection(address):
            code = "import socket, sys; a = '127.0.0.1', int(sys.argv[1])"
            connects = "; print([socket.create_connection(a) for _ in range(9)])"
            process = start(code + connects, address[1])
            (link,) = once(lambda: [one for one in chain_of(process.pid) if one.does == "SYN_SENT"])

    assert (link.named, link.pid) == (f"127.0.0.1:{address[1]}", os.getpid())


def test_a_connection_that_its_server_has_not_accepted(start):
    """The kernel has made it, and so it looks like any other from the client's side."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        process = start(f"import socket; socket.create_connection(('127.0.0.1', {port})).recv(1)")
        (waits,) = told(process)
        client, _ = server.accept()
        with client:
            (served,) = chain_of(process.pid)

    assert (waits.does, waits.pid, served.does) == ("backlog", os.getpid(), "ESTABLISHED")


def test_a_child_that_reads_the_standard_input_of_its_parent(start):
    code = "import subprocess; subprocess.run(['cat'])"
    process = start(code, stdin=subprocess.PIPE)
    with process.stdin:
        child, reads = once(lambda: found if len(found := chain_of(process.pid)) == 2 else None)

    assert (child.who, reads.resource, reads.does) == ("cat", "pipe", "inherited")


def test_a_program_of_a_shell_that_reads_what_the_rank_should_write_is_a_circle(start):
    """The shell's standard input is not that of the rank."""
    code = (
        "import subprocess as s\n"
        "shell = s.Popen(['sh', '-c', 'cat; true'], stdin=s.PIPE, stdout=s.PIPE)\n"
        "shell.stdout.readline()"
    )
    process = start(code)
    writes, reads = once(lambda: found if len(found := chain_of(process.pid)) == 2 else None)

    assert (writes.who, reads.pid, reads.does) == ("cat", process.pid, "writes")
    assert reads.circle


def test_what_a_child_that_has_ended_has_left_in_the_background_keeps_its_pipe_open(start):
    code = (
        "import subprocess as s, sys; left = s.run(['sh', '-c', 'sleep 99 & echo $!'],"
        " stdout=s.PIPE, preexec_fn=lambda: print(1, flush=True))"
    )
    process = start(code, stdout=subprocess.PIPE)
    with process.stdout:
        (found,) = told_as(process, attrgetter("does"), "kept")
    os.kill(found.pid, signal.SIGKILL)

    assert (found.resource, found.who) == ("pipe", "sleep")


def test_a_process_that_forwards_waits_for_the_one_to_which_it_has_connected(start):
    accepts = (
        "import select, socket as s, sys, time\n"
        "listens = s.create_server(('127.0.0.1', 0)); print(listens.getsockname()[1], flush=True)\n"
        "client, _ = listens.accept()\n"
    )
    forwards = (
        "server = s.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "select.select([client, server], [], [])"
    )
    server = start(f"{accepts}time.sleep(99)", stdout=subprocess.PIPE, text=True)
    with server.stdout:
        behind = server.stdout.readline().strip()
    proxy = start(accepts + forwards, behind, stdout=subprocess.PIPE, text=True)
    with proxy.stdout:
        port = int(proxy.stdout.readline())
    process = start(f"import socket; socket.create_connection(('127.0.0.1', {port})).recv(1)")

    told_as(process, attrgetter("pid"), proxy.pid, server.pid)


def test_the_keeper_of_a_lock_whose_taker_has_ended(start, tmp_path):
    """The kernel names a process that is not there any more. What has inherited the descriptor, and
    does not wait for the lock, has it."""
    path = tmp_path / "staging.lock"
    taker = start(
        "import fcntl, os, subprocess, sys; f = open(sys.argv[1], 'w')\n"
        "fcntl.flock(f, fcntl.LOCK_EX)\n"
        "child = subprocess.Popen(['sleep', '99'], pass_fds=[f.fileno()])\n"
        "print(child.pid, flush=True)",
        path,
        stdout=subprocess.PIPE,
        text=True,
    )
    with taker.stdout:
        keeper = int(taker.stdout.readline())
    try:
        taker.wait()
        (found,) = told(start(LOCKS, path))
    finally:
        os.kill(keeper, signal.SIGKILL)

    assert (found.resource, found.pid) == ("file lock", keeper)


def test_a_child_that_writes_what_its_parent_does_not_read_is_a_circle(start):
    code = "import subprocess as s; p = s.Popen(['yes'], stdout=s.PIPE); p.wait()"
    process = start(code)
    child, back = once(lambda: found if len(found := chain_of(process.pid)) == 2 else None)

    assert (child.who, child.circle) == ("yes", False)
    assert (back.resource, back.pid, back.circle) == ("pipe", process.pid, True)


def test_a_child_whose_other_thread_writes_what_its_parent_does_not_read_is_a_circle(start):
    """As a process that has put much into a queue of multiprocessing, and ends."""
    writes = (
        "import os, sys, threading as t; w = int(sys.argv[1])"
        "; o = t.Thread(target=os.write, args=(w, bytes(10**6))); o.start(); o.join()"
    )
    process = start(
        "import os, subprocess as s, sys; r, w = os.pipe()\n"
        f"s.Popen([sys.executable, '-c', {writes!r}, str(w)], pass_fds=[w]).wait()"
    )
    child, back = once(lambda: found if len(found := chain_of(process.pid)) == 2 else None)

    assert (child.resource, child.circle) == ("child", False)
    assert (back.does, back.pid, back.circle) == ("reads", process.pid, True)


def test_what_a_stopped_process_waits_for_is_not_told(start):
    code = "import subprocess as s; p = s.Popen(['cat'], stdin=s.PIPE, stdout=s.PIPE)"
    process = start(f"{code}; p.stdout.read()")
    child = told(process)[0].pid
    os.kill(child, signal.SIGSTOP)
    once(lambda: stat_fields(child)[0] == "T")
    (link,) = told(process)

    assert (link.pid, link.process.state) == (child, "T")


def test_a_thread_that_has_ended_meanwhile_is_no_process_of_another_user(start):
    rank = start(SLEEPS)
    ended = subprocess.Popen(["true"])
    ended.wait()

    assert chain_of(rank.pid, ended.pid) == ()


def test_a_process_that_the_rank_names_is_followed(start, tmp_path):
    """The holder of a lock file for which the rank polls."""
    fifo = tmp_path / "model"
    os.mkfifo(fifo)
    holder, rank = start("import sys; open(sys.argv[1])", fifo), start(SLEEPS)
    once(lambda: chain_of(holder.pid))
    first, then = chain_of(rank.pid, holder.pid)

    assert (first.resource, first.pid) == ("process", holder.pid)
    assert (then.resource, then.named, then.nobody) == ("pipe", str(fifo), True)


def test_of_several_children_the_one_that_waits_for_a_third_process_is_told(start, tmp_path):
    """A worker that waits for its parent has nothing to do."""
    path = tmp_path / "mm.lock"
    code = (
        "import subprocess as s, sys, fcntl, time\n"
        "idle = s.Popen(['cat'], stdin=s.PIPE)\n"
        f"locks = s.Popen([sys.executable, '-c', '{LOCKS}', sys.argv[1]])\n"
        "time.sleep(99)"
    )
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        process = start(code, path)
        child, lock = once(
            lambda: found if len(found := chain_of(process.pid, OF_CHILDREN)) == 2 else None
        )

    assert (child.resource, lock.resource, lock.pid) == ("child", "file lock", os.getpid())


def test_of_a_pool_the_worker_that_computes_is_told_and_not_one_that_waits_for_its_next_task(start):
    """Each worker has both ends of the pipe in which the tasks come."""
    code = (
        "import os, time\n"
        "read, write = os.pipe()\n"
        "if not os.fork(): os.read(read, 1)\n"
        "busy = os.fork()\n"
        "while not busy: pass\n"
        "time.sleep(99)"
    )
    pool = start(code)
    chain = once(
        lambda: (
            len(children(pool.pid)) == 2
            and sleeping_in(children(pool.pid)[0]).call == "read"
            and chain_of(pool.pid, ITS_CHILDREN)
        )
    )

    assert tuple(link.pid for link in chain) == tuple(children(pool.pid)[1:])


def test_the_only_other_client_of_a_manager_may_have_the_lock_that_it_waits_for(
    start, tmp_path, monkeypatch
):
    path = tmp_path / "manager"
    code = (
        "import socket, sys, time; one = socket.socket(socket.AF_UNIX); one.bind(sys.argv[1])\n"
        "one.listen(); kept = one.accept(), one.accept(); print(flush=True); time.sleep(99)"
    )
    manager = start(code, path, stdout=subprocess.PIPE)
    once(path.exists)
    asks = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
    rank, other = start(asks + "s.recv(1)", path), start(asks + SLEEPS, path)
    with manager.stdout:
        manager.stdout.readline()
    told(rank)
    serves = StackFrame("serve_client", "/lib/python3.11/multiprocessing/managers.py", 7)
    thread = ThreadStack((serves,), "", thread_id=7)
    spy = SimpleNamespace(poll=lambda: (thread,), tids={}, kill=lambda: None)
    monkeypatch.setattr("ddtop.relay.processes.chains.PySpy", lambda *_, **__: spy)
    chains, state = Chains(), ProcessState(0, rank.pid, "S")
    found = once(
        lambda: len(chain := chains.look({rank.pid: 0}, [state], 10**9)[0].chain) == 2 and chain
    )

    assert [(link.pid, link.does) for link in found] == [
        (manager.pid, ""),
        (other.pid, "may"),
    ]


def test_the_only_connection_of_an_event_loop_is_followed(start):
    code = (
        "import asyncio, sys\n"
        "async def main():\n"
        "    reader, _ = await asyncio.open_connection('127.0.0.1', int(sys.argv[1]))\n"
        "    await reader.read()\n"
        "asyncio.run(main())"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = start(code, server.getsockname()[1])
        accepted, _ = server.accept()
        with accepted:
            (link,) = told(process)

    assert (link.resource, link.pid) == ("connection", os.getpid())


@pytest.mark.parametrize("wait", ["select.select([read, *others], [], [])", "poll.poll()"])
def test_a_pipe_that_it_writes_is_no_wait_of_who_waits_for_several(start, wait):
    """asyncio looks whether the standard input of a child has been closed."""
    code = (
        "import os, select, subprocess as s\n"
        "child = s.Popen(['yes', 'x' * 9], stdin=s.PIPE, stdout=s.PIPE); os.kill(child.pid, 19)\n"
        "os.waitpid(child.pid, os.WUNTRACED)\n"
        "read, others = child.stdout, []\n"
        "while select.select([read], [], [], 0.5)[0]: os.read(read.fileno(), 65536)\n"
        "poll = select.poll(); poll.register(read); poll.register(child.stdin, select.POLLERR)\n"
        f"{wait}"
    )
    process = start(code)
    (found,) = told_as(process, attrgetter("resource"), "pipe")

    assert (found.who, found.process.state) == ("yes", "T")


def test_a_link_to_a_rank_says_which(start):
    rank = start(SLEEPS)
    once(lambda: sleeping_in(rank.pid).call in SLEEPING)
    states = [ProcessState(0, os.getpid(), "S"), ProcessState(3, rank.pid, "S")]
    (found, _) = Chains().look({os.getpid(): rank.pid}, states, 10**9)

    assert [(link.pid, link.rank) for link in found.chain] == [(rank.pid, 3)]


def test_the_process_that_serves_an_address_of_this_host_is_found(start, tmp_path):
    code = (
        "import socket; one = socket.create_server(('127.0.0.1', 0))\n"
        "print(one.getsockname()[1], flush=True); kept = one.accept()\n"
        f"{SLEEPS}"
    )
    server = start(code, stdout=subprocess.PIPE, text=True)
    with (
        server.stdout,
        socket.create_connection(("127.0.0.1", int(server.stdout.readline()))) as one,
    ):
        host, port = one.getpeername()
        (link,) = once(lambda: serving(f"{host}:{port}"))

    assert (link.resource, link.named, link.pid) == ("connection", f"{host}:{port}", server.pid)


@pytest.mark.parametrize(
    "address", ["192.0.2.7:443", "127.0.0.1:0", "127.0.0.1:x", "", "localhost:1", ":1"]
)
def test_an_address_of_another_host_or_of_nobody_is_served_by_nobody(address):
    assert serving(address) == ()


@pytest.mark.parametrize(
    ("reads", "parts"),
    [
        ("Popen(command, shell=True, stdout=s.PIPE).stdout.read()", ["gzip", "cat", None]),
        ("run(command, **captured)", ["cat", None]),
    ],
)
def test_of_a_pipeline_each_part_is_followed(start, tmp_path, reads, parts):
    """The shell has made the pipes, waits for both of its children, and does nothing itself. All of
    them have the pipe of its errors."""
    fifo = tmp_path / "raw"
    os.mkfifo(fifo)
    code = (
        "import subprocess as s, sys; captured = dict(shell=True, capture_output=True)\n"
        f"command = f'cat {{sys.argv[1]}} | gzip -c'; s.{reads}"
    )
    process = start(code, fifo)

    def whole():
        """Between fork and exec each part is still called as the shell is."""
        found = chain_of(process.pid)
        return found if [link.who for link in found] == parts else None

    found = once(whole)

    assert (found[-1].named, found[-1].nobody) == (str(fifo), True)


def test_a_forked_child_that_alone_has_the_file_open_still_has_the_lock(start, tmp_path):
    """The kernel names the process that has taken the lock, and not who keeps it."""
    path = tmp_path / "index"
    code = (
        "import fcntl, os, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX)\n"
        "child = os.fork()\n"
        "if child: f.close(); print(child, flush=True)\n"
        "time.sleep(99)"
    )
    parent = start(code, path, stdout=subprocess.PIPE, text=True)
    with parent.stdout:
        child = int(parent.stdout.readline())
    (found,) = told(start(LOCKS, path))

    assert (found.resource, found.pid) == ("file lock", child)


def test_a_worker_that_has_a_lock_and_waits_for_its_parents_next_order_ends_the_chain(
    start, tmp_path
):
    """It would not let the lock go if the order came."""
    path = tmp_path / "index"
    worker = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX);"
        " print(1, flush=True); sys.stdin.read()"
    )
    code = (
        "import subprocess as s, sys, time\n"
        f'w = s.Popen([sys.executable, "-c", "{worker}", sys.argv[1]], stdin=s.PIPE)\n'
        "time.sleep(99)"
    )
    parent = start(code, path, stdout=subprocess.PIPE)
    with parent.stdout:
        parent.stdout.readline()
    (child,) = children(parent.pid)
    once(lambda: chain_of(child))
    (found,) = told(start(LOCKS, path))

    assert (found.resource, found.pid) == ("file lock", child)


def test_a_process_that_accepts_is_told_with_its_address(start):
    code = (
        "import socket; one = socket.create_server(('127.0.0.1', 0))\n"
        "print(one.getsockname()[1], flush=True); one.accept()"
    )
    process = start(code, stdout=subprocess.PIPE, text=True)
    with process.stdout:
        port = int(process.stdout.readline())
        (link,) = told(process)

    assert (link.resource, link.named, link.nobody) == ("connection", f"127.0.0.1:{port}", True)
    assert link.does == "listens"


def test_a_server_that_waits_for_its_next_client_ends_the_chain(start):
    """The thread that serves the rank is another one."""
    code = (
        "import socket; one = socket.create_server(('127.0.0.1', 0))\n"
        "print(one.getsockname()[1], flush=True); kept = one.accept(); one.accept()"
    )
    server = start(code, stdout=subprocess.PIPE, text=True)
    with server.stdout:
        asks = (
            "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)"
        )
        process = start(asks, server.stdout.readline())
        (link,) = told(process)

    assert (link.pid, link.does) == (server.pid, "ESTABLISHED")


@pytest.mark.parametrize(
    ("wait", "named"),
    [
        ("sigwait({signal.SIGUSR1, signal.SIGUSR2})", "SIGUSR1 or SIGUSR2"),
        ("sigwait(signal.valid_signals())", ""),
        ("pause()", ""),
    ],
)
def test_the_signals_for_which_a_process_waits(start, wait, named):
    process = start(f"import signal; signal.{wait}")
    (link,) = told(process)

    assert (link.resource, link.named) == ("signal", named)


def test_who_holds_a_child_as_a_debugger_does(start, tmp_path):
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    attaches = (
        "import ctypes, os, sys, time; libc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.ptrace(16, int(sys.argv[1]), 0, 0) == 0, os.strerror(ctypes.get_errno())\n"
        "os.waitpid(int(sys.argv[1]), 0x40000000); print('holds', flush=True); time.sleep(99)"
    )
    process = start(f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{SLEEPS}'])")
    child = once(lambda: children(process.pid))[0]
    tracer = start(attaches, child, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with tracer.stdout, tracer.stderr:
        if not tracer.stdout.readline():
            pytest.skip(f"no process may be traced here: {tracer.stderr.read()}")
    held, by = once(lambda: found if len(found := chain_of(process.pid)) == 2 else None)

    assert (held.resource, held.process.state) == ("child", "t")
    assert (by.resource, by.pid) == ("debugger", tracer.pid)
    assert [one.pid for one in chain_of(child)] == [tracer.pid]


def test_a_child_in_a_frozen_cgroup_is_told_and_not_followed(start, monkeypatch):
    process = start(f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{SLEEPS}'])")
    told(process)
    monkeypatch.setattr("ddtop.relay.processes.cgroup.is_frozen", lambda _: True)

    def frozen():
        """One that is still about to start does not sleep yet."""
        found = chain_of(process.pid)
        return found if found and found[0].process.state == "F" else None

    assert [link.resource for link in once(frozen)] == ["child"]


def test_a_process_that_waits_for_its_own_answer_is_no_circle(start):
    """Another thread of it may answer."""
    code = (
        "import socket; server = socket.create_server(('127.0.0.1', 0))\n"
        "one = socket.create_connection(server.getsockname()); kept = server.accept()\n"
        "one.recv(1)"
    )
    process = start(code)
    (link,) = told(process)

    assert (link.resource, link.pid, link.circle) == ("connection", process.pid, False)


@pytest.mark.parametrize(
    ("ends", "read", "resource"),
    [
        ("import socket; here, there = socket.socketpair()", "here.recv(1)", "connection"),
        ("import os; here, there = os.pipe()", "os.read(here, 1)", "pipe"),
    ],
)
def test_both_ends_of_a_pair_are_told_where_it_reads_and_not_where_it_polls(
    start, ends, read, resource
):
    poll = "import select; p = select.poll(); p.register(here, select.POLLIN); p.poll()"
    reads, polls = (start(f"{ends}\n{call}") for call in (read, poll))
    (link,) = told(reads)
    once(lambda: sleeping_in(polls.pid).call == "poll")

    assert (link.resource, link.named) == (resource, "")
    assert chain_of(polls.pid) == ()


def test_several_connections_to_one_server_are_one_wait(start):
    code = (
        "import select, socket, sys\n"
        "many = [socket.create_connection(('127.0.0.1', int(sys.argv[1]))) for _ in range(3)]\n"
        "poll = select.epoll(); [poll.register(one, select.EPOLLIN) for one in many]; poll.poll()"
    )
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        process = start(code, server.getsockname()[1])
        for _ in range(3):
            stack.enter_context(server.accept()[0])
        (link,) = told(process)

    assert link.pid == os.getpid()


def test_the_chain_goes_on_in_the_thread_of_a_server_that_serves(start, tmp_path, monkeypatch):
    """Its main thread only waits for the next client."""
    path = tmp_path / "features.idx"
    code = (
        "import fcntl, socket, sys, threading; one = socket.create_server(('127.0.0.1', 0))\n"
        "def serve(): kept = one.accept(); fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)\n"
        "t = threading.Thread(target=serve); t.start()\n"
        "print(one.getsockname()[1], t.native_id, flush=True); t.join()"
    )
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        server = start(code, path, stdout=subprocess.PIPE, text=True)
        with server.stdout:
            port, tid = server.stdout.readline().split()
            asks = f"import socket; socket.create_connection(('127.0.0.1', {port})).recv(1)"
            process = start(asks)
            told(process)
            once(lambda: sleeping_in(server.pid, int(tid)).call == "flock")
            frame = StackFrame("serve", "/d/features.py", 2)
            thread = ThreadStack((frame,), "serve", thread_id=7)
            spy = SimpleNamespace(poll=lambda: (thread,), tids={7: int(tid)}, kill=lambda: None)
            monkeypatch.setattr("ddtop.relay.processes.chains.PySpy", lambda *_, **__: spy)
            chains, state = Chains(), ProcessState(0, process.pid, "S")
            chains.look({process.pid: 0}, [state], 10**9)
            (found,) = chains.look({process.pid: 0}, [state], 10**9 + 1)

    serves, lock = found.chain
    assert (serves.pid, serves.place.function) == (server.pid, "serve")
    assert (lock.resource, lock.named, lock.pid) == ("file lock", str(path), os.getpid())


@pytest.mark.parametrize(
    ("main", "other", "told"),
    [
        (
            ("join", "/lib/python3.11/threading.py"),
            ("wait", "/lib/python3.11/threading.py"),
            "serve",
        ),
        (
            ("accept", "/lib/python3.11/socket.py"),
            ("wait", "/lib/python3.11/threading.py"),
            "serve",
        ),
        (("get", "<string>"), ("wait", "/lib/python3.11/threading.py"), "main"),
        (("recv", "/lib/python3.11/socket.py"), ("wait", "/lib/python3.11/threading.py"), "main"),
    ],
)
def test_of_a_server_the_thread_is_told_that_does_not_leave_it_to_others(
    start, monkeypatch, main, other, told
):
    """Each of its threads stands in a call that a function of the program has made."""
    stands = [
        ThreadStack((StackFrame(*call, 3), StackFrame(by, "/d/board.py", 9)), "", main=by == "main")
        for by, call in (("main", main), ("serve", other))
    ]
    spy = SimpleNamespace(poll=lambda: tuple(stands), tids={}, kill=lambda: None)
    monkeypatch.setattr("ddtop.relay.processes.chains.PySpy", lambda *_, **__: spy)
    code = f"import subprocess as s, sys; s.run([sys.executable, '-c', '{SLEEPS}'])"
    parent = start(code)
    once(lambda: chain_of(parent.pid))
    chains, state = Chains(), ProcessState(0, parent.pid, "S")
    chains.look({parent.pid: 0}, [state], 10**9)
    (found,) = chains.look({parent.pid: 0}, [state], 10**9 + 1)

    assert found.chain[0].place.function == told


def test_the_tracker_of_what_processes_share_is_no_worker(start):
    """It reads a pipe that each worker has open, too."""
    code = (
        "import os, subprocess as s, sys, time\n"
        "read, write = os.pipe()\n"
        "name = '-c import os; os.read(0, 1) # resource_tracker'.split(maxsplit=1)\n"
        "s.Popen([sys.executable, *name], stdin=read)\n"
        f"s.Popen([sys.executable, '-c', {SLEEPS!r}], pass_fds=[write])\n"
        "os.close(write); time.sleep(99)"
    )
    pool = start(code)
    once(
        lambda: (
            [sleeping_in(one).call for one in children(pool.pid)][:1] == ["read"]
            and sleeping_in(children(pool.pid)[-1]).call in SLEEPING
        )
    )

    (link,) = chain_of(pool.pid, ITS_CHILDREN)
    assert link.pid == children(pool.pid)[-1]


def test_of_workers_that_sleep_alike_the_one_in_the_programs_code_is_told(start, monkeypatch):
    """The others of the pool wait for their next task, as a lock is waited for."""
    code = (
        "import subprocess as s, sys, time\n"
        f"[s.Popen([sys.executable, '-c', '{SLEEPS}']) for _ in range(2)]; time.sleep(99)"
    )
    pool = start(code)
    idle, busy = once(
        lambda: (
            len(found := children(pool.pid)) == 2
            and all(sleeping_in(one).call in SLEEPING for one in found)
            and found
        )
    )

    def spy(pid, **_):
        packages = "/v/lib/python3.11/site-packages"
        file = "/d/augment.py" if pid == busy else f"{packages}/billiard.py"
        frames = (
            StackFrame("acquire", f"{packages}/filelock/_api.py", 9),
            StackFrame("augment", file, 6),
        )
        thread = ThreadStack(frames, "main", thread_id=7, main=True)
        return SimpleNamespace(poll=lambda: (thread,), tids={7: pid}, kill=lambda: None)

    monkeypatch.setattr("ddtop.relay.processes.chains.PySpy", spy)
    monkeypatch.setattr("ddtop.relay.processes.chains.is_python", lambda _: True)
    chains, state = Chains(), ProcessState(0, pool.pid, "S")
    first = chains.look({pool.pid: ITS_CHILDREN}, [state], 10**9)
    (found,) = chains.look({pool.pid: ITS_CHILDREN}, [state], 10**9 + 1)
    (link,) = found.chain

    assert first == (state,)
    assert (link.resource, link.pid, link.place.function) == ("child", busy, "augment")
    assert (link.place.waits_on, link.pid != idle) == ("lock", True)


def test_a_worker_in_the_programs_code_that_waits_for_its_parent_is_a_circle(start, monkeypatch):
    """Without a line of the program it would wait for its next task."""
    code = (
        "import socket as s, subprocess, sys, time\n"
        "ours, theirs = s.socketpair()\n"
        "subprocess.Popen([sys.executable, '-c', 'import socket, sys;"
        " socket.socket(fileno=int(sys.argv[1])).recv(1)', str(theirs.fileno())],"
        " pass_fds=[theirs.fileno()]); theirs.close(); time.sleep(99)"
    )
    rank = start(code)
    (worker,) = once(lambda: children(rank.pid))
    once(lambda: sleeping_in(worker).call == "recvfrom")

    def spy(pid, **_):
        thread = ThreadStack((StackFrame("merge", "/d/m.py", 6),), "main", thread_id=7, main=True)
        return SimpleNamespace(poll=lambda: (thread,), tids={7: pid}, kill=lambda: None)

    monkeypatch.setattr("ddtop.relay.processes.chains.PySpy", spy)
    chains, state = Chains(), ProcessState(0, rank.pid, "S")
    chains.look({rank.pid: ITS_CHILDREN}, [state], 10**9)
    (found,) = chains.look({rank.pid: ITS_CHILDREN}, [state], 10**9 + 1)
    child, back = found.chain

    assert (child.pid, child.place.function) == (worker, "merge")
    assert (back.pid, back.circle) == (rank.pid, True)


def test_a_child_that_only_runs_libraries_is_told_with_the_line_of_one(start, monkeypatch):
    """As the worker of a loader whose data set is a library's. torch's own code says nothing."""
    code = (
        "import subprocess as s, sys; s.run([sys.executable, '-c', 'import time; time.sleep(99)'])"
    )
    rank = start(code)
    once(lambda: chain_of(rank.pid))
    installed = "/v/lib/python3.11/site-packages/"

    def spy(pid, **_):
        files = ("/usr/lib/python3.11/shutil.py", f"{installed}torch/utils/data.py")
        frames = [StackFrame("run", file, 6) for file in (*files, f"{installed}streaming/base.py")]
        thread = ThreadStack(tuple(frames), "main", thread_id=7, main=True)
        return SimpleNamespace(poll=lambda: (thread,), tids={7: pid}, kill=lambda: None)

    monkeypatch.setattr("ddtop.relay.processes.chains.PySpy", spy)
    chains, state = Chains(), ProcessState(0, rank.pid, "S")
    chains.look({rank.pid: 0}, [state], 10**9)
    (found,) = chains.look({rank.pid: 0}, [state], 10**9 + 1)

    assert [link.place.file for link in found.chain] == [f"{installed}streaming/base.py"]


@NEEDS_FUSE
def test_a_file_system_that_does_not_answer_is_named_with_what_is_behind_it(start, tmp_path):
    """The file system of silent_fs answers nothing, as a file server that is gone."""
    share = tmp_path / "share"
    share.mkdir()
    with hangs(share):
        (found,) = told(start("import os, sys; os.stat(sys.argv[1])", share / "7.pt"))

    assert (found.resource, found.named) == (MOUNT, str(share / "7.pt"))
    assert found.does == "fuse from silent"


def test_a_name_server_that_does_not_answer_is_named(start, monkeypatch):
    """Port 53 needs root and a free address, so another port takes its place."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        monkeypatch.setattr(sockets, "NAME_PORTS", (port,))
        code = (
            "import select, socket, sys\n"
            "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "s.connect(('127.0.0.1', int(sys.argv[1]))); s.send(b'?')\n"
            "p = select.poll(); p.register(s, select.POLLIN); p.poll(99000)"
        )
        (found,) = told(start(code, port))

    assert (found.resource, found.named) == (LOOKUP, f"127.0.0.1:{port}")
