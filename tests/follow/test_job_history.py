"""The history of a whole job's numbers: bounded, and never from another time than the requested
one.
"""

from __future__ import annotations

import pytest

from ddtop.follow.history import RECENT_MOST, WHOLE_MOST, JobHistory, numbers_of
from ddtop.policy import POLICY
from tests.ui import builders, gpus
from tests.ui.builders import NOW, SECOND
from tests.ui.changed import replace


def speed(numbers):
    return numbers.iterations_per_s


def run(seconds, per_second, history=None, begin=NOW, every=2):
    """A job that runs at `per_second(t)` iterations a second."""
    history = history or JobHistory(POLICY)
    snapshot = builders.healthy(2)
    for t in range(0, seconds, every):
        at = begin + t * SECOND
        history.record(
            replace(snapshot, time_unix_ns=at, iterations_per_s=per_second(t), iteration=t)
        )
    return history


def test_the_numbers_of_a_snapshot_are_those_of_its_ranks_and_gpus():
    numbers = numbers_of(gpus.on_gpus(8))
    assert numbers.iterations_per_s == 5.1
    assert numbers.step_most_ms == pytest.approx(196.9)
    assert numbers.rss_bytes == 1186 * 2**20
    assert numbers.gpu_watts == pytest.approx(8 * 612.0)
    assert numbers.gpu_total_bytes == 8 * 80 * gpus.GIB


def test_a_job_that_makes_no_progress_has_no_step_time_and_no_throughput():
    numbers = numbers_of(builders.hang()[0])
    assert (numbers.iterations_per_s, numbers.step_most_ms) == (0.0, None)


def test_what_is_remembered_is_bounded_and_covers_the_whole_time():
    history = run(40 * 3600, lambda t: 5.0, every=10)
    points = list(history.points())
    assert len(points) <= RECENT_MOST + WHOLE_MOST
    assert points[0].unix_ns - NOW < 1800 * SECOND
    assert points == sorted(points)


def test_a_line_has_a_value_in_each_part_of_the_time_and_gaps_where_nothing_was():
    history = run(120, lambda t: 4.0 if t < 60 else 2.0)
    line = history.line(speed, 12, 120 * SECOND, NOW + 119 * SECOND)
    assert line == [4.0] * 6 + [2.0] * 6
    silent = run(120, lambda t: 4.0 if t < 20 else None)
    assert silent.line(speed, 12, 120 * SECOND, NOW + 119 * SECOND) == [4.0] * 2 + [None] * 10


def test_a_line_ends_now_and_has_nothing_of_the_time_before_the_job():
    history = run(60, lambda t: 4.0)
    line = history.line(speed, 4, 120 * SECOND, NOW + 59 * SECOND)
    assert line[0] is None
    assert line[-1] == 4.0
    assert len(line) == 4


def test_a_point_soon_after_those_of_an_earlier_history_makes_no_hole():
    later = run(20, lambda t: 5.0, begin=NOW + 18 * SECOND + SECOND // 10)
    later.absorb(run(20, lambda t: 5.0))
    line = later.line(speed, 72, 36 * SECOND, NOW + 36 * SECOND)
    assert None not in line


def test_a_line_of_more_cells_than_points_has_no_holes():
    history = run(60, lambda t: 5.0, every=4)
    assert None not in history.line(speed, 40, 40 * SECOND, NOW + 57 * SECOND)


def test_a_moment_of_the_past_shows_nothing_of_what_came_after():
    history = run(600, lambda t: 4.0 if t < 300 else 2.0)
    then = NOW + 250 * SECOND
    assert speed(history.now(then)) == 4.0
    assert set(history.line(speed, 10, 100 * SECOND, then)) == {4.0}


def test_the_start_is_compared_without_its_warm_up():
    history = run(600, lambda t: 1.0 if t < 20 else 5.0 if t < 400 else 4.0)
    start = history.at_start(speed, NOW + 590 * SECOND)
    assert start is not None
    assert (start.value, start.unix_ns) == (5.0, NOW + 20 * SECOND)


def test_the_start_is_known_to_the_second_after_a_day():
    history = run(30 * 3600, lambda t: 5.0 if t < 600 else 4.0, every=5)
    start = history.at_start(speed, NOW + 30 * 3600 * SECOND)
    assert start is not None
    assert (start.value, start.unix_ns) == (5.0, NOW + 20 * SECOND)


def test_a_job_that_is_young_is_not_compared():
    history = run(70, lambda t: 5.0)
    assert history.at_start(speed, NOW + 69 * SECOND) is None


def test_another_run_of_the_job_begins_anew():
    history = run(100, lambda t: 5.0)
    history.record(replace(builders.healthy(2), run="r2", time_unix_ns=NOW + SECOND))
    assert len(list(history.points())) == 1


def test_what_is_recalled_comes_before_what_was_seen_and_once():
    history = run(100, lambda t: 5.0, begin=NOW + 200 * SECOND)
    history.absorb(run(250, lambda t: 3.0))
    points = list(history.points())
    assert [point.unix_ns for point in points] == sorted({point.unix_ns for point in points})
    assert points[0].unix_ns == NOW
    assert speed(history.now(NOW + 299 * SECOND)) == 5.0
    assert speed(history.now(NOW + 150 * SECOND)) == 3.0


def test_the_long_memory_keeps_the_longest_step():
    history = JobHistory(POLICY)
    snapshot = builders.healthy(2)
    for t in range(0, 4 * 3600, 2):
        slow = replace(snapshot.ranks[0], progress={"step_ms": 9000.0 if t == 30 else 100.0})
        at = NOW + t * SECOND
        history.record(replace(snapshot, ranks=(slow, snapshot.ranks[1]), time_unix_ns=at))
    assert max(one.numbers.step_most_ms for one in history.points()) == 9000.0
