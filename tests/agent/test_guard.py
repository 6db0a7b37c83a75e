"""The one place where our own errors are caught."""

import signal
import sys
from functools import partial

import pytest

from ddtop.agent.guard import REASON_CHARACTERS, Guard, suppressed


def test_a_part_that_raises_is_switched_off_once_and_the_reason_is_kept():
    """A new torch renamed a private field, and ten errors a second for a week helped nobody."""
    guard, calls = Guard(), []

    def part():
        calls.append(1)
        raise AttributeError("no _workers")

    assert [guard.run("loader", part) for _ in range(3)] == [False, False, False]
    assert len(calls) == 1
    assert guard.off == {"loader": "AttributeError: no _workers"}


def test_other_parts_go_on():
    guard = Guard()
    guard.run("loader", lambda: 1 / 0)

    assert guard.run("place", lambda: None)


def test_a_long_reason_is_cut():
    guard = Guard()

    def part():
        raise ValueError("x" * 10_000)

    guard.run("place", part)

    assert len(guard.off["place"]) == REASON_CHARACTERS


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_part_that_calls_exit_ends_itself_and_not_the_rank(error):
    """A plugin for a trainer parsed its arguments at import, and argparse ended the training."""
    guard = Guard()

    def part():
        raise error

    assert not guard.run("plugin", part)
    assert guard.off == {"plugin": f"{error.__name__}: "}


def test_a_part_that_calls_the_functions_that_end_a_program(monkeypatch):
    guard = Guard()

    assert not guard.run("plugin", sys.exit, "bye")
    assert guard.off == {"plugin": "SystemExit: bye"}


class TooLateError(Exception):
    """The program's own limit of time."""


class Handler:
    def leave(self, number, _frame):
        raise TooLateError(number)


def leave(_number, _frame):
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (leave, SystemExit),
        (Handler().leave, TooLateError),
        (partial(leave), SystemExit),
        (signal.default_int_handler, KeyboardInterrupt),
    ],
)
@pytest.mark.parametrize("within", ["run", "suppressed"])
def test_what_a_signal_handler_of_the_program_raises_is_the_programs(handler, expected, within):
    """Ctrl-C, `sys.exit` at SIGTERM or a limit of time may come while a wrapper runs."""
    before = signal.signal(signal.SIGINT, handler)

    def part():
        signal.raise_signal(signal.SIGINT)
        for _ in range(1000):
            pass

    def suppressing():
        with suppressed:
            part()

    try:
        with pytest.raises(expected):
            Guard().run("place", part) if within == "run" else suppressing()
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_text_of_an_error_is_not_made_by_the_program():
    guard, asked = Guard(), []

    class LoudError(Exception):
        def __str__(self):
            asked.append(1)
            raise SystemExit(77)

    def part():
        raise LoudError("quiet", 3)

    guard.run("place", part)

    assert (guard.off, asked) == ({"place": "LoudError: quiet, 3"}, [])
