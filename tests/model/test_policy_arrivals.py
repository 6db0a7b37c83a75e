"""The policy decides which ranks are late by the arrivals."""

from __future__ import annotations

import pytest

from ddtop.policy import Policy
from tests.arriving import answers, but, entered, looked_at
from tests.second_policy import Case


def late_at(steps, extra, base=50.0):
    """The result if rank 1 of four takes `extra` ms longer for this many steps of `base` ms."""
    times = entered(4, steps, but(lambda rank, number: base, 1, extra))

    def found(policy: Policy):
        return looked_at(answers(times), policy=policy)[-1].late

    return found


def named(found):
    """The ranks that are late."""
    return lambda policy: [late.ranks for late in found(policy)]


def few(found):
    """Whether the steps are called few."""
    return lambda policy: [late.few for late in found(policy)]


def three_of_four(number):
    """A rank that is on time at each fourth step."""
    return 10.0 if number % 4 else 0.0


def on_time_at_last(number):
    """A rank that is on time again after 180 of 200 steps."""
    return 10.0 if number <= 180 else 0.0


def late_at_last(number):
    """A rank that is late at the last 8 of 20 steps only."""
    return 60.0 if number > 12 else 0.0


def much_or_little(number):
    """A rank that is late by 20 ms at five of nine steps, and by 8 ms at the others."""
    return 20.0 if number % 9 < 5 else 8.0


def with_stalls(number):
    """A rank that is late by 10 ms, and by four seconds at each fortieth step."""
    return 10.0 if number % 40 else 4000.0


CASES = [
    Case("short-steps", "straggler.least_ms", 2.0, named(late_at(100, 1.5, 5.0)), [(1,)], []),
    Case("few-steps", "straggler_strong_ratio", 0.5, named(late_at(40, 30.0)), [(1,)], []),
    Case("few-steps", "straggler.steps", 30, few(late_at(20, 60.0)), [False], [True]),
    Case("lately", "straggler.steps", 64, named(late_at(200, on_time_at_last)), [], [(1,)]),
    Case("fewer-than", "straggler.steps", 30, named(late_at(20, late_at_last)), [], [(1,)]),
    Case("at-least", "straggler.steps", 8, named(late_at(20, late_at_last)), [], [(1,)]),
    Case("fewer-than", "straggler.few_steps", 6, named(late_at(7, 60.0)), [], [(1,)]),
    Case("few-steps", "straggler.few_steps", 12, named(late_at(10, 60.0)), [(1,)], []),
    Case("weak", "straggler.weak_steps", 128, named(late_at(100, 10.0)), [(1,)], []),
    Case("often", "straggler.late_ratio", 0.8, named(late_at(120, three_of_four)), [(1,)], []),
    Case("much", "straggler.gap_part", 0.5, named(late_at(120, much_or_little, 80.0)), [(1,)], []),
    Case("stalls", "straggler.stall_ratio", 0.0, named(late_at(120, with_stalls)), [(1,)], []),
    Case("chance", "straggler.errors", 30.0, named(late_at(120, three_of_four)), [(1,)], []),
]


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_the_policy_says_who_is_late_in_the_steps_of_one_read(case):
    assert case.said_by_both() == (case.ours, case.theirs)
