"""The writing side of the state page."""

import contextlib
import errno
import os
import threading
import time
from pathlib import Path

import msgspec
import pytest

from ddtop import registry
from ddtop.agent.state_page import StatePage
from ddtop.wire import page as layout
from ddtop.wire.page import read_page
from ddtop.wire.records import LastException, Place, Whereabouts


@pytest.fixture
def page():
    """A page of this process; the relay would remove its file."""
    made = StatePage(os.getpid(), registry.start_ticks(os.getpid()))
    yield made
    made.remove()


def test_the_relay_reads_since_when_a_rank_is_inside_init(page):
    page.enter_call(layout.CALLS.index("recv"), 0)
    assert read_page(page.path.read_bytes()).init_since_mono_ns == 0

    before = time.monotonic_ns()
    slot = page.enter_call(layout.CALLS.index("init_process_group"))
    assert before <= read_page(page.path.read_bytes()).init_since_mono_ns <= time.monotonic_ns()

    page.leave_call(slot)
    assert read_page(page.path.read_bytes()).init_since_mono_ns == 0


def test_what_the_rank_writes_the_relay_reads_from_the_file(page):
    page.words[layout.ITERATION_AT], page.words[layout.ITERATION_SOURCE_AT] = 1203, 1
    page.words[layout.EXITING_AT] = 7
    page.write(layout.EXCEPTION, msgspec.msgpack.encode(LastException("ValueError", "bad", 9)))

    seen = read_page(page.path.read_bytes())

    assert (seen.iteration, seen.exiting_mono_ns) == (1203, 7)
    assert seen.exception == LastException("ValueError", "bad", 9)


def test_the_file_is_private_and_whole(page):
    """A sparse page on a full /dev/shm would end the training by SIGBUS."""
    found = page.path.stat()

    assert found.st_mode & 0o777 == 0o600
    assert found.st_blocks * 512 >= layout.PAGE_BYTES
    assert page.path.parent.stat().st_mode & 0o777 == 0o700
    assert page.path.name == f"{os.getpid()}-{registry.start_ticks(os.getpid())}.page"


def test_calls_of_one_thread_nest(page):
    """new_group inside init_process_group: the outer call must still be on the page."""
    outer = page.enter_call(layout.CALLS.index("init_process_group"))
    inner = page.enter_call(layout.CALLS.index("new_group"))
    both = [call[0] for call in page.open_calls()]
    page.leave_call(inner)

    assert both == [1, 2]
    assert [call[0] for call in page.open_calls()] == [1]
    page.leave_call(outer)
    assert page.open_calls() == []


def test_a_call_says_since_when_with_whom_and_on_which_thread(page):
    before = time.monotonic_ns()
    page.enter_call(layout.CALLS.index("recv"), peer=3, tag=7)

    ((call, since, peer, tag, thread),) = page.open_calls()

    assert (layout.CALLS[call], peer, tag) == ("recv", 3, 7)
    assert before <= since <= time.monotonic_ns()
    assert thread == threading.get_ident()


def test_more_calls_than_slots_are_not_noted_and_do_no_harm(page):
    slots = [page.enter_call(1) for _ in range(layout.SLOTS + 3)]

    assert slots[layout.SLOTS :] == [-1] * 3
    assert len(page.open_calls()) == layout.SLOTS
    for slot in slots:
        page.leave_call(slot)
    assert page.open_calls() == []


def test_an_exception_larger_than_its_place_is_cut_and_not_shown(page):
    page.write(
        layout.EXCEPTION,
        msgspec.msgpack.encode(LastException("E", "x" * 2 * layout.EXCEPTION_BYTES_MAX, 9)),
    )

    assert read_page(page.path.read_bytes()).exception is None


def test_where_a_rank_is_stands_beside_its_exception(page):
    where = Whereabouts("train", 3, 8, 17, Place("step", "train.py", 31))
    page.write(layout.EXCEPTION, msgspec.msgpack.encode(LastException("E", "bad", 9)))
    page.write(layout.WHEREABOUTS, msgspec.msgpack.encode(where))
    view = read_page(page.path.read_bytes())

    assert (view.whereabouts, view.exception.text) == (where, "bad")


def test_a_place_that_is_too_long_is_not_shown_and_the_last_one_neither(page):
    for file in ("train.py", 2000 * "x"):
        where = Whereabouts("train", 3, 8, 17, Place("step", file, 31))
        page.write(layout.WHEREABOUTS, msgspec.msgpack.encode(where))

    assert read_page(page.path.read_bytes()).whereabouts is None


def test_a_second_exception_replaces_the_first(page):
    for text in ("first", "second"):
        page.write(layout.EXCEPTION, msgspec.msgpack.encode(LastException("E", text, 9)))

    assert read_page(page.path.read_bytes()).exception.text == "second"


def test_a_forked_child_writes_to_memory_of_its_own(page):
    """DataLoader workers fork from a rank: their batches are not the rank's."""
    page.words[layout.ITERATION_AT], page.words[layout.ITERATION_SOURCE_AT] = 5, 1
    child = os.fork()
    if child == 0:
        page.forget()
        page.words[layout.ITERATION_AT] = 99
        page.remove()
        os._exit(0 if page.path is None else 1)
    status = os.waitpid(child, 0)[1]

    assert status == 0
    assert read_page(page.path.read_bytes()).iteration == 5


def test_where_no_file_can_be_had_the_page_is_memory(monkeypatch):
    """/dev/shm is full, /tmp read-only: the training goes on, and doctor reports that."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    page = StatePage(os.getpid(), 1)
    page.words[layout.ITERATION_AT] = 4
    page.remove()

    assert (page.path, page.fallback) == (None, "/tmp: No space left on device")
    assert page.words[layout.ITERATION_AT] == 4
    assert not list(Path("/dev/shm").glob(f"{registry.pages_folder()}/{os.getpid()}-1.page"))
    with contextlib.suppress(OSError):
        Path(f"/tmp/{registry.pages_folder()}").rmdir()
