"""A leaf's clock compared with its hub's: the stated error is never smaller than the true one."""

from hypothesis import given
from hypothesis import strategies as st

from ddtop.relay.hub.uplink import KEPT, HubClock

SECOND, MS = 1_000_000_000, 1_000_000
UNIX = 1_700_000_000 * SECOND


def ask(clock, at, offset, there, back, set_by=0):
    """A question at monotonic `at`, to a hub `offset` ahead, with this round trip."""
    sent = UNIX + at + set_by
    had = UNIX + at + there + offset
    clock.add(sent, had, had + 10_000, sent + there + 10_000 + back, at + there + 10_000 + back)


@given(
    st.lists(
        st.tuples(st.integers(0, 400 * MS), st.integers(0, 400 * MS)), min_size=1, max_size=30
    ),
    st.integers(-3600 * SECOND, 3600 * SECOND),
)
def test_the_true_offset_is_within_the_error_whatever_the_network_does(ways, offset):
    clock = HubClock()
    for number, (there, back) in enumerate(ways):
        ask(clock, number * 2 * SECOND, offset, there, back)

    told = clock.fastest(len(ways) * 2 * SECOND)

    assert abs(told.offset_ns - offset) <= told.error_ns + 1


def test_the_fastest_answer_counts():
    """200 ms of latency with jitter, and now and then a quick one."""
    clock = HubClock()
    for number in range(KEPT):
        ask(clock, number * 2 * SECOND, 5 * SECOND, 300 * MS, 20 * MS)
    ask(clock, 40 * SECOND, 5 * SECOND, 1 * MS, 1 * MS)
    ask(clock, 42 * SECOND, 5 * SECOND, 300 * MS, 20 * MS)

    told = clock.fastest(43 * SECOND)

    assert told.error_ns <= MS
    assert abs(told.offset_ns - 5 * SECOND) <= MS


def test_nothing_is_told_before_the_first_answer():
    assert HubClock().fastest(5) is None


def test_an_answer_from_before_the_clock_was_set_is_forgotten():
    clock = HubClock()
    ask(clock, 0, 0, MS, MS)
    ask(clock, 2 * SECOND, 0, 90 * MS, 90 * MS, set_by=60 * SECOND)

    assert abs(clock.fastest(3 * SECOND).offset_ns + 60 * SECOND) <= 91 * MS


def test_an_answer_from_before_the_hubs_clock_was_set_is_forgotten():
    clock = HubClock()
    ask(clock, 0, 0, MS, MS)
    ask(clock, 2 * SECOND, 60 * SECOND, 90 * MS, 90 * MS)

    assert abs(clock.fastest(3 * SECOND).offset_ns - 60 * SECOND) <= 91 * MS


@given(*[st.integers(-(1 << 70), 1 << 70)] * 4)
def test_an_answer_that_cannot_be_true_is_passed_over(sent, had, answered, came):
    clock = HubClock()
    clock.add(sent, had, answered, came, 0)
    told = clock.fastest(0)

    assert told is None or told.error_ns >= 0
