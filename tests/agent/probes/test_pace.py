"""How fast a rank trains: what counts as training, and which minutes are compared."""

import pytest

from ddtop.agent.limits import LIMITS
from ddtop.agent.probes.pace import Counts, Paces

SECOND = 1_000_000_000


class Training:
    """Steps on a clock that the test sets, with two looks per second."""

    def __init__(self):
        self.paces, self.now, self.steps = Paces(LIMITS), 0, 0.0
        self.loader_ns, self.tokens = 0, None

    def runs(self, minutes, per_s=10.0, loads=0.0, waits=False, trains=True, tokens=None, source=2):
        for _ in range(round(minutes * 120)):
            self.now += SECOND // 2
            if trains:
                self.steps += per_s / 2
                self.loader_ns += round(loads * SECOND / 2)
            if tokens is not None:
                self.tokens = (self.tokens or 0.0) + tokens / 2
            counts = Counts(self.now, int(self.steps), self.loader_ns, None, self.tokens, ())
            self.paces.add(counts, source, waits, trains)
        return self.paces.pace(0)


def test_nothing_is_told_before_two_minutes_after_the_warm_up():
    training = Training()

    assert training.runs(2.4) is None
    assert training.runs(0.2).now.per_s == pytest.approx(10, rel=0.02)


def test_the_start_is_without_the_warm_up():
    training = Training()
    training.runs(0.5, per_s=2)
    found = training.runs(6, per_s=10)

    assert found.start.per_s == pytest.approx(10, rel=0.02)


def test_ten_minutes_ago_is_compared_with_the_last_two():
    training = Training()
    training.runs(13, per_s=20)
    found = training.runs(5, per_s=10, loads=0.4, waits=True)

    assert (found.now.unit, found.now.per_s) == ("steps", pytest.approx(10, rel=0.02))
    assert found.before.per_s == pytest.approx(20, rel=0.02)
    assert found.now.step_ms == pytest.approx(100, rel=0.02)
    assert found.now.loader_ms == pytest.approx(40, rel=0.02)
    assert (found.now.wait_ratio, found.before.wait_ratio) == (1.0, 0.0)


def test_the_time_of_a_validation_does_not_count():
    training = Training()
    training.runs(4)
    for _ in range(8):
        training.runs(0.5, trains=False)
        training.runs(0.5)

    assert training.runs(0.1).now.per_s == pytest.approx(10, rel=0.03)


def test_tokens_are_compared_where_they_are_counted():
    """A curriculum of longer samples makes slower steps, and processes as many tokens."""
    found = Training().runs(6, tokens=4096.0)

    assert (found.now.unit, found.now.per_s) == ("tokens", pytest.approx(4096, rel=0.02))


def test_another_counter_begins_anew():
    training = Training()
    training.runs(6, source=1)

    assert training.runs(1, source=2) is None


def test_a_long_step_makes_a_longer_piece():
    found = Training().runs(30, per_s=1 / 20)

    assert found.now.step_ms == pytest.approx(20_000, rel=0.01)


def test_samples_that_are_counted_every_fifty_steps_make_no_noise():
    """As the manual shows it: `ddtop.progress(samples=...)` now and then."""
    paces, now, step = Paces(LIMITS), 0, 0.0
    for _ in range(8 * 120):
        now += SECOND // 2
        step += 3.1 / 2
        counts = Counts(now, int(step), 0, int(step) // 50 * 50 * 8.0, None, ())
        paces.add(counts, 2, False, True)
    found = paces.pace(0)

    assert found.now.unit == "samples"
    assert found.now.per_s == pytest.approx(3.1 * 8, rel=0.03)
    assert found.now.most_per_s - found.now.least_per_s < 0.06 * found.now.per_s


def test_a_program_that_counts_no_samples_any_more_does_not_hold_the_pieces_up():
    training = Training()
    training.runs(6, tokens=1000)
    for _ in range(120 * 6):
        training.now += SECOND // 2
        training.steps += 5
        counts = Counts(training.now, int(training.steps), 0, None, training.tokens, ())
        training.paces.add(counts, 2, False, True)

    assert training.paces.pace(0).now.unit == "steps"
