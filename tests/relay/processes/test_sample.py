"""The ranks' processes seen from outside."""

import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from ddtop import registry
from ddtop.agent.state_page import StatePage
from ddtop.model.ratios import Working
from ddtop.policy import POLICY
from ddtop.procfs import descendants
from ddtop.relay.processes import sample, sockets
from ddtop.wire import page as layout
from ddtop.wire.records import Hello, LastException
from tests.waiting import until

PROGRAM = "import sys; print('up', flush=True); sys.stdin.readline()"


@pytest.fixture
def child():
    """A process that waits for a line."""
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    started.stdout.readline()
    yield started
    started.kill()
    started.communicate()


def hello(pid, **more):
    given = {"start_ticks": registry.start_ticks(pid) or 0} | more
    return Hello("j", "r", 0, 2, 0, 4, "h", pid, **given)


def watched(pid, **more):
    found = sample.watch(hello(pid, **more), 1_000_000_000)
    assert found is not None
    return found


def test_a_process_is_looked_at(child):
    rank = watched(child.pid)
    state = sample.look(rank, 3_000_000_000)
    sample.forget(rank)

    assert (state.rank, state.pid, state.children) == (2, child.pid, 0)
    assert state.state in "SR"
    assert state.rss_bytes > 1 << 20
    assert state.cpu_ns >= 0
    assert state.threads == 1


def test_what_its_outputs_are_is_said_at_the_first_look_and_seldom_after(child):
    """In each look, the paths of thousands of ranks would be the largest part of the reports."""
    rank = watched(child.pid)
    looks = [sample.look(rank, second * 10**9) for second in range(1, 33)]
    sample.forget(rank)

    assert looks[0].outputs == tuple(os.readlink(f"/proc/{child.pid}/fd/{n}") for n in (1, 2))
    assert looks[0].outputs[0].startswith("pipe:")
    assert [number for number, look in enumerate(looks) if look.outputs] == [0, 30]


def test_a_stopped_process_is_seen_as_t(child):
    rank = watched(child.pid)
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    letter = sample.look(rank, 0).state
    os.kill(child.pid, signal.SIGCONT)
    sample.forget(rank)

    assert letter == "T"


def test_a_process_that_becomes_another_program_by_exec_is_seen():
    """Its pid and its start time stay the same, so only the program's name shows the change."""
    program = "import os, sys; print('up', flush=True); sys.stdin.readline(); "
    program += "os.execvp('sleep', ['sleep', '60'])"
    rank_process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        rank_process.stdout.readline()
        rank = watched(rank_process.pid)
        before = sample.look(rank, 0).became
        rank_process.stdin.write("\n")
        rank_process.stdin.flush()
        # exec closes no descriptor here, so the test waits for the new name.
        comm = Path(f"/proc/{rank_process.pid}/comm")
        until(lambda: comm.read_text() == "sleep\n")
        after = sample.look(rank, 0).became
        sample.forget(rank)
    finally:
        rank_process.kill()
        rank_process.communicate()

    assert (before, after) == (None, "sleep")


def test_the_work_of_its_children_counts_as_its_own():
    """Its DataLoader workers decode images while its main thread sleeps."""
    program = (
        "import os, sys, time\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    end = time.process_time() + 0.3\n"
        "    while time.process_time() < end: pass\n"
        "    print('up', flush=True); sys.stdin.readline(); os._exit(0)\n"
        "os.wait()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        parent.stdout.readline()
        rank = watched(parent.pid)
        state = sample.look(rank, 0)
        sample.forget(rank)
    finally:
        parent.communicate("\n")

    assert state.children == 1
    assert state.cpu_ns >= 250_000_000


def test_a_pid_that_was_given_to_somebody_else_is_not_watched(child):
    """The rank died while its Hello was in transit, and its pid was reused by a browser."""
    assert sample.watch(hello(child.pid, start_ticks=1), 0) is None


def test_a_process_that_is_gone_is_not_watched(child):
    said = hello(child.pid)
    child.communicate("\n")

    assert sample.watch(said, 0) is None


def killed(program):
    """A rank that runs this program, killed once it is up; its children read a line each."""
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        parent.stdout.readline()
        rank = watched(parent.pid)
        sample.look(rank, 0)
        os.kill(parent.pid, signal.SIGKILL)
        assert select.select([rank.pidfd], [], [], 10)[0]
        gone = sample.last_words(rank, 3, 5_000)
        sample.forget(rank)
    finally:
        parent.communicate("\n" * 4)
    return rank, gone


def test_the_last_words_tell_how_it_ended_and_who_outlived_it():
    program = (
        "import os, sys\n"
        "if os.fork() == 0:\n"
        "    sys.stdin.readline(); os._exit(0)\n"
        "print('up', flush=True)\n"
        "import signal; signal.pause()\n"
    )
    rank, gone = killed(program)
    (orphan,) = rank.children

    assert (gone.rank, gone.pid, gone.order) == (2, rank.hello.pid, 3)
    assert (gone.code, gone.signal) == (None, 9)
    assert gone.oom in (None, False)
    assert (gone.exiting, gone.exception, gone.exiting_unix_ns) == (False, None, None)
    assert (gone.orphans, gone.orphan_sockets) == ((orphan,), 0)


def test_the_page_of_a_dead_rank_is_read_and_removed():
    page = StatePage(os.getpid(), registry.start_ticks(os.getpid()))
    page.write(layout.EXCEPTION, msgspec.msgpack.encode(LastException("ValueError", "bad", 9)))
    rank = watched(os.getpid(), page_path=str(page.path))

    seen = sample.page(rank.hello)
    sample.forget(rank)

    assert seen.exception.text == "bad"
    assert not page.path.exists()


def test_what_has_been_counted_is_read_from_the_page():
    page = StatePage(os.getpid(), registry.start_ticks(os.getpid()))
    rank = watched(os.getpid(), page_path=str(page.path))
    before = sample.look(rank, time.monotonic_ns()).iteration
    page.words[layout.ITERATION_AT] = 243
    page.words[layout.ITERATION_SOURCE_AT] = layout.SOURCE_OPTIMIZER
    after = sample.look(rank, time.monotonic_ns()).iteration
    sample.forget(rank)

    assert (before, after) == (None, 243)


def test_whether_ddtop_was_reading_frames_when_a_rank_died_is_on_its_page():
    program = "print('up', flush=True); import signal; signal.pause()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        page = StatePage(process.pid, registry.start_ticks(process.pid))
        rank = watched(process.pid, page_path=str(page.path))
        process.send_signal(signal.SIGSEGV)
        assert select.select([rank.pidfd], [], [], 10)[0]
        before = sample.last_words(rank, 0, 5_000)
        page.words[layout.WALKING_AT] = 1
        after = sample.last_words(rank, 0, 5_000)
        sample.forget(rank)

    assert (before.signal, before.walking, after.walking) == (signal.SIGSEGV, False, True)


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "thesis.page"
    path.write_text("years of work")
    return path


def foreign_paths(victim):
    pid, ticks = os.getpid(), registry.start_ticks(os.getpid())
    folder = registry.pages_folder()
    name = f"{pid}-{ticks}.page"
    return [
        str(victim),
        "/etc/passwd",
        "",
        "relative.page",
        f"/dev/shm/{name}",
        f"/tmp/{folder}/../../{victim}",
        f"/dev/shm/{folder}/1-1.page",
        f"/dev/shm/ddtop-pages-99999/{name}",
        f"/dev/shm/{folder}/x/../{name}",
        f"{victim.parent}/{folder}/{name}",
        f"/dev/shm/{folder}/{name}\x00",
        "/" * 5000,
    ]


def test_a_foreign_page_path_is_never_read_nor_unlinked(victim):
    """Any process of this user may send a frame with a path of its own."""
    for text in foreign_paths(victim):
        rank = watched(os.getpid(), page_path=text)
        assert sample.page_path(rank.hello) is None, text
        assert sample.page(rank.hello) is None
        sample.forget(rank)

    assert victim.read_text() == "years of work"


def test_a_page_behind_a_symlink_is_not_followed(victim):
    page = StatePage(os.getpid(), registry.start_ticks(os.getpid()))
    path = page.path
    page.remove()
    path.symlink_to(victim)
    rank = watched(os.getpid(), page_path=str(path))

    assert sample.page(rank.hello) is None
    sample.forget(rank)
    assert victim.exists()
    assert not path.is_symlink()


def test_pages_of_processes_that_are_gone_are_abandoned_and_others_are_not():
    """A relay that was killed could not remove them; /dev/shm is memory."""
    mine = StatePage(os.getpid(), registry.start_ticks(os.getpid()))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = mine.path.with_name(f"{dead.pid}-77.page")
    left.write_bytes(b"")
    other = mine.path.with_name("notes.page")
    other.write_bytes(b"")
    try:
        found = sample.abandoned_files()
        assert [path in found for path in (mine.path, left, other)] == [False, True, False]
    finally:
        mine.remove()
        left.unlink()
        other.unlink()


def test_where_it_sleeps_is_asked_once_it_has_slept_for_two_looks(child):
    """At any single moment every process may be asleep."""
    rank = watched(child.pid)
    _until_asleep(child.pid)
    first, second = sample.look(rank, 0), sample.look(rank, 0)
    sample.forget(rank)

    assert (first.syscall, first.file, first.frozen) == (None, None, None)
    if sockets.calls_of(os.uname().machine):
        assert (second.syscall, second.file) == ("read", "stdin")
    assert second.frozen in (None, False)


def test_the_thread_that_trains_is_looked_at_instead_of_the_main_one():
    """The main thread joins it. "waiting for a lock in load" was said of a thread that slept."""
    program = (
        "import sys, threading\n"
        "def train():\n    print(threading.get_native_id(), flush=True)\n    sys.stdin.readline()\n"
        "trains = threading.Thread(target=train)\ntrains.start()\ntrains.join()\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        tid = int(started.stdout.readline())
        rank = watched(started.pid)
        _until_seen_in(rank, "futex")
        rank.lead_tid = tid
        _until_seen_in(rank, "pipe")
        sample.forget(rank)
    finally:
        started.communicate("")


def _until_seen_in(rank, wanted):
    """Look until the rank's thread sleeps in this place of the kernel."""
    end = time.monotonic() + 10
    while wanted not in ((found := sample.look(rank, time.monotonic_ns())).wchan or ""):
        assert time.monotonic() < end, found


def test_the_server_on_which_it_waits_is_reported_once_it_has_waited_for_two_looks():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        child = subprocess.Popen(
            [sys.executable, "-c", f"import socket; socket.create_connection({address}).recv(1)"]
        )
        try:
            rank = watched(child.pid)
            held, _ = server.accept()
            with held:
                _until_asleep(child.pid)
                first, second = sample.look(rank, 0), sample.look(rank, 0)
            sample.forget(rank)
        finally:
            child.kill()
            child.wait()

    assert first.remote is None
    if sockets.calls_of(os.uname().machine):
        assert second.remote == f"127.0.0.1:{address[1]}"


def test_the_table_of_all_sockets_is_not_read_at_every_look(child, monkeypatch):
    """A loader that fetches each sample over a connection of its own."""
    asked = []
    monkeypatch.setattr(sample.sockets, "remote", lambda pid, inode: asked.append(inode))
    monkeypatch.setattr(
        sample.sockets,
        "sleeping_in",
        lambda pid, tid: sockets.Sleep("recvfrom", "socket", next(inodes)),
    )
    inodes = itertools.count(1)
    rank = watched(child.pid)
    _until_asleep(child.pid)
    for _ in range(12):
        sample.look(rank, 0)
    sample.forget(rank)

    assert asked == [1, 6, 11]


def _until_asleep(pid):
    for _ in range(2000):
        if Path(f"/proc/{pid}/wchan").read_text() not in ("", "0"):
            return
        threading.Event().wait(0.005)


def test_a_long_collection_and_the_exit_are_read_from_the_state_page():
    page = StatePage(os.getpid(), registry.start_ticks(os.getpid()))
    rank = watched(os.getpid(), page_path=str(page.path))
    seen = []
    for gc_since, exiting in ((0, 0), (4_000_000_000, 0), (4_400_000_000, 0), (4_000_000_000, 1)):
        page.words[layout.GC_SINCE_AT], page.words[layout.EXITING_AT] = gc_since, exiting
        state = sample.look(rank, 4_600_000_000)
        seen.append((state.gc_since_unix_ns is not None, state.exiting))
    sample.forget(rank)

    assert seen == [(False, False), (True, False), (False, False), (True, True)]


def test_the_count_of_oom_kills_is_compared_with_that_of_a_while_ago(tmp_path):
    """A worker that was killed an hour ago is not this rank."""
    rank = watched(os.getpid())
    rank.memory_events = events = tmp_path / "memory.events"
    rank.oom_marked = (0, None)
    counts = []
    for second, count in enumerate((1, 1, 5, 5, 5, 5)):
        events.write_text(f"oom_kill {count}\n")
        rank.note_oom((1 + second * 20) * 1_000_000_000, sample.OOM_MARK_S)
        counts.append(rank.oom_kills)
    sample.forget(rank)

    assert counts == [1, 1, 1, 1, 5, 5]


def test_the_sockets_that_orphans_hold_are_counted():
    """Its DataLoader workers were forked with the rank's connections open."""
    program = (
        "import os, socket, sys\n"
        "pair = socket.socketpair()\n"
        "for _ in range(2):\n"
        "    if os.fork() == 0:\n"
        "        sys.stdin.readline(); os._exit(0)\n"
        "print('up', flush=True)\n"
        "import signal; signal.pause()\n"
    )
    _, gone = killed(program)

    assert len(gone.orphans) == 2
    assert gone.orphan_sockets == 2


@pytest.mark.parametrize(
    ("child", "runs"),
    [
        ("import time; print('up', flush=True)\nwhile True: time.sleep(0.02)", True),
        (PROGRAM, False),
    ],
)
@pytest.mark.parametrize(
    "parent", ["subprocess.call({0})", "subprocess.run(['sh', '-c', '\"$@\"; true', '-', *{0}])"]
)
def test_how_often_the_child_wakes_for_which_a_rank_waits(parent, child, runs):
    """A child of the child counts as well: a shell script runs the scorer."""
    program = f"import subprocess, sys; {parent.format([sys.executable, '-c', child])}"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        process.stdout.readline()
        rank, found = watched(process.pid), None
        deadline = time.monotonic() + 20
        while found is None and time.monotonic() < deadline:
            found = sample.look(rank, time.monotonic_ns()).child_wakes_per_s
            time.sleep(0.3)
        found = sample.look(rank, time.monotonic_ns()).child_wakes_per_s
        sample.forget(rank)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    assert found is not None
    assert (found > POLICY.of(Working).child_working_wakes_per_s) is runs


def test_a_rank_that_waits_for_no_child_has_none_whose_wakes_count(child):
    rank = watched(child.pid)
    looks = [sample.look(rank, at * 1_000_000_000) for at in range(1, 4)]
    sample.forget(rank)

    assert [one.child_wakes_per_s for one in looks] == [None] * 3


def test_the_children_of_a_process_with_thousands_are_bounded():
    children = [
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(3)
    ]
    try:
        assert len(descendants(os.getpid(), 2)) == 2
        assert {child.pid for child in children} <= set(descendants(os.getpid()))
    finally:
        for child in children:
            child.kill()
            child.communicate()
