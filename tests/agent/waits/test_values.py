"""The values of plain variables of a thread, read without code of the program."""

import gc
import threading
import time
import weakref

import pytest

from ddtop.agent.stacks.walk import VALUE_MAX, Walk
from tests.agent.stacks.asleep import asleep_in

CALLS = []
"""Each call of a method that a reader might call."""


class Touchy:
    def __getattribute__(self, name):
        CALLS.append(name)
        return object.__getattribute__(self, name)


for _name in ("__repr__", "__str__", "__len__", "__bool__", "__eq__", "__hash__"):
    setattr(Touchy, _name, lambda _self, *_, name=_name: CALLS.append(name))

NEED, OWN = 7, Touchy()


def loop(release, thing, big):
    seen, need, name, done, nothing = [1, 2, 3], 4, "tiles", False, None
    table, huge = dict.fromkeys(range(10**6)), 1 << 10**6
    ratio = 0.5
    release.acquire()
    return seen, need, name, done, nothing, table, ratio, huge, thing, big


def values(*names, thing=None, big=""):
    walk, end = Walk(memoryview(bytearray(8)).cast("q"), 0), time.monotonic() + 20
    with asleep_in(loop, thing, big) as ident:
        while not walk.values(ident, ("ratio",)):
            assert time.monotonic() < end
        return walk.values(ident, names)


def test_plain_values_and_lengths_are_read():
    found = values("seen", "need", "name", "done", "nothing", "table", "ratio", "NEED", "absent")

    assert found == {
        "len(seen)": "3",
        "need": "4",
        "name": "'tiles'",
        "done": "False",
        "nothing": "None",
        "len(table)": "1000000",
        "ratio": "0.5",
        "NEED": "7",
    }


def test_an_object_of_the_program_is_not_touched():
    CALLS.clear()

    assert values("thing", "OWN", thing=Touchy()) == {}
    assert CALLS == []


@pytest.mark.parametrize("kind", [list, dict, str, int])
def test_a_class_that_inherits_from_a_plain_one_is_no_plain_value(kind):
    assert values("thing", thing=type("Own", (kind,), {"__len__": lambda _: 1 / 0})()) == {}


def test_a_long_value_is_left_out():
    assert values("big", "huge", big="x" * (VALUE_MAX + 1)) == {}


def test_nothing_is_kept_alive():
    thing = threading.Event()
    gone = weakref.ref(thing)
    assert values("thing", "seen", thing=thing) == {"len(seen)": "3"}
    del thing
    gc.collect()

    assert gone() is None


def test_a_thread_that_has_ended_has_no_values():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()

    assert Walk(memoryview(bytearray(8)).cast("q"), 0).values(thread.ident, ("need",)) == {}


class Base:
    limit = 9


class Gate(Base):
    """Attributes as programs have them, and code that a reader might call."""

    step = 2

    def __init__(self):
        self.marker, self.seen, self.touchy, self.inner = "/d/ready", [1], Touchy(), Base()

    @property
    def left(self):
        CALLS.append("left")
        return 3

    def __getattr__(self, name):
        CALLS.append(name)
        return 4


Hung = type("Hung", (Gate,), {"__dict__": OWN})


class Slotted:
    __slots__ = ("need",)


class Dressed(Gate):
    @property
    def __dict__(self):
        CALLS.append("__dict__")
        return {"marker": "/other"}


def attributes(thing):
    names = ("marker", "seen", "touchy", "inner", "left", "absent", "step", "need")
    return values(*(f"thing.{name}" for name in names), thing=thing)


@pytest.mark.parametrize("kind", [Gate, Dressed, Hung])
def test_attributes_are_read_where_python_keeps_them(kind):
    thing = kind()
    CALLS.clear()

    assert attributes(thing) == {
        "thing.marker": "'/d/ready'",
        "len(thing.seen)": "1",
        **({"thing.step": "2"} if kind is Gate else {}),
    }
    assert CALLS == []


@pytest.mark.parametrize("thing", [Slotted(), Touchy(), 3, [1], None, type, Gate])
def test_what_has_no_attributes_of_its_own_shows_none(thing):
    CALLS.clear()

    assert attributes(thing) in ({}, {"thing.step": "2"})
    assert CALLS == []
