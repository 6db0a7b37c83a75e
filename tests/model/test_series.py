"""Cumulative counters over time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtop.model.memory import POINTS, Series

S = 1_000_000_000


def series(*points):
    found = Series()
    for at, *values in points:
        found.add(round(at * S), *values)
    return found


def test_growth_is_measured_over_the_given_window():
    found = series((0, 0), (1, 10), (2, 20), (3, 40), (4, 80))

    assert found.growth(2.0, 4 * S) == (2.0, (60,))
    assert found.growth(100.0, 4 * S) == (4.0, (80,))


def test_the_window_reaches_back_to_the_last_point_before_it():
    """Reports come at 2 Hz with some jitter: a window of 2 s must not become one of 1.5 s."""
    found = series((0, 0), (1.9, 19), (4, 40))

    assert found.growth(2.0, 4 * S) == ((4 * S - 1.9 * S) / S, (21,))


def test_one_point_is_no_growth():
    assert series((0, 5)).growth(10.0, 0) is None
    assert series().growth(10.0, 0) is None


def test_points_older_than_the_window_give_nothing():
    """If a rank stopped reporting a minute ago, its wait share is unknown, not 0 %."""
    found = series((0, 0), (1, 10))

    assert found.growth(10.0, 11 * S) == (1.0, (10,))
    assert found.growth(10.0, 11 * S + 1) is None


@pytest.mark.parametrize(
    ("points", "grown"),
    [
        # The process was restarted: its CPU time begins at zero again.
        ([(0, 100), (1, 200), (2, 5), (3, 6)], (1,)),
        # A new process starts all of its counters anew.
        ([(0, 5, 100), (1, 6, 110), (2, 7, 50), (3, 9, 60)], (2, 10)),
        ([(1, 1), (2, 2, 2), (3, 3, 3)], (1, 1)),
    ],
    ids=["it fell", "one of several fell", "another number of counters"],
)
def test_a_counter_that_is_another_one_starts_anew(points, grown):
    assert series(*points).growth(10.0, 3 * S) == (1.0, grown)


def test_a_point_that_is_not_newer_is_ignored():
    found = series((0, 0), (2, 20), (1, 999), (2, 999))

    assert found.growth(10.0, 2 * S) == (2.0, (20,))


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**9)), max_size=400),
    st.floats(0.1, 100),
)
def test_growth_is_never_negative_and_memory_is_bounded(points, window_s):
    found = series(*((at / S, value) for at, value in points))
    grown = found.growth(window_s, max((at for at, _ in points), default=0))

    assert len(found) <= POINTS
    assert grown is None or (grown[0] > 0 and grown[1][0] >= 0)


def grown_of_all_points(points, window_s, now):
    """The same result, computed from all points that were ever added."""
    if len(points) < 2 or now - points[-1][0] > window_s * 1e9:
        return None
    end, *_ = points[-1]
    old = [point for point in points if end - point[0] >= window_s * 1e9]
    begin = old[-1] if old else points[0]
    if begin[0] == end:
        return None
    return (end - begin[0]) / 1e9, tuple(
        b - a for a, b in zip(begin[1:], points[-1][1:], strict=True)
    )


@given(
    st.lists(st.tuples(st.integers(1, 3 * S), st.integers(0, 9), st.integers(0, 9)), max_size=60),
    st.sampled_from((0.5, 1.0, 2.0, 5.0, 10.0)),
    st.integers(0, 12 * S),
)
def test_points_that_are_forgotten_change_no_window(steps, window_s, later_ns):
    found, points, at, first, second = Series(), [], 0, 0, 0
    for step, one, two in steps:
        at, first, second = at + step, first + one, second + two
        found.add(at, first, second)
        points.append((at, first, second))

    assert found.growth(window_s, at + later_ns) == grown_of_all_points(
        points, window_s, at + later_ns
    )
    assert len(found) <= POINTS


def test_a_counter_beyond_63_bits_is_refused():
    """Foreign bytes may contain 2**64 - 1. Later values are counted anew."""
    found = series((0, 1), (1, 2), (2, 1 << 64), (3, 3), (4, 5))

    assert found.growth(10.0, 4 * S) == (1.0, (2,))


def test_a_series_can_keep_more_seconds():
    found = Series(keep_s=60.0)
    for second in range(100):
        found.add(second * S, second)

    assert found.growth(60.0, 99 * S) == (60.0, (60,))
    assert Series().growth(60.0, 0) is None


@given(
    st.lists(st.integers(1, 4 * S), min_size=2, max_size=12),
    st.sampled_from([0.5, 2.0, 2.5, 5.0, 10.0]),
    st.integers(0, 12 * S),
)
def test_a_window_begins_at_the_last_point_that_it_covers(pauses, window_s, later):
    times = [sum(pauses[: number + 1]) for number in range(len(pauses))]
    found = Series()
    for number, at in enumerate(times):
        found.add(at, 7 * number, number * number)
    kept, now = len(found), times[-1] + later
    whole = [(at, number) for number, at in enumerate(times)][-kept:]
    before = [one for one in whole[:-1] if one[0] <= times[-1] - window_s * S] or whole[:1]
    begin_ns, begin = before[-1]
    last = len(times) - 1

    expected = None
    if kept > 1 and later <= window_s * S:
        seconds = (times[-1] - begin_ns) / S
        expected = (seconds, (7 * (last - begin), last * last - begin * begin))

    assert found.growth(window_s, now) == expected
    for counter in (0, 1):
        one = expected and (expected[0], expected[1][counter])
        assert found.grown_of((counter,), window_s, now) == one
    both = expected and (expected[0], sum(expected[1]))
    assert found.grown_of((0, 1), window_s, now) == both
