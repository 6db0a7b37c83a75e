"""Which worker must deliver the next batch, and whether it makes progress."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from weakref import ref

import pytest

from ddtop.agent.limits import LIMITS
from ddtop.agent.notes import LoaderNotes
from ddtop.agent.probes import loader
from ddtop.agent.state_page import StatePage
from ddtop.procfs import descendants, stat_fields
from ddtop.wire import page as layout
from ddtop.wire.records import Feed, WorkerEnd
from tests.waiting import until

SECOND = 1_000_000_000


@pytest.fixture
def child():
    """Starts a Python program that prints a line when it is ready. It is ended by its pid."""
    started = []

    def start(program):
        process = subprocess.Popen(
            [sys.executable, "-c", f"print('ready', flush=True)\n{program}"],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


class Iterator:
    """Torch's iterator, as far as it is read. `owes`: who must deliver the next batch."""

    def __init__(self, *pids, owes=0, shutdown=False):
        self._num_workers = len(pids)
        self._prefetch_factor = 2
        self._pin_memory = False
        self._shutdown = shutdown
        self._workers = [SimpleNamespace(_popen=SimpleNamespace(pid=pid)) for pid in pids]
        self._rcvd_idx, self._task_info = 5, {5: (owes,), 6: (0, "a batch that came too early")}
        self._worker_result_queue = self._data_queue = SimpleNamespace(qsize=lambda: 0)
        self._index_queues = [SimpleNamespace(qsize=lambda: 0) for _ in pids]

    def begins_its_next_epoch(self, *not_taken):
        """Workers get the message to resume; those with these indices have not taken it."""
        self._rcvd_idx, self._task_info = 0, {}
        for place in not_taken:
            self._index_queues[place] = SimpleNamespace(qsize=lambda: 1)


def noted(iterator):
    """What the wrapper notes when this iterator gives a batch."""
    notes = LoaderNotes()
    notes.iterator = ref(iterator)
    return notes


@pytest.fixture
def sampled():
    """`sampled(iterator, waited_s)`: the record of a rank that waits so long; None: not."""
    page, history = StatePage(os.getpid(), 2), loader.LoaderHistory(LIMITS)

    def take(iterator, waited_s):
        page.words[layout.BATCHES_AT] = 50
        page.words[layout.LOADER_WAIT_SINCE_AT] = (
            0 if waited_s is None else time.monotonic_ns() - round(waited_s * SECOND)
        )
        return loader.read(page.words, noted(iterator), None, 0, history)

    take.page = page
    yield take
    page.remove()


class Tracer:
    """A process of that name that traces another one; skipped if not allowed."""

    PROGRAM = """
import ctypes, os, sys
from tests.waiting import until
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
open("/proc/self/comm", "w").write(sys.argv[2])
pid = int(sys.argv[1])
print(libc.ptrace(0x4206, pid, None, None) or libc.ptrace(0x4207, pid, None, None), flush=True)
sys.stdin.read()
"""

    def __init__(self, pid, name):
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM, str(pid), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if self.process.stdout.readline() != b"0\n":
            self.close()
            pytest.skip("ptrace is not allowed here")

    def close(self):
        self.process.kill()
        self.process.communicate()


def test_the_worker_that_owes_is_looked_at_after_a_second_only(child, sampled):
    """While batches come, only one line per worker is read."""
    first, second = child("input()"), child("input()")
    iterator = Iterator(first.pid, second.pid, owes=1)

    early, late = sampled(iterator, 0.2), sampled(iterator, 1.5)

    assert (early.owing_pid, early.workers_cpu_ns, early.owing_wchan) == (second.pid, None, None)
    assert (late.owing_pid, late.workers_alive, late.depth, late.capacity) == (second.pid, 2, 1, 4)
    assert None not in (late.workers_cpu_ns, late.owing_io_bytes, late.owing_switches)


def test_a_worker_that_nothing_waits_for_owes_nothing_that_is_read(child, sampled):
    iterator = Iterator(child("input()").pid)

    assert sampled(iterator, None).workers_cpu_ns is None


def test_a_killed_worker_is_not_alive_and_its_end_is_left_for_the_program(child, sampled):
    """It stays a zombie until the rank waits for it: its exit status is the program's."""
    process = child("input()")
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: loader.worker(process.pid).letter == "Z")
    found = sampled(Iterator(process.pid), 1.5)

    assert (found.owing_state, found.workers_alive) == ("Z", 0)
    assert process.wait() == -signal.SIGKILL
    assert sampled(Iterator(process.pid), 1.5).owing_state is None


def test_a_stopped_worker_is_reported(child, sampled):
    process = child("input()")
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: loader.worker(process.pid).letter == "T")

    assert sampled(Iterator(process.pid), 1.5).owing_state == "T"


def test_a_persistent_worker_that_does_not_go_on_owes_the_epochs_first_batch(child, sampled):
    """No batch has been asked for yet, and torch only counts how many workers have answered."""
    first, second = child("input()"), child("input()")
    iterator = Iterator(first.pid, second.pid)
    iterator.begins_its_next_epoch(1)

    assert sampled(iterator, 1.5).owing_pid == second.pid


def test_of_persistent_workers_the_stopped_one_is_meant(child, sampled):
    """It has taken the message and could not answer; the other is about to take it."""
    first, second = child("input()"), child("input()")
    iterator = Iterator(first.pid, second.pid)
    iterator.begins_its_next_epoch(0)
    os.kill(second.pid, signal.SIGSTOP)
    until(lambda: loader.worker(second.pid).letter == "T")
    found = sampled(iterator, 1.5)

    assert (found.owing_pid, found.owing_state) == (second.pid, "T")


@pytest.mark.parametrize("waited_s", [None, 1.5])
def test_workers_that_have_all_gone_on_owe_nothing(child, sampled, waited_s):
    iterator = Iterator(child("input()").pid)
    iterator.begins_its_next_epoch()

    assert sampled(iterator, waited_s).owing_pid is None


def test_the_page_names_the_worker_that_owes_while_it_is_waited_for_long(child, sampled):
    """The relay reads there whose stack to take."""
    worker = child("input()").pid
    iterator = Iterator(worker)
    words = [
        sampled(iterator, waited_s) and sampled.page.words[layout.OWING_PID_AT]
        for waited_s in (0.2, 1.5, None)
    ]

    assert words == [0, worker, 0]


def test_a_worker_that_py_spy_looks_at_is_not_held_by_a_debugger(child):
    process = child("input()")
    until(lambda: "pipe" in Path(f"/proc/{process.pid}/wchan").read_text())
    letters = {}
    for name in ("py-spy", "gdb"):
        with closing(Tracer(process.pid, name)):
            until(lambda: stat_fields(process.pid)[0] == "t")
            letters[name] = loader.worker(process.pid).letter

    assert letters == {"py-spy": "S", "gdb": "t"}


def test_what_the_worker_has_started_counts_as_its_work(child):
    """A dataset decodes with ffmpeg, so the worker itself only waits."""
    process = child(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import os;"
        " os.getppid()\\nwhile os.getppid() > 1: pass'])"
    )
    begun = loader.movement([loader.worker(process.pid)], process.pid)
    grown = until(
        lambda: (
            (now := loader.movement([loader.worker(process.pid)], process.pid)).cpu_ns
            > begun.cpu_ns + SECOND // 5
            and now
        )
    )
    (busy,) = descendants(process.pid)
    os.kill(busy, signal.SIGKILL)

    assert grown.cpu_ns - begun.cpu_ns >= SECOND // 5


def test_a_standing_worker_does_not_move(child):
    process = child("input()")
    until(lambda: loader.worker(process.pid).letter == "S")
    seen = [loader.movement([loader.worker(process.pid)], process.pid) for _ in range(3)]

    assert len({(one.cpu_ns, one.io_bytes, one.switches) for one in seen}) == 1


def test_a_worker_that_wakes_shows_in_its_switches(child):
    process = child("import time\nwhile True: time.sleep(0.001)")
    begun = loader.movement([loader.worker(process.pid)], process.pid)

    assert until(
        lambda: (
            loader.movement([loader.worker(process.pid)], process.pid).switches
            > begun.switches + 20
        )
    )


def test_an_iterator_that_is_shut_down_waits_for_the_first_worker_that_is_still_there(
    child, sampled
):
    gone, here = child("pass"), child("input()")
    gone.wait()
    until(lambda: loader.worker(here.pid).letter == "S")
    found = sampled(Iterator(gone.pid, here.pid, shutdown=True), None)

    assert (found.closing, found.owing_pid, found.owing_state) == (True, here.pid, "S")
    assert found.workers_cpu_ns is not None


def test_the_agent_never_holds_the_iterator_while_the_program_can_run():
    """Else the agent's thread might shut down the workers, which takes seconds."""
    iterator, references = Iterator(os.getpid()), set()

    def at_each_bytecode(frame, _event, _argument):
        frame.f_trace_opcodes = True
        if frame.f_code.co_filename == loader.__file__:
            references.add(sys.getrefcount(iterator))
        return at_each_bytecode

    notes, page = noted(iterator), StatePage(os.getpid(), 3)
    sys.settrace(at_each_bytecode)
    try:
        found = loader.read(page.words, notes, None, 0, loader.LoaderHistory(LIMITS))
    finally:
        sys.settrace(None)
        page.remove()

    assert found.workers == 1
    assert len(references) == 1


@pytest.mark.parametrize("pid", [0, 1 << 30])
def test_a_process_that_is_not_there_has_no_letter(pid):
    assert loader.worker(pid).letter is None
    assert not loader.worker(pid).alive


def test_one_slow_worker_is_distinguished_from_all_slow_ones(child, sampled):
    """Batches come in turn. If one of three workers is slow, every wait is for that one."""
    pids = [child("input()").pid for _ in range(3)]
    for _ in range(12):
        one = sampled(Iterator(*pids, owes=1), 0.1)
    for turn in range(30):
        all_slow = sampled(Iterator(*pids, owes=turn % 3), 0.1)

    assert (one.owed_most_pid, one.owed_most_ratio) == (pids[1], 1.0)
    assert all_slow.owed_most_ratio == pytest.approx(0.35)


def test_who_owes_is_not_said_of_few_waits_or_of_one_worker(child, sampled):
    alone = child("input()").pid
    few = [sampled(Iterator(alone, os.getpid()), 0.1) for _ in range(loader.OWED_LEAST - 1)]
    single = [sampled(Iterator(alone), 0.1) for _ in range(20)]

    assert {one.owed_most_ratio for one in (*few, *single)} == {None}


def test_between_two_epochs_the_number_of_workers_still_stands():
    history = loader.LoaderHistory(LIMITS)
    set_up = Iterator(1, 2, 3)
    set_up._prefetch_factor = 4
    history.queue_of(ref(set_up), waits=False)

    between = history.queue_of(None, waits=False)

    assert (between.workers, between.prefetch_factor, between.depth) == (3, 4, None)
    assert between.owing is None


def feed_of(dataset, steps):
    return Feed(
        "DistributedSampler", "BatchSampler", dataset, False, epochs=2, steps=steps, same_epoch=True
    )


def test_a_loader_that_validates_does_not_hide_the_one_that_feeds_the_optimizer():
    """The finding epoch-not-set came and went with each validation."""
    history = loader.LoaderHistory(LIMITS)
    told = []
    for feed in (
        feed_of("Train", 0),
        feed_of("Train", 90),
        feed_of("Valid", 0),
        feed_of("Train", 120),
    ):
        history.note_feed(feed)
        told.append(history.feed.dataset)

    assert told == ["Train", "Train", "Train", "Train"]


def test_a_second_training_takes_over_once_its_own_steps_count():
    history = loader.LoaderHistory(LIMITS)
    for feed in (feed_of("Pretrain", 500), feed_of("Tune", 3), feed_of("Tune", 8)):
        history.note_feed(feed)

    assert history.feed.dataset == "Tune"


def test_the_loader_that_is_waited_for_is_not_the_one_of_the_moment():
    history = loader.LoaderHistory(LIMITS)
    slow, fast = loader._Queue(workers=3), loader._Queue(workers=0)
    for total_ns in (1_000, 2_000, 3_000):
        history.note_wait(feed_of("Train", 90), slow, total_ns)
    waited = history.note_wait(feed_of("Valid", 0), fast, 3_010)

    assert (waited.dataset, waited.workers, waited.feeds) == ("Train", 3, True)


# -- the worker that has failed


def started(code, method, pid=5123):
    """A process of multiprocessing, as far as it is read."""
    return SimpleNamespace(_popen=SimpleNamespace(returncode=code, method=method, pid=pid))


class Iterators:
    """A DataLoader's iterator with these processes, and the notes that know it."""

    def __init__(self, workers):
        self._workers, self.notes = workers, LoaderNotes()
        self.notes.iterator = ref(self)


@pytest.fixture
def script(monkeypatch, tmp_path):
    """`script(text)`: this process runs such a script."""

    def run(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(path), raising=False)

    return run


@pytest.mark.parametrize(
    ("text", "method", "code", "reruns"),
    [
        ("train()", "forkserver", 1, True),
        ("train()", "spawn", 1, True),
        ("train()", "fork", 1, False),
        ("train()", "forkserver", -9, False),
        ('if __name__ == "__main__":\n    train()', "forkserver", 1, False),
    ],
)
def test_a_worker_that_failed_had_to_run_a_script_without_a_guard(
    script, text, method, code, reruns
):
    script(text)
    iterator = Iterators([started(None, method), started(code, method, 7)])

    assert loader.first_failed(iterator.notes) == WorkerEnd(7, code, method, reruns)


def test_workers_that_live_or_ended_well_have_not_failed():
    iterator = Iterators([started(None, "fork"), started(0, "fork"), object()])

    assert loader.first_failed(iterator.notes) is None
    assert loader.first_failed(LoaderNotes()) is None
