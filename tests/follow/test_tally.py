"""Sums over looks: goodput and the time lost to stragglers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddtop.follow.fleet import tally_of
from ddtop.model.facts import Late, ProgressFacts, RankFacts, Snapshot, State
from ddtop.policy import POLICY

SECOND = 1_000_000_000


def at(seconds, iteration, step_ms=100.0, *, run="r1", attempt=0, late=None, still=None):
    progress = ProgressFacts(iteration=iteration, step_ms=step_ms)
    rank = RankFacts(0, State.RUNNING, progress=progress, late=late)
    time = int((1000 + seconds) * SECOND)
    return Snapshot(
        "train", run, attempt, time, True, 1, 1, (rank,), iteration=iteration,
        still_since_unix_ns=still,
    )  # fmt: skip


def tallied(*snapshots):
    tally = None
    for one in snapshots:
        tally = tally_of(one, tally, POLICY)
    return tally


def test_a_job_that_steps_without_a_pause_has_a_goodput_of_one():
    found = tallied(*(at(second, 10 * second) for second in range(60)))

    assert found.goodput_ratio == pytest.approx(1.0, abs=0.01)


def test_a_pause_for_a_checkpoint_lowers_it():
    """A minute of steps, then a minute in which the one iteration takes all the time."""
    before = [at(second, 10 * second) for second in range(61)]
    pause = [at(60 + second, 600) for second in range(1, 60)]
    after = at(120, 601, 60_000.0)

    assert tallied(*before, *pause).goodput_ratio == pytest.approx(0.5, abs=0.02)
    assert tallied(*before, *pause, after).goodput_ratio == pytest.approx(0.5, abs=0.02)


def test_steps_longer_than_the_pause_between_two_looks_count_whole():
    """The unfinished step lowers nothing."""
    found = tallied(*(at(second, second // 30, 30_000.0) for second in range(30 * 8 + 20)))

    assert found.goodput_ratio == pytest.approx(1.0, abs=0.02)


def test_nothing_is_said_before_two_iterations_have_ended():
    assert tallied(at(0, 5), at(1, 5), at(2, 6)).goodput_ratio is None
    assert tallied(at(0, None), at(5, None)).goodput_ratio is None


def test_a_restart_is_time_without_steps():
    steps = [at(second, 10 * second) for second in range(61)]
    again = [at(120 + second, 10 * second, attempt=1) for second in range(61)]

    assert tallied(*steps, *again).goodput_ratio == pytest.approx(120 / 180, abs=0.03)


def test_another_run_begins_anew():
    found = tallied(at(0, 1), at(1, 11), at(60, 1, run="r2"))

    assert (found.run[0], found.in_steps_s, found.lost_s) == ("r2", 0.0, 0.0)


def test_time_lost_to_a_straggler_grows_with_the_time():
    late = Late("g", (0,), (1,), 20.0, 100.0, 30, 1.0, 0)
    found = tallied(*(at(second, 10 * second, late=late) for second in range(11)))

    assert found.lost_s == pytest.approx(2.0)


def test_nothing_is_lost_to_a_straggler_while_the_job_makes_no_progress():
    late = Late("g", (0,), (1,), 20.0, 100.0, 30, 1.0, 0)
    standing = [at(second, 10, late=late, still=1) for second in range(1, 11)]

    assert tallied(at(0, 10), *standing).lost_s == 0.0


def test_what_happened_between_two_looks_far_apart_is_not_known():
    late = Late("g", (0,), (1,), 20.0, 100.0, 30, 1.0, 0)

    assert tallied(at(0, 1, late=late), at(3600, 2, late=late)).lost_s == 0.0


def test_the_end_of_the_job_stops_the_clock():
    from ddtop.model.facts import Ended

    before = tallied(*(at(second, 10 * second) for second in range(60)))
    over = replace(at(600, 590), ended=Ended("all ranks finished", None, 0))

    assert tally_of(over, before, POLICY) == before
