"""The connection of a rank to its store, seen from outside: real sockets of real processes."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop import procfs, registry
from ddtop.procfs import children
from ddtop.relay.processes import candidates, pyspy, rendezvous, sample, sockets
from ddtop.wire.page import PageView
from ddtop.wire.records import Hello, store_address
from tests import waiting

LINE = (
    b"   1: 0100007F:7149 0100007F:D2F0 01 00000000:00000000 00:00000000 00000000  1000        0"
    b" 4711 1 0 20 4 30 10 -1\n"
)
SIX = (
    b"   0: 00000000000000000000000000000000:7149 0000000000000000FFFF00000100007F:0000 0A"
    b" 00000000:00000000 00:00000000 00000000     0        0 99 1 0 100 0 0 10 0\n"
)


def watching():
    return rendezvous.RendezvousWatch()


# -- the kernel's table


@pytest.mark.skipif(
    sys.byteorder != "little", reason="the lines above are of a little-endian machine"
)
def test_lines_of_both_tables_are_read():
    (found,) = sockets.parse(b"head\n" + LINE)
    (other,) = sockets.parse(b"head\n" + SIX)

    assert found == sockets.Tcp("127.0.0.1", 29001, "127.0.0.1", 54000, "ESTABLISHED", 1000, 4711)
    assert (other.port, other.remote, other.state) == (29001, "127.0.0.1", "LISTEN")
    assert other.inode == 99


@given(st.binary(max_size=300), st.integers(0, len(LINE)))
def test_bytes_that_are_no_table_raise_nothing(data, cut):
    sockets.parse(data)
    sockets.parse(b"head\n" + LINE[:cut] + data)


@contextmanager
def listening():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one.getsockname()[1]


def test_a_connection_of_this_process_is_found_with_its_state_and_its_owner():
    with listening() as port, socket.create_connection(("127.0.0.1", port)):
        table = sockets.table(os.getpid())
        own = sockets.inodes(os.getpid())
        mine = [one for one in table if one.inode in own and one.remote_port == port]
        (listener,) = [one for one in table if one.state == "LISTEN" and one.port == port]

        assert [(one.remote, one.state) for one in mine] == [("127.0.0.1", "ESTABLISHED")]
        assert sockets.owner(listener.inode, [os.getppid()]) == os.getpid()


def test_a_process_that_is_gone_has_no_sockets():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()

    assert (sockets.table(child.pid), sockets.inodes(child.pid)) == (None, None)


@pytest.mark.parametrize(
    ("address", "local"),
    [("127.0.0.1", True), ("192.0.2.1", False), ("localhost", False), ("", True)],
)
def test_an_address_of_this_host_is_local(address, local):
    """192.0.2.0/24 is reserved for examples; an empty address means any address of this host. A
    name is not looked up: that may take long.
    """
    assert sockets.is_local(address) is local


# -- trying


def test_an_open_and_a_closed_port_answer_as_they_are():
    with listening() as port:
        assert (
            sockets.connect("localhost", port) == ("open", ("127.0.0.1",))
            or sockets.connect("127.0.0.1", port)[0] == "open"
        )
    assert sockets.connect("127.0.0.1", port) == ("refused", ("127.0.0.1",))


def test_a_name_that_nobody_has_is_not_found():
    assert sockets.connect("no-such-host.invalid", 29500) == ("name not found", ())
    assert sockets.connect("\udcff" * 3, 29500) == ("name not found", ())


def test_a_listener_that_takes_nobody_in_times_out():
    """A full backlog drops the packets, as a firewall does."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen(0)
        address = one.getsockname()
        waiting = []
        for _ in range(4):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(address)
        try:
            assert sockets.connect(*address, within_s=0.3)[0] == "timed out"
        finally:
            for other in waiting:
                other.close()


def test_one_try_is_under_way_at_a_time(monkeypatch):
    """A name server that does not answer holds the thread for half a minute."""
    asked, go = [], threading.Event()

    def slow(address, port):
        asked.append(address)
        go.wait(10)
        return "open", ()

    monkeypatch.setattr(sockets, "connect", slow)
    monkeypatch.setattr(sockets, "PROBE_EVERY_S", 0.0)
    probe = sockets.ConnectProbe()
    probe.ask("a", 1)
    probe.ask("b", 1)
    assert probe.result("a", 1) == (None, ())
    go.set()
    probe._thread.join(10)

    assert (asked, probe.result("a", 1)) == (["a"], ("open", ()))


# -- what the relay reports


def inside(pid, page_since_ns=1, **more):
    """A rank that has been in init_process_group for long, by its page."""
    given = {"claim": "env", "launcher_pid": os.getpid()} | more
    hello = Hello("job", "run", 0, 1, 1, 2, "here", pid, registry.start_ticks(pid), **given)
    watched = sample.Watched(hello, -1)
    watched.page = PageView(0, None, 0, None, init_since_mono_ns=page_since_ns)
    return watched


def env(port, address="127.0.0.1"):
    return {"MASTER_ADDR": address, "MASTER_PORT": str(port)}


@contextmanager
def child(program, *words, **variables):
    """A process that runs this code and prints a line when it is ready. It is ended by its pid."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | variables,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


CONNECTS = (
    "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
    " print('ready', flush=True); s.recv(1)"
)
SLEEPS = "import time; print('ready', flush=True); time.sleep(100)"


def test_who_listens_where_a_rank_connects_is_reported_and_whether_it_is_ours():
    with listening() as port, child(CONNECTS, str(port)) as pid:
        stranger = inside(pid, environment=env(port), launcher_pid=1)
        (way,) = watching().look([stranger], 1, time.monotonic_ns()).ways
        (shell,) = watching().look([stranger], os.getpid(), time.monotonic_ns()).ways
        elastic = inside(pid, environment=env(port) | {"TORCHELASTIC_RUN_ID": "x"}, launcher_pid=1)
        (torchrun,) = watching().look([elastic], os.getpid(), time.monotonic_ns()).ways

    assert (way.sockets, way.local, way.probe) == (("ESTABLISHED",), True, None)
    assert (way.listener_pid, way.listener_ours) == (os.getpid(), False)
    assert (shell.listener_ours, torchrun.listener_ours) == (None, True)
    assert "python" in way.listener_command or "pytest" in way.listener_command
    assert way.listener_started_unix_ns < time.time_ns()


def test_nobody_listens_and_the_try_is_refused():
    with listening() as port:
        pass
    meeting = watching()
    with child(SLEEPS) as pid:
        rank = inside(pid, environment=env(port))
        meeting.look([rank], 1, time.monotonic_ns())
        meeting._probe._thread.join(10)
        (way,) = meeting.look([rank], 1, time.monotonic_ns()).ways

    assert (way.sockets, way.probe, way.local, way.listener_pid) == ((), "refused", True, None)


def test_nothing_is_looked_at_while_nobody_has_been_inside_for_long(monkeypatch):
    monkeypatch.setattr(sockets, "table", lambda pid: pytest.fail("a healthy start costs nothing"))
    now = time.monotonic_ns()
    ranks = [inside(os.getpid(), now - 1_000_000_000), inside(os.getpid(), 0)]

    assert watching().look(ranks, 1, now) == rendezvous.RendezvousLook()


def end_reads():
    """Wait for each killed py-spy, as the next py-spy that starts would."""
    for process in pyspy._unreaped:
        process.wait()
    pyspy._unreaped.clear()


def test_children_of_the_same_parent_that_are_no_ranks_yet_are_candidates():
    with child(SLEEPS) as known, child(SLEEPS) as new, child(SLEEPS, "resource_tracker") as helper:
        rank = inside(known, claim="init", init_method="file:///x")
        meeting = watching()
        ways, found, *_ = meeting.look([rank], 1, time.monotonic_ns())
        again = meeting.look([rank], 1, time.monotonic_ns()).candidates
        meeting.close()
        end_reads()

    pids = {one.pid for one in found}
    assert ways == ()
    assert new in pids
    assert not pids & {known, helper}
    assert {one.rank for one in found} == {None}
    assert {one.pid for one in again} == pids


def test_a_thread_of_the_parent_that_ends_meanwhile_hides_no_child(monkeypatch):
    listed = procfs.names_in
    monkeypatch.setattr(procfs, "names_in", lambda pid, name: ["0", *listed(pid, name)])
    with child(SLEEPS) as known:
        assert known in children(os.getpid())


def test_under_a_launcher_only_a_process_with_a_number_is_one(monkeypatch):
    """torchrun's other children do not count. A child with RANK whose agent is off does."""
    with child(SLEEPS) as known, child(SLEEPS) as unnumbered:
        monkeypatch.setenv("RANK", "3")
        with child(SLEEPS) as numbered:
            rank = inside(known, environment=env(1) | {"TORCHELASTIC_RUN_ID": "x"})
            found = watching().look([rank], 1, time.monotonic_ns()).candidates

    assert (numbered, 3) in [(one.pid, one.rank) for one in found]
    assert unnumbered not in [one.pid for one in found]


def test_under_any_launcher_what_it_gave_a_number_is_one(monkeypatch):
    """While 24 ranks of mpirun were starting on a busy machine, those that had started missed the
    others, and "no process" of them was seen.
    """
    monkeypatch.setenv("SLURM_PROCID", "0")
    with parent("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_RANK=2", "A=1") as mpirun:
        known, other, _helper = children(mpirun)
        found = look_at(inside(known, launcher_pid=mpirun)).candidates

    assert [(one.pid, one.rank) for one in found] == [(other, 2)]


def test_what_a_wrapper_runs_before_its_python_is_the_candidate():
    """A shell that waits for its `cp` stands still; the `cp` does not."""
    shell = ["sh", "-c", "sleep 60; exec python"]
    with child(SLEEPS) as known, subprocess.Popen(shell, env=os.environ | {"RANK": "3"}) as wrapper:
        try:
            (below,) = waiting.until(lambda: children(wrapper.pid))
            found = look_at(inside(known)).candidates
        finally:
            for pid in (*children(wrapper.pid), wrapper.pid):
                os.kill(pid, signal.SIGKILL)

    assert [(one.pid, one.rank) for one in found] == [(below, 3)]


def test_a_number_for_another_store_makes_no_candidate():
    """Two jobs that one shell has started."""
    with parent("RANK=0 MASTER_PORT=1", "RANK=0 MASTER_PORT=2", "RANK=2 MASTER_PORT=1") as shell:
        known, _stranger, other = children(shell)
        found = look_at(inside(known, launcher_pid=shell, environment=env(1))).candidates

    assert [(one.pid, one.rank) for one in found] == [(other, 2)]


PARENT = """
import os, subprocess, sys
others = [dict(os.environ, **dict(word.split("=") for word in words.split())) for words in sys.argv[2:]]
started = [subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=one, stdout=subprocess.PIPE) for one in others]
for one in started:
    one.stdout.readline()
print("ready", flush=True)
sys.stdin.read()
for one in started:
    one.kill()
    one.wait()
"""  # noqa: E501


@contextmanager
def parent(*children_with):
    """A process with children that sleep, each with these variables. It ends them when it ends."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, SLEEPS, *children_with],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process.pid


def look_at(*ranks):
    return watching().look(list(ranks), 1, time.monotonic_ns())


def test_another_program_of_the_same_parent_is_no_candidate():
    """`python -m http.server` of the same shell was blamed for a late rank."""
    with child(SLEEPS) as known, child("0; " + SLEEPS) as stranger, child(SLEEPS) as sibling:
        found = look_at(inside(known, claim="init")).candidates

    pids = {one.pid for one in found}
    assert stranger not in pids
    assert sibling in pids


def test_what_a_rank_starts_under_another_number_is_a_candidate():
    """Lightning's main process is rank 0, and starts the others itself with LOCAL_RANK only."""
    with parent(
        "LOCAL_RANK=1 MASTER_PORT=29500", "LOCAL_RANK=1 MASTER_PORT=1", "LOCAL_RANK=0", "A=1"
    ) as pid:
        rank_0 = inside(pid, claim="init", environment=env(29500) | {"LOCAL_RANK": "0"})
        rank_0.hello = msgspec.structs.replace(rank_0.hello, rank=0, local_rank=0)
        first, *_ = children(pid)
        seen = look_at(rank_0)

    assert [(one.pid, one.rank) for one in seen.candidates if one.rank is not None] == [(first, 1)]
    (why,) = [one for one in seen.candidacies if one.pid == first]
    assert why.mark == "LOCAL_RANK=1, started by rank 0"
    assert why.started_unix_ns is not None


def test_a_number_that_a_rank_has_already_makes_no_candidate():
    """Workers and tools inherit RANK from the rank that starts them."""
    with parent("RANK=1 MASTER_PORT=29500") as pid:
        rank = inside(pid, environment=env(29500))
        seen = look_at(rank)

    assert not {one.pid for one in seen.candidates} & set(children(pid))


def test_a_process_with_a_state_page_is_a_rank_of_something_else(monkeypatch):
    with child(SLEEPS) as known, child(SLEEPS) as other:
        monkeypatch.setattr(candidates, "has_agent", lambda pid: pid == other)
        found = look_at(inside(known, claim="init")).candidates

    assert other not in {one.pid for one in found}


def test_whether_torch_is_loaded_is_read_from_the_maps(tmp_path):
    """Any library whose name begins with libtorch counts, so the test maps a file of that name."""
    maps = (
        "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0,"
        " prot=mmap.PROT_READ); "
    )
    library = tmp_path / "libtorch_cpu.so"
    library.write_bytes(b"x" * 4096)
    with child(maps + SLEEPS, str(library)) as loaded, child(SLEEPS) as importing:
        assert candidates.torch_loaded(loaded) is True
        assert candidates.torch_loaded(importing) is False
    assert candidates.torch_loaded(1 << 22) is None


def test_only_what_is_no_prompt_may_start_more_ranks(tmp_path):
    """A shell that runs a script is a launcher; an interactive one says nothing."""
    script = tmp_path / "run.sh"
    script.write_text("echo ready; read line\n")
    with child(SLEEPS) as rank:
        assert candidates.may_launch([inside(rank)]) is True
        assert candidates.may_launch([]) is None
        for words, may in ((["bash"], False), (["bash", str(script)], True)):
            shell = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            if not may:
                shell.stdin.write("echo ready\n")
                shell.stdin.flush()
            assert shell.stdout.readline() == "ready\n"
            assert candidates.may_launch([inside(rank, launcher_pid=shell.pid)]) is may
            shell.communicate()
        assert candidates.may_launch([inside(rank, launcher_pid=shell.pid)]) is False


@pytest.mark.parametrize(
    ("method", "environment", "expected"),
    [
        (None, env(29500, "node0"), ("node0", 29500)),
        ("env://", env(29500, "node0"), ("node0", 29500)),
        ("tcp://10.0.0.1:23456?rank=1", {}, ("10.0.0.1", 23456)),
        ("tcp://[::1]:23456", {}, ("::1", 23456)),
        ("file:///data/store", env(29500), None),
        ("tcp://node0", {}, None),
        ("tcp://node0:99999", {}, None),
        ("tcp://[", {}, None),
        (None, {"MASTER_ADDR": "node0", "MASTER_PORT": "x"}, None),
        (None, {}, None),
    ],
)
def test_the_store_is_where_arguments_and_environment_say(method, environment, expected):
    assert store_address(method, environment) == expected


@given(st.text(max_size=40), st.text(max_size=8))
def test_no_text_of_an_address_raises(method, port):
    store_address(method, {"MASTER_ADDR": "a", "MASTER_PORT": port})
    store_address(None, {"MASTER_ADDR": "a", "MASTER_PORT": port})


def test_the_frames_of_a_host_carry_the_ways(home):
    """The record has more fields at its end, which an older viewer ignores."""
    from ddtop.wire.records import HostState, Rendezvous

    host = HostState("here", 4, rendezvous=(Rendezvous(1, 2, "a", 3),))
    words = msgspec.msgpack.decode(msgspec.msgpack.encode(host))

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(host), type=HostState) == host
    # The record's name stands before its fields.
    assert words[1 + HostState.__struct_fields__.index("rendezvous")] == [
        [1, 2, "a", 3, None, [], None, None, None, None, None, None, None, []]
    ]
