"""Objects of the program are read, and no code of the program runs."""

from __future__ import annotations

import enum
import io
import pathlib
import subprocess
from collections import UserDict
from types import SimpleNamespace

import pytest

from ddtop.agent import plain

CALLED: list[str] = []


@pytest.fixture(autouse=True)
def called():
    CALLED.clear()
    yield CALLED
    assert CALLED == []


def called_as(name, answer=None):
    def method(*_given, **_named):
        CALLED.append(name)
        return answer

    return method


class Meta(type):
    """A metaclass that lies."""

    __name__ = property(called_as("name of the class", "false"))
    __module__ = property(called_as("module of the class", "false"))
    __mro__ = property(called_as("classes of the class", ()))
    __getattribute__ = called_as("attribute of the class")
    __eq__ = called_as("equal class", True)
    __hash__ = called_as("hash of the class", 1)


class Touchy(metaclass=Meta):
    """It records each method that is called."""

    __class__ = property(called_as("class", int))
    __getattribute__ = called_as("attribute")
    __getattr__ = called_as("missing attribute")
    __str__ = __repr__ = called_as("text", "text")
    __len__ = called_as("length", 3)
    __fspath__ = called_as("path", "/nowhere")
    __int__ = __index__ = called_as("number", 3)
    __float__ = called_as("float", 3.0)
    __bool__ = called_as("truth", True)
    __eq__ = called_as("equal", True)
    __hash__ = called_as("hash", 1)
    __iter__ = called_as("iterator")
    value = property(called_as("property", 3))


def touchy():
    made = object.__new__(Touchy)
    object.__setattr__(made, "own", 7)
    return made


def test_of_an_object_only_what_it_holds_is_read():
    thing = touchy()

    assert plain.peek(thing, "own") == 7
    assert plain.peek(thing, "value") is None
    assert plain.peek(thing, "missing", default=1) == 1
    assert not plain.is_a(thing, int, str)
    assert plain.name_of(type(thing)) == "Touchy"
    assert plain.module_of(type(thing)) is not None


@pytest.mark.parametrize("read", [plain.number, plain.whole, plain.text, plain.path_of])
def test_it_is_neither_a_number_nor_a_text_nor_a_path(read):
    assert read(touchy()) is None


def test_its_text_is_the_name_of_its_class():
    assert plain.shown(touchy()) == "<Touchy>"
    assert plain.shown(["a", [touchy()]]) == "['a', [<Touchy>]]"


class Slots:
    __slots__ = ("filled", "left_empty")
    constant = 5

    def __init__(self):
        self.filled = SimpleNamespace(inner=3)


def test_attributes_are_found_in_slots_and_in_classes():
    assert plain.peek(Slots(), "filled", "inner") == 3
    assert plain.peek(Slots(), "left_empty") is None
    assert plain.peek(Slots(), "constant") == 5
    assert plain.held_by(Slots()) == {}


class OwnDictionary:
    __dict__ = property(called_as("dictionary", {"a": 1}))


def test_a_dictionary_that_is_a_property_is_not_asked_for():
    assert plain.held_by(OwnDictionary()) == {}


def test_a_property_of_a_library_is_called():
    assert plain.peek(pathlib.PurePosixPath("/a/b.txt"), "name") == "b.txt"


class Sub(int):
    __int__ = __index__ = called_as("number", 3)


class Enumerated(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, 3), (True, 1), (Sub(4), 4), (Enumerated.ONE, 1), (3.5, None), ("3", None), (None, None)],
)
def test_a_whole_number_is_one_of_python(value, expected):
    assert plain.whole(value) == expected


def test_a_number_of_numpy_is_a_number():
    numpy = pytest.importorskip("numpy")

    assert plain.whole(numpy.int64(3)) == 3
    assert plain.number(numpy.float64(3.5)) == 3.5
    assert plain.whole(numpy.float32(3.5)) is None


class Named(io.BytesIO):
    name = property(called_as("name of a file", "/nowhere"))


def test_the_path_of_a_file_is_read_and_not_asked_for(tmp_path):
    path = tmp_path / "a.pt"
    with path.open("wb") as binary, path.open("a", encoding="utf-8") as written:
        assert [plain.path_of(one) for one in (path, str(path), binary, written)] == [str(path)] * 4
    assert plain.path_of(Named()) is None


class LoudError(Exception):
    __str__ = called_as("text of an error", "text")


class MutedError(OSError):
    @property
    def args(self):
        CALLED.append("arguments")
        return ()

    __traceback__ = property(called_as("traceback"))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no such shape"), "no such shape"),
        (ValueError(), ""),
        (KeyError("rank"), "'rank'"),
        (OSError(2, "No such file", "/a"), "[Errno 2] No such file: '/a'"),
        (LoudError("step", 3), "step, 3"),
        (MutedError(28, "No space"), "[Errno 28] No space"),
        (RuntimeError([1, "a"]), "[1, 'a']"),
        (
            subprocess.CalledProcessError(1, ["ls"]),
            "Command '['ls']' returned non-zero exit status 1.",
        ),
    ],
)
def test_the_text_of_an_exception_is_made_of_what_it_holds(error, expected):
    assert plain.text_of(error) == expected


def test_the_text_of_an_exception_asks_no_object_in_it():
    assert plain.text_of(ValueError(touchy())) == "<Touchy>"
    assert plain.text_of(OSError(2, "No such file", touchy())) == "2, No such file"
    assert plain.text_of(ValueError(UserDict(a=1))) == "<UserDict>"
