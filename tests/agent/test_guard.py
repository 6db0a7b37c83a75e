"""The one place where our own errors are caught."""

from __future__ import annotations

import pytest

from ddtop.agent.guard import REASON_CHARACTERS, Guard


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
def test_what_is_meant_for_the_program_passes_through(error):
    """Ctrl-C while a wrapper runs must reach the program."""

    def part():
        raise error

    with pytest.raises(error):
        Guard().run("place", part)
