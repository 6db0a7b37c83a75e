"""Which exceptions that are caught again and again count; no trace function stays installed."""
# ruff: noqa: SIM105

import os
import sys
import threading
from types import SimpleNamespace
from weakref import ref

import pytest

from ddtop.agent.guard import guard
from ddtop.agent.probes import exceptions
from ddtop.agent.probes.exceptions import EVERY_NS, ExceptionsCaught
from ddtop.agent.stacks.frames import FrameReader

monitoring = getattr(sys, "monitoring", None)
seen = pytest.mark.skipif(monitoring is None, reason="sys.monitoring is there from Python 3.12")


@pytest.fixture
def catches():
    rank = SimpleNamespace(main_id=threading.get_ident(), frames=FrameReader())
    probe = ExceptionsCaught(rank)
    yield probe
    probe.release()


def looked(catches, *parts, times=20):
    """What one window reports of these parts, by function."""
    now = catches._next_at
    catches.take_turn(now)
    for _ in range(times):
        for part in parts:
            part()
    catches.take_turn(now + 1)
    return {one.function.rpartition(".")[2]: one for one in catches.state.caught}


def swallows():
    try:
        raise ValueError("bad sample")
    except ValueError:
        pass


def looks_up():
    try:
        {}["missing"]
    except KeyError:
        pass


def ends_a_loop():
    try:
        next(iter(()))
    except StopIteration:
        pass


def lets_pass():
    with open(os.devnull):
        try:
            raise OSError
        except KeyError:
            pass
        finally:
            threading.get_ident()


def catches_what_passed():
    try:
        lets_pass()
    except OSError:
        pass


def raises_again():
    try:
        lets_pass()
    except OSError:
        raise


@seen
def test_a_handler_is_named_by_exception_function_file_and_line(catches):
    found = looked(catches, swallows)["swallows"]

    assert (found.type, found.file, found.count, found.windows) == ("ValueError", __file__, 20, 1)
    assert found.line == swallows.__code__.co_firstlineno + 3
    assert catches.state.windows == 1
    assert catches.state.watched_ns > 0


@seen
def test_what_is_raised_again_is_counted_where_it_ends(catches):
    """`finally`, `with`, another type's `except` and a bare `raise` are handlers too."""

    def ends_it():
        try:
            raises_again()
        except OSError:
            pass

    found = looked(catches, catches_what_passed, ends_it)

    assert {name: one.count for name, one in found.items()} == {
        "catches_what_passed": 20,
        "ends_it": 20,
    }


@seen
def test_the_end_of_an_iterator_is_no_exception_to_tell(catches):
    assert looked(catches, ends_a_loop) == {}


@seen
def test_what_a_library_catches_is_not_reported(catches):
    import json

    def reads():
        try:
            json.loads("{")
        except json.JSONDecodeError:
            pass

    assert set(looked(catches, reads)) == {"reads"}


@seen
def test_code_that_the_program_drops_goes_at_once(catches):
    """Else its caches, as of torch.compile, would be destroyed in the agent's thread."""
    names = {}
    exec(
        compile("def made():\n try: raise ValueError\n except ValueError: pass", __file__, "exec"),
        names,
    )
    code = ref(names["made"].__code__)
    catches.take_turn(catches._next_at)
    names["made"]()
    names.clear()

    assert code() is None
    catches.take_turn(catches._next_at - 1)
    assert [(one.function, one.line) for one in catches.state.caught] == [("made", 3)]


@seen
def test_other_threads_are_not_counted(catches):
    def elsewhere():
        thread = threading.Thread(target=swallows)
        thread.start()
        thread.join()

    assert looked(catches, elsewhere, times=3) == {}


@seen
def test_half_a_minute_of_windows_is_reported_and_older_ones_forgotten(catches):
    looked(catches, swallows)
    for _ in range(exceptions.WINDOWS - 1):
        found = looked(catches, looks_up)
    assert (found["swallows"].windows, found["swallows"].ago) == (1, exceptions.WINDOWS - 1)
    assert (found["looks_up"].windows, found["looks_up"].ago) == (exceptions.WINDOWS - 1, 0)

    assert set(looked(catches, looks_up)) == {"looks_up"}
    assert catches.state.windows == exceptions.WINDOWS


@seen
def test_a_window_ends_by_itself_after_so_many_events(catches):
    found = looked(catches, swallows, times=exceptions.EVENTS_MAX + 500)

    assert found["swallows"].count == exceptions.EVENTS_MAX


@seen
def test_the_table_is_bounded_and_says_what_it_left_out(catches):
    source = (
        "def part{0}():\n    try:\n        raise ValueError\n    except ValueError:\n        pass\n"
    )
    parts = {}
    for number in range(exceptions.PLACES + 10):
        exec(compile(source.format(number), __file__, "exec"), parts)
    handlers = [part for name, part in parts.items() if name.startswith("part")]

    assert len(looked(catches, *handlers, times=1)) == exceptions.CATCHES_TOLD
    assert catches.state.omitted == exceptions.PLACES - exceptions.CATCHES_TOLD


@seen
def test_between_windows_the_tools_number_is_free(catches):
    catches.take_turn(catches._next_at)
    assert monitoring.get_tool(exceptions.TOOL_IDS[0]) == "ddtop"
    catches.take_turn(catches._next_at)

    assert [monitoring.get_tool(tool) for tool in exceptions.TOOL_IDS] == [None, None]


@seen
def test_a_number_that_another_tool_has_is_left_to_it(catches):
    for tool in exceptions.TOOL_IDS:
        monitoring.use_tool_id(tool, "another")
    try:
        assert looked(catches, swallows) == {}
        assert {monitoring.get_tool(tool) for tool in exceptions.TOOL_IDS} == {"another"}
    finally:
        for tool in exceptions.TOOL_IDS:
            monitoring.free_tool_id(tool)

    assert set(looked(catches, swallows)) == {"swallows"}


@seen
def test_windows_are_five_seconds_apart(catches):
    catches.take_turn(EVERY_NS)
    catches.take_turn(EVERY_NS + 1)
    catches.take_turn(2 * EVERY_NS - 1)
    assert monitoring.get_tool(exceptions.TOOL_IDS[0]) is None

    catches.take_turn(2 * EVERY_NS)
    assert monitoring.get_tool(exceptions.TOOL_IDS[0]) == "ddtop"


@seen
def test_a_forked_child_is_not_watched(catches):
    catches.take_turn(catches._next_at)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if monitoring.get_tool(exceptions.TOOL_IDS[0]) is None else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert monitoring.get_tool(exceptions.TOOL_IDS[0]) == "ddtop"


def test_nothing_is_looked_at_unless_somebody_asks(monkeypatch):
    monkeypatch.delenv(exceptions.VARIABLE, raising=False)

    assert exceptions.probe(SimpleNamespace(main_id=0, frames=FrameReader())) is None
    assert exceptions.PROBE not in guard.off


def test_an_older_python_says_that_it_cannot(monkeypatch):
    monkeypatch.setenv(exceptions.VARIABLE, "1")
    monkeypatch.setattr(exceptions, "_monitoring", None)
    monkeypatch.setattr(guard, "off", {})

    assert exceptions.probe(SimpleNamespace(main_id=0, frames=FrameReader())) is None
    assert guard.off[exceptions.PROBE].startswith("needs Python 3.12, this is 3.")
