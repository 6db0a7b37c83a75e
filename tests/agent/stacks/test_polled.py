"""The path for which a loop of the program polls, read from the locals of its function."""

import fcntl
import os
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest

from ddtop.agent.stacks.frames import FrameReader
from ddtop.agent.stacks.walk import Walk
from tests.agent.stacks.asleep import asleep_in


def named(ident):
    """The path, as soon as the thread is asleep."""
    reader, end = FrameReader(), time.monotonic() + 10
    while (found := reader.polled_path(ident)) is None:
        assert time.monotonic() < end
    return found


def for_a_marker(release, root):
    flag = root / "STABLE"
    while not flag.exists():
        if release.acquire():
            return


def for_a_lock_file(release, path):
    while True:
        try:
            os.open(path, os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            if release.acquire():
                return


def for_the_lock_of_a_file(release, path):
    with open(path) as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if release.acquire():
                    return


def for_one_of_two(release, first, second):
    while not (os.path.exists(first) or os.path.exists(second)):
        if release.acquire():
            return


def for_a_while(release, path):
    while not release.acquire():
        pass
    return path


def while_it_shows_its_locals(release, path):
    while not os.path.exists(path):
        shown = locals()
        if release.acquire():
            del shown
            return


# Programs that read or write, a piece after the other


def read_in_pieces(release, path):
    with open(path) as file:
        while file.read(1) and not release.acquire():
            pass


def read_at_once(release, path):
    if not os.path.exists(path):
        raise FileNotFoundError(path)
    with open(path) as file:
        lines = file.readlines()
    for line in lines:
        if release.acquire() or not line:
            return


def written_again_and_again(release, path):
    while True:
        with open(path, "w") as file:
            file.write("alive")
        if release.acquire():
            return


def test_the_only_path_of_a_function_that_asks_for_files_is_named(tmp_path):
    path = tmp_path / "cache.lock"
    path.touch()
    with asleep_in(for_a_lock_file, str(path)) as ident:
        assert named(ident) == str(path)


@pytest.mark.parametrize("function", [read_in_pieces, read_at_once, written_again_and_again])
def test_a_file_that_is_read_or_written_is_none_that_is_polled_for(function, tmp_path):
    """`with open(path) as file: while chunk := file.read(): ...` was "polling for" that file."""
    path = tmp_path / "shard1.bin"
    path.write_text("some\nlines\n")
    with asleep_in(function, str(path)) as ident:
        # Until it is asleep in the loop.
        while not FrameReader().walk.texts(ident, frozenset({"acquire"})):
            pass
        time.sleep(0.05)
        assert FrameReader().polled_path(ident) is None


def test_who_waits_for_the_lock_of_a_file_has_it_open_itself(tmp_path):
    path = tmp_path / "data.lock"
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with asleep_in(for_the_lock_of_a_file, str(path)) as ident:
            assert named(ident) == str(path)


def test_a_path_object_counts_and_the_folder_that_it_was_made_from_does_not():
    with asleep_in(for_a_marker, Path("a/b")) as ident:
        assert named(ident) == "a/b/STABLE"


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (for_one_of_two, ("a/b", "a/c")),
        (for_a_while, ("a/b",)),
        (while_it_shows_its_locals, ("a/b",)),
        (for_a_lock_file, ("no path",)),
        (for_one_of_two, (7, "http://ada.org/a")),
    ],
    ids=["two paths", "no question", "locals()", "a sentence", "a number and a URL"],
)
def test_what_may_be_something_else_is_not_named(function, arguments, monkeypatch):
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(FileExistsError))
    monkeypatch.setattr(os.path, "exists", lambda _: False)
    with asleep_in(function, *arguments) as ident:
        assert FrameReader().polled_path(ident) is None


def test_the_lock_file_of_filelock_is_named(tmp_path):
    filelock = pytest.importorskip("filelock")
    path = str(tmp_path / "cache.lock")
    held = filelock.FileLock(path)
    held.acquire()
    thread = threading.Thread(target=filelock.FileLock(path).acquire, args=(10,), daemon=True)
    thread.start()
    try:
        # Its first functions have other paths.
        while named(thread.ident) != path:
            pass
    finally:
        held.release()
        thread.join(10)


ACQUIRE = frozenset({"acquire"})


class Kept:
    """Something large that a local holds."""


def test_what_the_function_drops_afterwards_is_freed_at_once():
    """Before Python 3.13 the locals that were read stay with the frame."""
    made, dropped, go = [], threading.Event(), threading.Event()

    def loop(release, path):
        kept = Kept()
        made.append(weakref.ref(kept))
        release.acquire()
        del kept
        dropped.set()
        go.wait(10)
        return path

    walk = Walk([0], 0)
    release = threading.Lock()
    release.acquire()
    thread = threading.Thread(target=loop, args=(release, "a/b"), daemon=True)
    thread.start()
    while walk.texts(thread.ident, ACQUIRE) != ["a/b"] or not made:
        pass
    release.release()
    assert dropped.wait(10)
    gone = made[0]() is None
    go.set()
    thread.join(10)

    assert gone


def test_a_dictionary_that_the_program_holds_is_not_emptied():
    shown = []

    def loop(release, path):
        shown.append(locals())
        release.acquire()
        return path

    with asleep_in(loop, "a/b") as ident:
        while not shown:
            pass
        assert Walk([0], 0).texts(ident, ACQUIRE) == ["a/b"]
        assert shown[0]["path"] == "a/b"


def test_a_function_that_a_debugger_traces_is_left_alone():
    """Before Python 3.13 its variables are set from the locals that were read, after each step."""

    def traced(release, path):
        sys.settrace(lambda *_: traces)
        loop(release, path)
        sys.settrace(None)

    def traces(*_):
        return traces

    def loop(release, path):
        release.acquire()
        return path

    release = threading.Lock()
    release.acquire()
    thread = threading.Thread(target=traced, args=(release, "a/b"), daemon=True)
    thread.start()
    reader = FrameReader()
    while (seen := reader.look(thread.ident)) is None or seen.function != "loop":
        pass
    found = Walk([0], 0).texts(thread.ident, ACQUIRE)
    release.release()
    thread.join(10)

    assert found == []


def test_the_variables_of_a_module_are_left_alone(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("path = 'a/b'\nready.set()\nrelease.acquire()\nlater = path\n")
    release, ready = threading.Lock(), threading.Event()
    release.acquire()
    scope = {"release": release, "ready": ready}
    code = compile(program.read_text(), str(program), "exec")
    thread = threading.Thread(target=exec, args=(code, scope), daemon=True)
    thread.start()
    assert ready.wait(10)
    found = Walk([0], 0).texts(thread.ident, ACQUIRE)
    release.release()
    thread.join(10)

    assert (found, scope["later"]) == ([], "a/b")


def test_no_path_is_read_while_the_walk_is_off():
    assert FrameReader(Walk([0], 0, "off")).polled_path(threading.get_ident()) is None
