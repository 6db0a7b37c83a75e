"""Frames of threads that move on, read without a crash."""

import gc
import linecache
import operator
import sys
import threading
import weakref
from pathlib import Path

import pytest

from ddtop.agent.stacks import dump, walk
from ddtop.agent.stacks.frames import FrameReader
from ddtop.agent.stacks.walk import TRACEBACK_MOST, Walk
from ddtop.wire import page as layout
from tests.running import python

PROGRAM = Path(__file__).with_name("walking.py")


def run(name, how):
    """The end of a program of `walking.py`."""
    return python(str(PROGRAM), name, how, check=False)


@pytest.mark.parametrize("name", ["moving", "busy", "seen", "raising"])
def test_a_thread_that_moves_on_meanwhile_harms_nobody(name):
    ended = run(name, "safely")

    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="only 3.11 makes such frames")
def test_these_programs_find_a_walk_that_is_not_safe():
    """Each step of this walk is a bytecode: it ends with a crash, or with a frame that is none."""
    assert run("moving", "plainly").returncode != 0


class Kept:
    """Something that a local holds."""


@pytest.fixture
def waiting():
    """A thread that waits, with an object in a local."""
    ready, done, made = threading.Event(), threading.Event(), []

    def waits():
        kept = Kept()
        made.append(weakref.ref(kept))
        ready.set()
        done.wait()

    thread = threading.Thread(target=waits)
    thread.start()
    ready.wait()
    yield thread, done, made[0]
    done.set()
    thread.join()


def test_no_frame_outlives_the_walk(waiting):
    """Its locals end with the function, in the thread of the program."""
    thread, done, kept = waiting
    stack = Walk([0], 0).stack(thread.ident, 200)

    assert "waits" in [function for (_, function, _, _), _ in stack]
    done.set()
    thread.join()
    assert kept() is None


def test_only_the_innermost_frames_are_read(waiting):
    thread, _, _ = waiting
    whole = Walk([0], 0).stack(thread.ident, 200)

    assert Walk([0], 0).stack(thread.ident, 2) == whole[:2]


@pytest.fixture
def handling():
    """Starts a thread that raises this exception and handles it until it is told to go on; then it
    raises an equal one."""
    threads_of, ends = [], []

    def starts(kind, *arguments):
        ready, go_on = threading.Event(), threading.Event()

        def handles():
            for _ in range(2):
                try:
                    raise kind(*list(arguments))
                except (ValueError, OSError):
                    ready.set()
                    go_on.wait(20)
                    go_on.clear()

        thread = threading.Thread(target=handles)
        thread.start()
        assert ready.wait(20)
        threads_of.append(thread)
        ends.append(go_on)
        return thread, ready, go_on

    yield starts
    for thread, go_on in zip(threads_of, ends, strict=True):
        while thread.is_alive():
            go_on.set()
            thread.join(0.01)


def test_the_arguments_say_whether_a_thread_still_handles_the_same_exception(handling):
    """Two exceptions in a row are often at one address."""
    thread, ready, go_on = handling(ValueError, "record is not valid", 7)
    own = Walk([0], 0)
    first = own.handled_exception(thread.ident).arguments
    again = own.handled_exception(thread.ident).arguments
    ready.clear()
    go_on.set()
    assert ready.wait(20)
    other = own.handled_exception(thread.ident).arguments

    assert first == other == ("record is not valid", 7)
    assert first is again
    assert first is not other


def test_arguments_that_could_run_code_of_the_program_are_not_handed_out(handling):
    thread, _, _ = handling(ValueError, Kept())

    assert Walk([0], 0).handled_exception(thread.ident).arguments == ()


class Renamed(type):
    """Its classes run code of the program when somebody asks for their name."""

    asked = 0

    @property
    def __name__(cls):
        Renamed.asked += 1
        return "Odd"


class OddError(ValueError, metaclass=Renamed):
    """An exception with a name of its own."""


def test_the_type_and_the_places_of_the_traceback_are_read_without_code_of_the_program(handling):
    thread, _, _ = handling(OddError, 28, "No space left on device")
    asked = Renamed.asked

    handled = Walk([0], 0).handled_exception(thread.ident)

    assert (handled.type, handled.arguments) == ("OddError", (28, "No space left on device"))
    assert [(Path(file).name, function) for file, function, _ in handled.places] == [
        ("test_walk.py", "handles")
    ]
    assert "raise kind" in linecache.getline(__file__, handled.places[0][2])
    assert Renamed.asked == asked


@pytest.mark.parametrize("path", ["/ckpt/7.pt", Path("/ckpt/7.pt")])
def test_the_file_of_an_error_of_the_system_is_read(handling, path):
    thread, _, _ = handling(OSError, 28, "No space left on device", path)

    assert Walk([0], 0).handled_exception(thread.ident).path == path


class SlyError(ValueError):
    """It says that it is of another class, in code of the program."""

    asked = 0

    @property
    def __class__(self):
        SlyError.asked += 1
        return OSError


def test_other_exceptions_and_other_objects_have_no_file_and_are_not_asked(handling):
    sly, _, _ = handling(SlyError, 28, "No space left on device")
    odd, _, _ = handling(OSError, 28, "No space left on device", Kept())
    asked = SlyError.asked

    assert [Walk([0], 0).handled_exception(one.ident).path for one in (sly, odd)] == [None, None]
    assert SlyError.asked == asked


def test_of_a_deep_traceback_the_outer_places_are_read(handling):
    class DeepError(ValueError):
        def __init__(self, depth):
            super().__init__(depth)
            if depth:
                raise DeepError(depth - 1)

    thread, _, _ = handling(DeepError, 200)

    handled = Walk([0], 0).handled_exception(thread.ident)

    assert handled.arguments == (0,)
    assert len(handled.places) == TRACEBACK_MOST + 1


def test_a_thread_that_handles_nothing_says_so(waiting):
    assert Walk([0], 0).handled_exception(waiting[0].ident) is None
    assert Walk([0], 0).handled_exception(1) is None


def test_a_number_in_a_frame_is_read_and_nothing_else():
    ready, done = threading.Event(), threading.Event()

    def broadcasts():
        group_src, tensor = 2, "no number"  # noqa: F841
        ready.set()
        done.wait(20)

    thread = threading.Thread(target=broadcasts)
    thread.start()
    assert ready.wait(20)
    numbers = [
        Walk([0], 0).number_of(thread.ident, __file__, "broadcasts", name)
        for name in ("group_src", "tensor", "src")
    ]
    elsewhere = Walk([0], 0).number_of(thread.ident, __file__, "reduces", "group_src")
    done.set()
    thread.join()

    assert (numbers, elsewhere) == ([2, None, None], None)


def test_a_thread_that_has_ended_has_no_stack():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()

    assert Walk([0], 0).stack(thread.ident, 200) == []
    assert thread.ident not in Walk([0], 0).threads()
    assert threading.get_ident() in Walk([0], 0).threads()


class Words(list):
    """The state page, with all that was written to it."""

    def __init__(self):
        super().__init__([0] * layout.SLOTS_AT)
        self.written = []

    def __setitem__(self, at, value):
        self.written.append((at, value))
        super().__setitem__(at, value)


def test_the_page_says_when_frames_are_read():
    """A process that crashes in between has crashed because of ddtop."""
    words = Words()
    Walk(words, layout.WALKING_AT).stack(threading.get_ident(), 9)

    assert words.written == [(layout.WALKING_AT, 1), (layout.WALKING_AT, 0)]


def test_a_walk_that_fails_leaves_the_collector_and_the_page_as_they_were(monkeypatch):
    """Without memory, for example."""

    def fails():
        raise MemoryError

    monkeypatch.setattr(walk.sys, "_current_frames", fails)
    words = Words()

    with pytest.raises(MemoryError):
        Walk(words, 5).stack(1, 9)
    assert gc.isenabled()
    assert words[5] == 0


def test_a_walk_that_fails_in_the_middle_holds_no_frame(waiting, monkeypatch):
    """Its traceback lives on for a while."""
    thread, done, kept = waiting

    monkeypatch.setattr(walk, "_place", operator.index)
    with pytest.raises(TypeError) as raised:
        Walk([0], 0).stack(thread.ident, 200)
    done.set()
    thread.join()

    assert raised.value.__traceback__ is not None
    assert kept() is None


@pytest.mark.skipif(sys.version_info < (3, 12), reason="before 3.12 all interpreters share a GIL")
def test_beside_another_interpreter_no_frame_is_read():
    """Its threads do not wait for our GIL, and their frames are in its own memory."""
    ended = run("beside", "safely")

    assert ended.returncode == 0, ended.stderr[-2000:]


def test_beside_an_audit_hook_no_frame_is_read():
    """It is code of the program, and would run in the middle of the walk. It cannot be removed."""
    program = (
        "import sys; from ddtop.agent.stacks.walk import Walk; import threading\n"
        "walk, own = Walk(memoryview(bytearray(8)).cast('q'), 0), threading.get_ident()\n"
        "assert walk.stack(own, 9); sys.addaudithook(lambda *_: None)\n"
        "assert walk.stack(own, 9) == walk.threads() == []; print(walk.off)"
    )
    ended = python("-c", program, check=False)

    assert ended.stdout == "the program has an audit hook, which would run inside the walk\n"


@pytest.mark.parametrize(
    ("version", "reads"),
    [((3, 10, 13), True), ((3, 11, 4), False), ((3, 11, 5), True), ((3, 12, 0), True)],
)
def test_where_python_itself_may_crash_after_a_walk_there_is_none(monkeypatch, version, reads):
    monkeypatch.setattr(sys, "version_info", version)

    assert (walk.why_not("") is None) is reads


@pytest.mark.parametrize("wanted", ["off", "0", " OFF "])
def test_ddtop_frames_switches_the_walk_off(wanted):
    off = Walk([0], 0, wanted)

    assert off.off == "switched off by DDTOP_FRAMES"
    assert off.threads() == []
    reader = FrameReader(off)
    assert reader.look(threading.get_ident()) is None
    assert dump.take("q", 0, 1, reader, False).threads == ()


@pytest.mark.parametrize("wanted", ["", "on", "1"])
def test_otherwise_frames_are_read(wanted):
    assert Walk([0], 0, wanted).off is None


def test_without_a_gil_no_frame_is_read(monkeypatch):
    """Another thread could leave the frame at any moment."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)

    assert "without a GIL" in Walk([0], 0).off
    assert Walk([0], 0).stack(threading.get_ident(), 9) == []


class Asked(type):
    """A class whose class is of the program too."""

    def __getattribute__(cls, name):
        TOUCHED.append(name)
        return super().__getattribute__(name)


class Hostile(metaclass=Asked):
    """Whatever is asked of it is noted."""

    def __init__(self, held):
        self.held = held

    def __getattribute__(self, name):
        TOUCHED.append(name)
        return super().__getattribute__(name)

    def __eq__(self, other):
        TOUCHED.append("==")
        return True

    def __hash__(self):
        TOUCHED.append("hash")
        return 1

    def __len__(self):
        TOUCHED.append("len")
        return 1


class Table(dict):
    """A dictionary of the program."""


TOUCHED = []


@pytest.fixture
def holding():
    """What a thread holds in a variable `self` and in another one."""
    ready, done, threads = threading.Event(), threading.Event(), []

    def start(first, second):
        def holds(self, other):
            ready.set()
            done.wait()

        threads.append(threading.Thread(target=holds, args=(first, second)))
        threads[-1].start()
        ready.wait()
        return threads[-1].ident

    yield start
    done.set()
    for thread in threads:
        thread.join()


def test_what_a_thread_holds_is_known_without_code_of_the_program(holding):
    inner = Kept()
    first, second = Hostile(inner), Kept()
    thread = holding(first, second)
    TOUCHED.clear()
    found = Walk([0], 0).held(thread, 200)
    named = Walk([0], 0).named(thread, "self", 200)
    asked = list(TOUCHED)

    assert {id(first), id(second), id(inner)} <= found
    assert (__file__, id(first), "Hostile") in named
    assert asked == []


def test_an_object_is_known_by_the_name_of_its_variable(holding):
    kept = Kept()
    thread = holding(kept, 7)
    found = Walk([0], 0).named(thread, "self", 200)

    assert (__file__, id(kept), "Kept") in found
    assert Walk([0], 0).named(thread, "other", 200) == []


@pytest.mark.parametrize("kind", [dict, Table])
def test_what_a_large_dictionary_holds_is_not_gone_through(holding, kind):
    entries = [Kept() for _ in range(1000)]
    first = Hostile(kind(enumerate(entries)))
    found = Walk([0], 0).held(holding(first, None), 200)

    assert id(first) in found
    assert found.isdisjoint(map(id, entries))


def test_what_a_thread_has_held_is_not_kept_alive(waiting):
    thread, done, kept = waiting
    Walk([0], 0).held(thread.ident, 200)
    Walk([0], 0).named(thread.ident, "kept", 200)
    done.set()
    thread.join()

    assert kept() is None
