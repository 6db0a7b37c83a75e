"""Ends of ranks without a pidfd: an old kernel, a filter, no descriptor left, or too late."""

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from ddtop import journal, procfs, registry
from ddtop.agent.state_page import StatePage
from ddtop.link.rank_listener import Credentials
from ddtop.relay.processes import sample
from ddtop.relay.processes.ranks import EXIT_UNSEEN_S, Ranks
from ddtop.relay.requests import OrderError, send_signal
from ddtop.relay.server import Viewers
from ddtop.wire import frames
from ddtop.wire.page import EXITING_AT
from ddtop.wire.records import Exit, Hello
from tests.relay.stage import DEADLINE_S, Stage, is_a, sees_ranks
from tests.speaking import process_with_link

WAITS = "import sys; sys.stdin.readline(); sys.exit(3)"


class NoLink:
    """A link that is only asked for its descriptors."""

    def __init__(self):
        self.held = []
        self.made_by = 0

    def credentials(self, peer):
        return Credentials(self.made_by, os.getuid())

    def watch(self, descriptor):
        self.held.append(descriptor)

    def unwatch(self, descriptor):
        self.held.remove(descriptor)


@pytest.fixture
def children():
    started = []

    def start(code=WAITS):
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture(params=[errno.ENOSYS, errno.EPERM, errno.EMFILE])
def no_pidfd(request, monkeypatch):
    """os.pidfd_open fails as on an old kernel, under a filter, or at the limit of descriptors."""

    def fails(pid, flags=0):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(os, "pidfd_open", fails)


@pytest.fixture
def ranks():
    return Ranks(NoLink(), lambda record: b"")


def hello(pid, rank=0, ticks=None, **more):
    ticks = registry.start_ticks(pid) if ticks is None else ticks
    return Hello("train", "r1", 0, rank, rank, 2, "h", pid, ticks or 1, script="train", **more)


def zombie(child):
    """The child has ended and has not been reaped."""
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def test_ranks_without_a_pidfd_are_watched_and_their_ends_told_with_codes_in_order(home, no_pidfd):
    with closing(Stage(home)) as stage:
        stage.rank(0, code=WAITS)
        stage.rank(1, code=WAITS)
        first, second = stage.children[1], stage.children[0]
        viewer = stage.viewer()
        stage.heard(viewer, lambda record: sees_ranks(record) and len(record.processes) == 2)

        first.send_signal(signal.SIGKILL)
        one = stage.heard(viewer, is_a(Exit))[-1]
        second.stdin.write(b"\n")
        second.stdin.flush()
        two = stage.heard(viewer, is_a(Exit))[-1]

        assert (one.rank, one.signal, one.order, one.how) == (1, 9, 0, "zombie")
        assert (two.rank, two.code, two.order, two.how) == (0, 3, 1, "zombie")


def test_a_relay_without_pidfds_ends_after_its_ranks_and_the_job_is_not_live(
    home, no_pidfd, monkeypatch
):
    with closing(Stage(home, linger_s=0.1)) as stage:
        stage.rank(0)
        stage.rank(1)
        viewer = stage.viewer()
        stage.heard(viewer, lambda record: sees_ranks(record) and len(record.processes) == 2)
        viewer.close()
        for child in stage.children:
            child.kill()
            child.wait()
        # As after ten seconds of silence, and on the relay's own thread.
        monkeypatch.setattr(Viewers.forget_silent, "__defaults__", (0.0,))

        stage.thread.join(DEADLINE_S)

        assert not stage.thread.is_alive()
        (entry,) = registry.read_entries()
        assert entry.ended_unix_ns is not None
        assert not entry.live(time.time_ns())


def test_a_rank_that_had_gone_before_its_hello_was_read_is_reported_as_gone_and_the_relay_ends(
    home, children, monkeypatch
):
    """No relay saw its end, so the job stayed live for hours."""
    monkeypatch.setattr("ddtop.relay.processes.ranks.EXIT_UNSEEN_S", 0.2)
    with closing(Stage(home, linger_s=0.1)) as stage:
        gone, from_it = process_with_link(registry.socket_path("train", "r1"), WAITS)
        stage.links.append(from_it)
        said = hello(gone.pid)
        gone.communicate(b"\n")
        told = []
        publish = stage.server.publish
        monkeypatch.setattr(
            stage.server,
            "publish",
            lambda record, *a, **k: (told.append(record), publish(record, *a, **k)),
        )
        stage.rank(1)
        stage.says(from_it, said, 0, gone.pid)
        stage.children[0].kill()
        stage.children[0].wait()

        stage.thread.join(DEADLINE_S)

        assert not stage.thread.is_alive()
        ends = {one.rank: one for one in told if isinstance(one, Exit)}
        assert sorted(ends) == [0, 1]
        assert (ends[0].code, ends[0].signal, ends[0].how) == (None, None, "unknown")
        (entry,) = registry.read_entries()
        assert entry.ended_unix_ns is not None


def test_a_rank_whose_process_cannot_be_seen_lives_while_it_is_heard(ranks, children):
    """/proc may hide the process. Its own report is better evidence."""
    gone = children()
    said = hello(gone.pid)
    gone.communicate("\n")
    ranks.greet(said)
    ranks._link.made_by = gone.pid
    ranks.heard(b"peer", gone.pid)
    heard = time.monotonic()

    assert ranks.look_for_ends(heard + EXIT_UNSEEN_S - 0.5) == []
    assert len(ranks) == 1

    ((one, at),) = ranks.look_for_ends(heard + EXIT_UNSEEN_S + 0.5)

    assert one.hello is said
    assert len(ranks) == 0
    # The time when it was last heard, not when it was missed.
    assert abs(time.time_ns() - at - (EXIT_UNSEEN_S + 0.5) * 1e9) < 0.4e9


def test_a_rank_is_not_gone_where_proc_cannot_be_read(ranks, children, monkeypatch, no_pidfd):
    """At the limit of descriptors no file can be opened. That proves nothing about the ranks."""
    child = children()
    ranks.greet(hello(child.pid))

    def no_descriptor(*_args, **_more):
        raise OSError(errno.EMFILE, "too many")

    with monkeypatch.context() as patched:
        patched.setattr(procfs, "open", no_descriptor, raising=False)
        assert sample.is_gone(child.pid, 1) is None
        assert ranks.look_for_ends(time.monotonic()) == []
    child.kill()
    zombie(child)

    assert [one.hello.pid for one, _ in ranks.look_for_ends(time.monotonic())] == [child.pid]


def test_of_two_that_went_between_two_looks_the_page_tells_who_went_first(
    ranks, children, no_pidfd
):
    pair = [children(), children()]
    pages = [StatePage(child.pid, registry.start_ticks(child.pid)) for child in pair]
    try:
        for rank, (child, page) in enumerate(zip(pair, pages, strict=True)):
            ranks.greet(hello(child.pid, rank, page_path=str(page.path)))
            child.kill()
            zombie(child)
        pages[1].words[EXITING_AT] = time.monotonic_ns() - 1_000_000_000

        assert [one.hello.rank for one, _ in ranks.look_for_ends(time.monotonic())] == [1, 0]
    finally:
        for page in pages:
            page.remove()


def test_a_process_whose_main_thread_has_ended_first_still_lives(children):
    number = {"x86_64": 60, "aarch64": 93}.get(os.uname().machine)
    if number is None:
        pytest.skip("the number of exit() is not known here")
    child = children(
        "import ctypes, os, sys, threading\n"
        "def other():\n"
        "    while 'Z' not in open('/proc/self/stat').read().rpartition(')')[2]: pass\n"
        "    print('up', flush=True); sys.stdin.readline(); os._exit(0)\n"
        f"threading.Thread(target=other).start(); ctypes.CDLL(None).syscall({number}, 0)"
    )
    ticks = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
    child.stdout.readline()
    lives = sample.is_gone(child.pid, ticks)
    child.stdin.write("\n")
    child.stdin.flush()
    zombie(child)

    assert (lives, sample.is_gone(child.pid, ticks)) == (False, True)


def test_a_pid_with_another_start_time_is_gone(children):
    child = children()

    assert sample.is_gone(child.pid, 1) is True
    assert sample.is_gone(child.pid, registry.start_ticks(child.pid)) is False


def test_a_pid_with_a_new_owner_ends_the_old_rank_before_the_new_one_is_watched(
    ranks, children, no_pidfd
):
    child = children()
    old = sample.Watched(hello(child.pid, rank=0, ticks=1), None, 0)
    ranks.watched[child.pid] = old
    new = hello(child.pid, rank=1)

    assert ranks.greet(new)

    assert ranks.watched[child.pid].hello is new
    assert [one for one, _ in ranks.look_for_ends(time.monotonic())] == [old]


def test_a_hello_that_is_read_after_the_end_of_its_rank_is_no_new_rank(ranks, children):
    child = children()
    said = hello(child.pid)
    ranks.greet(said)
    child.kill()
    child.wait()
    (pidfd,) = ranks._link.held
    ranks.forget(ranks.take_ended(pidfd))

    assert not ranks.greet(said)
    assert len(ranks) == 0


def test_a_pidfd_is_asked_for_again_when_the_shortage_is_over(ranks, children, monkeypatch):
    child = children()
    with monkeypatch.context() as patched:
        patched.setattr(os, "pidfd_open", lambda *_: exec("raise OSError(24, 'too many')"))
        ranks.greet(hello(child.pid))
        assert ranks.look_due_s() < time.monotonic()

    ranks.look_for_ends(time.monotonic())

    assert len(ranks._link.held) == 1
    assert ranks.look_due_s() == float("inf")
    ranks.forget(ranks.take_ended(ranks._link.held[0]))


def test_a_signal_is_refused_where_it_could_reach_another_process(children, no_pidfd):
    child = children()
    one = sample.watch(hello(child.pid), 0)
    one.spoke = True

    with pytest.raises(OrderError, match=f"by hand: kill -15 {child.pid}"):
        send_signal(one, ("0", str(child.pid), "15"))
    assert child.poll() is None


def sealed(record, rank, pid):
    return frames.seal(record, sender="h", unix_ns=time.time_ns(), mono_ns=0, rank=rank, pid=pid)


def test_a_rank_that_went_while_there_was_no_relay_is_reported_as_gone_by_the_next(
    home, children, monkeypatch
):
    """Its predecessor reported one end. The other rank ended while no relay was there."""
    told, missed, left = children(), children(), children()
    hellos = [hello(child.pid, rank) for rank, child in enumerate((told, missed, left))]
    for child in (told, missed):
        child.communicate("\n")
    known = Exit(0, told.pid, 3, None, None, 0, "pidfd")
    journal.write(
        registry.roster_path("train", "r1"),
        [*(sealed(one, one.rank, one.pid) for one in hellos), sealed(known, 0, told.pid)],
    )
    monkeypatch.setattr("ddtop.relay.processes.ranks.EXIT_UNSEEN_S", 0.2)
    with closing(Stage(home)) as stage:
        viewer = stage.viewer()
        found = stage.heard(viewer, lambda record: isinstance(record, Exit) and record.rank == 1)
        left.kill()
        found += stage.heard(viewer, lambda record: isinstance(record, Exit) and record.rank == 2)

        ends = [(one.rank, one.how) for one in found if isinstance(one, Exit)]
        assert ends[:2] in ([(0, "pidfd"), (1, "unknown")], [(1, "unknown"), (0, "pidfd")])
        assert [rank for rank, _ in ends] in ([0, 1, 2], [1, 0, 2])
