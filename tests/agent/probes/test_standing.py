"""What the agent remembers of a rank that makes no progress: earlier stays at its line, and a file
that it writes while it handles an exception."""

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddtop import procfs
from ddtop.agent.limits import LIMITS
from ddtop.agent.probe import Tick
from ddtop.agent.probes import main_thread
from ddtop.agent.probes.main_thread import Standing
from ddtop.agent.stacks.frames import COLLECTIVE, LOADER, OTHER, ThreadLook
from ddtop.agent.stacks.walk import Handled
from ddtop.wire.page import LEAD_AT, SLOTS_AT
from ddtop.wire.records import Group, Handling, Place

SECOND = 1_000_000_000


class Bench:
    """The probe of one rank. `handled`: what its thread handles."""

    def __init__(self):
        self.handled = None
        self.stack = []
        walk = SimpleNamespace(
            handled_exception=lambda _thread: self.handled, stack=lambda _thread, _most: self.stack
        )
        rank = SimpleNamespace(
            limits=LIMITS,
            lead_id=1,
            main_id=1,
            started_unix_ns=100 * SECOND,
            frames=SimpleNamespace(walk=walk, is_user=lambda file: "lib" not in file),
            dump_file=SimpleNamespace(descriptor=None),
            page=SimpleNamespace(words=[0] * SLOTS_AT),
        )
        self.rank, self.probe, self.tick = rank, Standing(rank), Tick()
        self.tick.now = 100 * SECOND

    def moves(self):
        """The rank makes progress, which the next tick knows."""
        self.tick.now += SECOND // 4
        self.tick.moved_at = self.tick.now

    def stands(self, seconds, line=40, activity=OTHER, meanwhile=lambda: None):
        seen = self.tick.seen = ThreadLook()
        seen.function, seen.file, seen.line, seen.activity = "serve", "farm.py", line, activity
        for _ in range(round(seconds * 4)):
            self.tick.now += SECOND // 4
            meanwhile()
            self.probe.sample(self.tick)

    @property
    def stayed_s(self):
        return self.probe.fields(self.tick).keywords["stayed_s"]

    @property
    def handling(self):
        return self.probe.fields(self.tick).keywords["handling"]

    @property
    def in_handler(self):
        return self.probe.fields(self.tick).keywords["in_handler"]

    @property
    def writes(self):
        return self.probe.fields(self.tick).keywords["writes_since_unix_ns"]

    @property
    def moves_since(self):
        return self.probe.fields(self.tick).keywords["moves_since_unix_ns"]


def invalid():
    return Handled("ValueError", ("record is not valid",), [])


def refused(number):
    return Handled("OSError", (number, "Connection refused"), [])


@pytest.fixture
def bench():
    found = Bench()
    found.moves()
    return found


def stood(bench, seconds, **more):
    """It stands, then makes progress elsewhere."""
    bench.stands(seconds, **more)
    bench.moves()
    bench.stands(1, line=99)


def test_where_it_stands_for_the_first_time_it_has_not_stood(bench):
    bench.stands(30)

    assert bench.stayed_s is None


def test_the_longest_stay_at_a_line_is_remembered(bench):
    stood(bench, 12)
    bench.moves()
    stood(bench, 5)
    bench.moves()
    bench.stands(4)

    assert bench.stayed_s == pytest.approx(12, abs=0.5)


def test_the_wait_for_the_first_work_counts_from_when_the_rank_has_joined():
    bench = Bench()
    bench.rank.started_unix_ns = 130 * SECOND
    bench.stands(30)
    bench.tick.groups = (Group("0", "default_pg", (0, 1), "gloo"),)
    stood(bench, 12)
    bench.moves()
    bench.stands(4)

    assert bench.stayed_s == pytest.approx(12, abs=0.5)


@pytest.mark.parametrize(("started_s", "stayed_s"), [(93.0, 19), (40.0, 24)])
def test_the_first_stay_may_have_begun_while_the_rank_started(started_s, stayed_s):
    """Files come every 20 s, and the imports took 8 s of the first 20; but it is no longer than
    twice the stay."""
    bench = Bench()
    bench.rank.started_unix_ns = started_s * SECOND
    bench.moves()
    stood(bench, 12)
    stood(bench, 3)
    bench.stands(4)

    assert bench.stayed_s == pytest.approx(stayed_s, abs=1)


@pytest.mark.parametrize(
    ("before", "now"),
    [({}, {"line": 41}), ({"activity": LOADER}, {}), ({}, {"seconds": 1})],
    ids=["another line", "its DataLoader", "it has only just come"],
)
def test_another_stay_says_nothing_of_this_one(bench, before, now):
    stood(bench, 12, **before)
    bench.moves()
    bench.stands(**({"seconds": 4} | now))

    assert bench.stayed_s is None


def test_a_look_at_another_line_of_a_loop_that_polls_hides_nothing(bench):
    stood(bench, 12)
    bench.moves()
    bench.stands(4)
    bench.stands(0.25, line=39)

    assert bench.stayed_s == pytest.approx(12, abs=0.5)


# -- the end of a sleep


@pytest.mark.skipif(sys.version_info < (3, 11), reason="before 3.11 sleep() is a select()")
@pytest.mark.parametrize("sleeps", [True, False])
@pytest.mark.parametrize("joined", [True, False])
def test_the_end_of_a_sleep_is_read_from_the_kernel(sleeps, joined):
    """A thread that waits for a lock has no such end, with a time limit neither."""
    bench = Bench()
    bench.tick.line_since = bench.tick.now
    if joined:
        bench.moves()
    began, done = time.monotonic_ns(), threading.Event()
    thread = threading.Thread(target=lambda: time.sleep(5) if sleeps else done.wait(5), daemon=True)
    thread.start()
    bench.rank.page.words[LEAD_AT] = thread.native_id
    task = Path(f"/proc/self/task/{thread.native_id}/syscall")
    while not task.read_text().startswith(("230 ", "115 ") if sleeps else ("202 ", "98 ")):
        time.sleep(0.01)
    bench.stands(3)
    found = bench.probe.fields(bench.tick).keywords
    done.set()

    if sleeps:
        assert found["sleeps_until_unix_ns"] == pytest.approx(began + 5 * SECOND, abs=SECOND)
        assert found["sleeps_since_unix_ns"] < bench.tick.now
    else:
        assert found["sleeps_until_unix_ns"] is found["sleeps_since_unix_ns"] is None


# -- writing in a handler


@pytest.fixture(autouse=True)
def only_files_of_this_test(monkeypatch, tmp_path):
    """Other files of this process may grow meanwhile: those of pytest, and of threads."""

    def below_tmp_path(pid, name):
        numbers = procfs.names_in(pid, name) or ()
        ours = str(tmp_path)
        return [one for one in numbers if (procfs.link(pid, f"fd/{one}") or "").startswith(ours)]

    monkeypatch.setattr(main_thread, "names_in", below_tmp_path)


def writing(path, data=b"a line\n"):
    """(a file that is open, what writes a line to it)."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return descriptor, lambda: os.write(descriptor, data)


def test_a_file_that_grows_while_one_exception_is_handled_is_told_with_its_beginning(
    bench, tmp_path
):
    descriptor, writes = writing(tmp_path / "bad.log")
    bench.handled = invalid()
    bench.stands(8, meanwhile=writes)
    since = bench.writes
    os.close(descriptor)

    # It looks only after two seconds without progress.
    assert since == pytest.approx(102.25 * SECOND, abs=SECOND / 2)


def test_once_the_file_grows_no_more_it_is_not_told(bench, tmp_path):
    descriptor, writes = writing(tmp_path / "bad.log")
    bench.handled = invalid()
    bench.stands(4, meanwhile=writes)
    bench.stands(3)
    since = bench.writes
    os.close(descriptor)

    assert since is None


def test_a_loop_that_tries_again_handles_another_exception_each_time(bench, tmp_path):
    """`except OSError: log.warning(...); time.sleep(1)`: the arguments are equal, and others."""
    descriptor, writes = writing(tmp_path / "retries.log")
    tries = iter(range(100))

    def fails():
        writes()
        if next(tries) % 4 == 0:
            bench.handled = refused(int("111"))

    bench.handled = refused(111)
    bench.stands(8.25, meanwhile=fails)
    since = bench.writes
    os.close(descriptor)

    assert since is None or since > bench.tick.now - SECOND


@pytest.mark.parametrize("how", ["no exception", "reads", "ddtop's own"])
def test_other_writing_is_no_work(bench, tmp_path, how):
    path = tmp_path / "bad.log"
    path.write_bytes(b"a line\n" * 100)
    descriptor, go_on = writing(path)
    if how == "reads":
        os.close(descriptor)
        descriptor = os.open(path, os.O_RDONLY)
        go_on = lambda: os.read(descriptor, 7)  # noqa: E731
    if how == "ddtop's own":
        bench.rank.dump_file.descriptor = descriptor
    bench.handled = None if how == "no exception" else invalid()
    bench.stands(8, meanwhile=go_on)
    since = bench.writes
    os.close(descriptor)

    assert since is None


# -- a file that is read or written in pieces


PIECES = {
    "reads bytes": (os.O_RDONLY, lambda descriptor: os.read(descriptor, 7)),
    "writes kilobytes": (os.O_WRONLY, lambda descriptor: os.write(descriptor, b"x" * 2000)),
}
NO_PIECES = {
    "writes a log": (os.O_WRONLY | os.O_APPEND, lambda descriptor: os.write(descriptor, b"late\n")),
    "reads the same again": (os.O_RDONLY, lambda descriptor: os.pread(descriptor, 7, 0)),
    "looks at it": (os.O_RDONLY, os.fstat),
}


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize(("flags", "piece"), PIECES.values(), ids=PIECES)
def test_a_file_whose_position_moves_is_told_with_its_beginning(tmp_path, flags, piece, joined):
    """Before it joins, too: each rank restores its shard first."""
    bench = Bench()
    bench.tick.line_since = bench.tick.now
    if joined:
        bench.moves()
    path = tmp_path / "shard1.bin"
    path.write_bytes(b"a line\n" * 1000)
    descriptor = os.open(path, flags)
    bench.stands(12, meanwhile=lambda: piece(descriptor))
    since = bench.moves_since
    bench.stands(6)
    later = bench.moves_since
    os.close(descriptor)

    # It looks once a second, after two seconds without progress.
    assert since == pytest.approx(103.5 * SECOND, abs=SECOND)
    assert later is None


@pytest.mark.parametrize(("flags", "piece"), NO_PIECES.values(), ids=NO_PIECES)
def test_what_a_loop_that_waits_does_with_a_file_is_no_work(bench, tmp_path, flags, piece):
    path = tmp_path / "status"
    path.write_bytes(b"a line\n")
    descriptor = os.open(path, flags)
    bench.stands(12, meanwhile=lambda: piece(descriptor))
    since = bench.moves_since
    os.close(descriptor)

    assert since is None


def test_a_file_that_was_read_before_the_last_progress_is_no_work_now(bench, tmp_path):
    path = tmp_path / "shard1.bin"
    path.write_bytes(b"a line\n" * 1000)
    descriptor = os.open(path, os.O_RDONLY)
    bench.stands(4)
    bench.moves()
    os.read(descriptor, 700)
    bench.stands(8)
    since = bench.moves_since
    os.close(descriptor)

    assert since is None


def test_the_exception_that_a_standing_thread_handles_is_told_with_the_program_s_own_line(bench):
    places = [
        ("farm.py", "main", 12),
        ("farm.py", "save", 31),
        ("/lib/torch/serialization.py", "w", 9),
    ]
    full = Handled("OSError", (28, "No space left on device"), places)
    bench.handled = full
    before = bench.handling
    bench.stands(4)

    assert before is None
    assert bench.handling == Handling(
        "OSError", "[Errno 28] No space left on device", Place("save", "farm.py", 31)
    )
    bench.handled = Handled("MemoryError", (), [("/lib/torch/serialization.py", "w", 9)])
    bench.stands(1, activity=COLLECTIVE)
    assert bench.handling == Handling(
        "MemoryError", "", Place("w", "/lib/torch/serialization.py", 9)
    )
    bench.moves()
    bench.stands(1)
    assert bench.handling is None


def test_the_file_of_the_exception_is_told(bench):
    bench.handled = Handled("OSError", (28, "full"), [("farm.py", "save", 31)], Path("/ckpt/7.pt"))
    bench.stands(4)

    assert bench.handling.path == "/ckpt/7.pt"


class Trainer:
    def on_usr1(self, _number, _frame):
        """A handler that saves."""


def on_usr1(_number, _frame):
    """A plain handler."""


@pytest.fixture(params=[Trainer().on_usr1, on_usr1], ids=["method", "function"])
def handler(request):
    before = signal.signal(signal.SIGUSR1, request.param)
    yield request.param.__code__
    signal.signal(signal.SIGUSR1, before)


def frame(function, line, file=__file__):
    return ((file, function, function, line), 1)


def test_the_signal_is_told_in_whose_handler_the_thread_stands(bench, handler):
    bench.stack = [frame("save", 90), frame(handler.co_name, 31), frame("train", 12)]
    bench.stands(4)

    assert bench.in_handler == Handling("SIGUSR1", "", Place("on_usr1", __file__, 31))
    bench.moves()
    bench.stands(1)
    assert bench.in_handler is None


def test_another_function_and_another_thread_are_in_no_handler(bench, handler):
    bench.stack = [frame(handler.co_name, 31, "other.py"), frame("train", 12)]
    bench.stands(4)
    elsewhere = bench.in_handler
    bench.stack, bench.rank.lead_id = [frame(handler.co_name, 31)], 2
    bench.stands(1)

    assert (elsewhere, bench.in_handler) == (None, None)


def test_an_exception_by_which_programs_poll_is_not_told(bench):
    bench.handled = Handled("Empty", (), [("farm.py", "poll", 3)])
    bench.stands(4)

    assert bench.handling is None


@pytest.fixture
def waits():
    """Threads that take from a queue for ever, each wait with this time limit."""
    queues = []

    def start(limit_s=None):
        items = queue.Queue()

        def takes():
            item = True
            while item is not None:
                with contextlib.suppress(queue.Empty):
                    item = items.get(timeout=limit_s)

        thread = threading.Thread(target=takes)
        thread.start()
        queues.append((items, thread))
        return items, thread.native_id

    yield start
    for items, _ in queues:
        items.put(None)
    for _, thread in queues:
        thread.join()


def wakes(tid, but=None):
    """How often the thread has gone to sleep, once it waits, and other than so often."""
    end = time.monotonic() + 20
    while (found := main_thread.wakes_of_wait(tid)) in (None, but):
        assert time.monotonic() < end
        time.sleep(0.001)
    return found


def test_a_rank_that_is_fed_by_another_thread_moves(bench, waits):
    items, tid = waits()
    bench.rank.page.words[LEAD_AT] = tid
    before = wakes(tid)
    bench.stands(6)
    stood = bench.moves_since
    items.put(1)
    wakes(tid, but=before)
    bench.stands(1)
    fed = bench.moves_since
    bench.stands(6)

    assert (stood, bench.moves_since) == (None, None)
    assert fed is not None


def test_a_wait_that_reaches_its_time_limit_is_no_move(bench, waits):
    _, tid = waits(0.01)
    bench.rank.page.words[LEAD_AT] = tid
    bench.stands(30, meanwhile=lambda: time.sleep(0.005))

    assert bench.moves_since is None
