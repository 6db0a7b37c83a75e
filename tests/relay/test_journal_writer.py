"""The relay's journal: `put` returns at once whatever the disk does; lost frames are counted."""

import os
import threading
from contextlib import closing

import pytest

from ddtop import journal, registry
from ddtop.relay import history
from ddtop.relay.history import JournalWriter, budget
from ddtop.wire import frames
from ddtop.wire.records import Hello, RankState
from tests.journals import read_journal
from tests.relay.stage import Stage, is_a
from tests.waiting import until

FACTS = (b"hello of rank 0", b"hello of rank 1")
DEADLINE_S = 10.0


def numbered(count, first=0):
    return [b"frame %06d " % number + b"x" * 200 for number in range(first, first + count)]


def box_on(path, budget_bytes=8 << 20):
    return JournalWriter(path, budget_bytes, lambda: FACTS)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(history, "FLUSH_S", 0.05)
    monkeypatch.setattr(history, "RETRY_S", 0.05)


class Gate:
    """A disk that accepts nothing until it is opened."""

    def __init__(self, monkeypatch, call="pwrite"):
        self.reached, self.opened = threading.Event(), threading.Event()
        self.whole = getattr(os, call)
        monkeypatch.setattr(os, call, self.pass_through)

    def pass_through(self, *given):
        self.reached.set()
        assert self.opened.wait(DEADLINE_S)
        return self.whole(*given)


@pytest.fixture
def gate(monkeypatch):
    found = Gate(monkeypatch)
    yield found
    found.opened.set()


def test_what_was_put_is_there_when_the_box_is_closed(tmp_path):
    path = tmp_path / "x.journal"
    box = box_on(path)
    for frame in numbered(500):
        box.put(frame)

    assert box.close(DEADLINE_S)
    assert read_journal(path) == journal.JournalFrames((*FACTS, *numbered(500)), None)
    assert (box.dropped, box.problem) == (0, None)


def test_what_was_put_is_on_disk_soon_without_a_close(tmp_path):
    """The scheduler kills the relay with SIGKILL, so the file is never closed."""
    path = tmp_path / "x.journal"
    box = box_on(path)
    box.put(b"first")
    until(path.exists)
    box.put(b"second")

    until(lambda: read_journal(path).frames == (*FACTS, b"first", b"second"))

    assert box.close(DEADLINE_S)


def test_a_file_server_that_hangs_stalls_nobody_and_costs_the_oldest_frames(
    tmp_path, gate, monkeypatch
):
    monkeypatch.setattr(history, "QUEUE_FRAMES", 100)
    path = tmp_path / "x.journal"
    box = box_on(path)
    box.put(b"first")
    assert gate.reached.wait(DEADLINE_S)
    # The gate is shut, so a put that waits for the disk would never return.
    for frame in numbered(1000):
        box.put(frame)

    assert not box.close(0.05)
    gate.opened.set()
    assert box.close(DEADLINE_S)

    frames = read_journal(path).frames
    assert box.dropped == 900
    assert frames[-100:] == tuple(numbered(100, first=900))
    assert set(frames[:-100]) == {*FACTS, b"first"}


def test_the_queue_is_bounded_in_bytes_too(tmp_path, gate, monkeypatch):
    monkeypatch.setattr(history, "QUEUE_BYTES", 10_000)
    box = box_on(tmp_path / "x.journal")
    box.put(b"first")
    assert gate.reached.wait(DEADLINE_S)
    for _ in range(20):
        box.put(b"y" * 1000)
    gate.opened.set()

    assert box.close(DEADLINE_S)
    assert box.dropped == 10


def test_the_last_words_are_written_though_the_disk_was_still_busy_with_those_before(
    tmp_path, monkeypatch
):
    """The exit of the last rank comes while a minute of frames is confirmed."""
    monkeypatch.setattr(history, "SYNC_S", 0.0)
    path = tmp_path / "x.journal"
    box = box_on(path)
    box.put(b"first")
    until(path.exists)
    busy = Gate(monkeypatch, "fdatasync")
    box.put(b"before")
    assert busy.reached.wait(DEADLINE_S)
    box.put(b"last")
    box.close(0.0)
    busy.opened.set()

    assert box.close(DEADLINE_S)
    assert read_journal(path).frames == (*FACTS, b"first", b"before", b"last")


def test_after_a_gap_the_facts_are_written_again(tmp_path, monkeypatch):
    """Otherwise the Hello of a rank that came while the disk was full would be missing for ever."""
    known = [b"hello of rank 0"]
    monkeypatch.setattr(history, "QUEUE_FRAMES", 1)
    whole, full = os.pwrite, threading.Event()

    def pwrite(descriptor, data, at):
        if full.is_set():
            raise OSError(28, "No space left on device")
        return whole(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    path = tmp_path / "x.journal"
    box = JournalWriter(path, 8 << 20, lambda: known)
    box.put(b"first")
    until(path.exists)
    until(lambda: b"first" in read_journal(path).frames)
    full.set()
    box.put(b"lost")
    until(lambda: box.problem)
    known.append(b"hello of rank 1")
    box.put(b"last")
    full.clear()
    until(lambda: box.problem is None)

    assert box.close(DEADLINE_S)
    assert read_journal(path).frames == (b"hello of rank 0", b"first", b"hello of rank 1", b"last")
    assert box.dropped == 1


def test_why_nothing_is_written_is_reported_and_it_is_tried_again(tmp_path):
    path = tmp_path / "folder" / "x.journal"
    box = box_on(path)
    box.put(b"first")

    problem = until(lambda: box.problem)
    path.parent.mkdir()
    until(lambda: box.problem is None)

    assert "No such file or directory" in problem
    assert str(path) in problem
    assert box.close(DEADLINE_S)
    assert read_journal(path).frames == (*FACTS, b"first")


def test_a_mistake_in_what_is_carried_over_does_not_end_the_box(tmp_path):
    answers = iter([RuntimeError("dictionary changed size during iteration")])

    def carried():
        for error in answers:
            raise error
        return FACTS

    path = tmp_path / "x.journal"
    box = JournalWriter(path, 8 << 20, carried)
    box.put(b"first")
    until(lambda: box.problem)
    box.put(b"second")
    until(path.exists)

    assert box.close(DEADLINE_S)
    assert b"second" in read_journal(path).frames


def test_what_is_no_frame_is_dropped_and_counted(tmp_path):
    path = tmp_path / "x.journal"
    box = box_on(path)
    for frame in (b"", b"x" * ((1 << 20) + 1), b"good"):
        box.put(frame)

    assert box.close(DEADLINE_S)
    assert read_journal(path).frames == (*FACTS, b"good")
    assert box.dropped == 2


def test_a_box_of_no_size_writes_nothing(tmp_path):
    box = box_on(tmp_path / "x.journal", 0)
    box.put(b"first")

    assert box.close(DEADLINE_S)
    assert list(tmp_path.iterdir()) == []
    assert (box.dropped, box.problem) == (0, None)


def test_the_budget_holds_on_the_way(tmp_path):
    path = tmp_path / "x.journal"
    box = box_on(path, 64 << 10)
    sizes = []
    for start in range(0, 3000, 100):
        for frame in numbered(100, first=start):
            box.put(frame)
        last = numbered(1, first=start + 99)[0]
        until(
            lambda last=last: any(tmp_path.glob("x.*")) and last in read_journal(path).frames[-100:]
        )
        sizes.append(sum(one.stat().st_size for one in tmp_path.iterdir()))

    assert box.close(DEADLINE_S)
    assert max(sizes) <= 64 << 10
    assert read_journal(path).frames[-1] == numbered(1, first=2999)[0]


@pytest.mark.parametrize(
    ("text", "mib", "said"),
    [
        (None, 64, False),
        ("", 64, False),
        ("1", 1, False),
        (" 128 ", 128, False),
        ("0", 0, False),
        ("-1", 64, True),
        ("64M", 64, True),
        ("1e9", 64, True),
        ("99999999", 64, True),
        ("٣", 64, True),
    ],
)
def test_the_size_is_what_the_user_says_and_a_bad_one_is_reported(text, mib, said):
    size, wrong = budget({} if text is None else {"DDTOP_JOURNAL_MIB": text})

    assert size == mib << 20
    assert (wrong is not None) == said
    assert wrong is None or ("DDTOP_JOURNAL_MIB" in wrong and "64 is used" in wrong)


# -- in the relay


@pytest.mark.parametrize("mib", ["64", "0"])
def test_what_a_relay_forwards_is_in_its_journal_and_its_successor_writes_on(
    home, monkeypatch, mib
):
    monkeypatch.setenv("DDTOP_JOURNAL_MIB", mib)
    path = registry.journal_path("train", "r1")
    for iteration in (7, 8):
        with closing(Stage(home)) as stage:
            link, _ = stage.rank()
            stage.says(link, RankState("running", iteration=iteration))
            stage.heard(stage.viewer(), is_a(RankState))

    if mib == "0":
        assert not path.exists()
        return
    found = [frames.open_record(frames.open_envelope(data)) for data in read_journal(path).frames]
    assert [record.iteration for record in found if isinstance(record, RankState)] == [7, 8]
    assert len([record for record in found if isinstance(record, Hello)]) == 2
    assert read_journal(path).damage is None
