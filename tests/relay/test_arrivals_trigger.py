"""When exact arrivals are asked for: soon, then rarely, never while all ranks wait alike."""

from itertools import pairwise

import pytest

from ddtop.relay.triggers import ARRIVALS_PAUSES_S, ArrivalsTrigger

PAUSES_S = ARRIVALS_PAUSES_S[1:]


def asked(seconds, shares, trigger=None, begin=0.0):
    """When the relay requests arrivals. `shares(second)`: the ranks' wait ratios."""
    trigger, found = trigger or ArrivalsTrigger(), []
    for second in range(seconds):
        now = begin + second
        for pid, share in enumerate(shares(second)):
            trigger.note_wait(pid, share, now)
        if trigger.due(now):
            found.append(second)
    return found


def test_ranks_that_wait_alike_are_never_asked():
    assert asked(600, lambda _: (0.2, 0.22, 0.18, 0.24)) == []


def test_one_that_hardly_waits_is_asked_about_within_two_seconds_and_then_ever_less_often():
    times = asked(400, lambda _: (0.7, 0.02, 0.68, 0.71))

    assert times[0] <= 2
    assert [later - before for before, later in pairwise(times)][: len(PAUSES_S)] == list(PAUSES_S)
    assert len(times) <= 400 / PAUSES_S[-1] + len(PAUSES_S)


def test_a_rank_alone_has_nobody_to_differ_from():
    assert asked(60, lambda _: (0.9,)) == []


@pytest.mark.parametrize("share", [0.6, 0.32])
def test_a_job_that_waits_much_is_asked_though_its_ranks_are_alike(share):
    """Only the arrivals show whether the ranks wait for each other or for the network."""
    assert asked(30, lambda _: (share + 0.02, share, share + 0.01)) != []


def test_shares_of_ranks_that_are_no_longer_heard_are_forgotten():
    trigger = ArrivalsTrigger()
    asked(1, lambda _: (0.7, 0.02), trigger)

    assert asked(60, lambda _: (0.7,), trigger, begin=100.0) == []


def test_another_slow_rank_is_asked_about_at_once_and_not_a_minute_later():
    trigger = ArrivalsTrigger()
    asked(300, lambda _: (0.7, 0.02, 0.7), trigger)
    times = asked(30, lambda _: (0.02, 0.7, 0.7), trigger, begin=300.0)

    assert times[0] <= PAUSES_S[0] + 1


def test_nonsense_is_not_believed():
    assert asked(20, lambda _: (float("nan"), -3.0, 1e300, None)) == []


def test_what_chance_does_to_few_samples_is_not_asked_about():
    """Two ranks that wait a third of the time, in their first seconds."""
    assert asked(3, lambda _: (0.25, 0.42)) == []
    assert asked(3, lambda _: (0.02, 0.7)) != []


def test_a_fifth_of_a_step_is_asked_about_once_there_are_enough_samples():
    assert asked(40, lambda _: (0.18, 0.03)) != []
