"""A part that failed is tried again after a while where that is safe, but not for ever."""

from itertools import pairwise

import pytest

from ddtop.agent import guard as guard_module
from ddtop.agent.guard import AGAIN_S, FAILURES_MAX, Guard


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(guard_module.time, "monotonic", lambda: now[0])
    return now


def fails():
    raise ValueError("not today")


def test_what_only_looks_comes_back_after_half_a_minute(clock):
    guard = Guard()
    guard.try_again("collectives")
    guard.try_again("cuda")
    assert not guard.run("collectives", fails)
    assert guard.off == {"collectives": "ValueError: not today"}
    clock[0] += AGAIN_S - 1
    assert not guard.run("collectives", list)
    clock[0] += 2

    assert guard.run("collectives", list)
    assert guard.off == {}


def test_what_wraps_the_programs_functions_stays_off(clock):
    guard = Guard()
    guard.try_again("collectives")
    guard.try_again("cuda")
    guard.run("wrap torch.optim.optimizer", fails)
    clock[0] += 1e6

    assert not guard.run("wrap torch.optim.optimizer", list)


def test_what_fails_for_good_is_tried_a_few_times_and_no_more(clock):
    guard = Guard()
    guard.try_again("collectives")
    guard.try_again("cuda")
    tried = []

    def part():
        tried.append(clock[0])
        raise OSError("gone")

    for _ in range(10_000):
        guard.run("cuda", part)
        clock[0] += 10

    assert len(tried) == FAILURES_MAX
    assert [later - before >= AGAIN_S for before, later in pairwise(tried)] == [True] * 3
    assert guard.off == {"cuda": "OSError: gone"}


def test_what_was_switched_off_by_decision_is_not_tried(clock):
    guard = Guard()
    guard.try_again("collectives")
    guard.try_again("cuda")
    guard.off["collectives"] = "the recorder is off"
    clock[0] += 1e6

    assert not guard.run("collectives", list)
