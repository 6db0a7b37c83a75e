"""When a large loss of speed is told: after twenty seconds of slow steps, and not for a pause."""

import pytest

from ddtop.agent.limits import LIMITS
from ddtop.agent.probes.fall import Falls
from ddtop.agent.probes.pace import Counts
from ddtop.wire.records import ACTIVITIES

SECOND = 1_000_000_000
FORWARD, BACKWARD = ACTIVITIES.index("forward"), ACTIVITIES.index("backward")


class Training:
    """Steps on a clock that the test sets, with four looks per second."""

    def __init__(self):
        self.falls, self.at, self.steps, self.tokens = Falls(LIMITS), 0, 0.0, None
        self.found = [0] * len(ACTIVITIES)

    def runs(self, seconds, step_s, trains=True, part=FORWARD, tokens_a_step=None, source=2):
        for _ in range(round(seconds * 4)):
            self.at += SECOND // 4
            self.steps += 0.25 / step_s if trains else 0
            self.found[part] += 1
            if tokens_a_step:
                self.tokens = (self.tokens or 0.0) + 0.25 / step_s * tokens_a_step
            counts = Counts(self.at, int(self.steps), 0, None, self.tokens, tuple(self.found))
            self.falls.add(counts, source, trains)
        return self.falls.told(0)


def test_a_large_loss_is_told_after_twenty_seconds_with_the_step_and_the_part():
    training = Training()
    assert training.runs(10, 0.05) is None
    assert training.runs(15, 1.5, part=BACKWARD) is None
    found = training.runs(15, 1.5, part=BACKWARD)

    assert found.step == pytest.approx(200, abs=41)
    assert (found.then.step_ms, found.now.step_ms) == pytest.approx((50, 1500), rel=0.1)
    assert found.now.parts_ms[BACKWARD] == pytest.approx(1500, rel=0.1)
    assert found.then.parts_ms[FORWARD] == pytest.approx(50, rel=0.1)


@pytest.mark.parametrize("step_s", [0.02, 0.2, 0.8, 3.0])
def test_steps_of_any_length_are_compared(step_s):
    training = Training()
    training.runs(60 * max(step_s, 0.5), step_s)

    assert training.runs(60 * max(step_s, 0.5), 5 * step_s) is not None


def test_a_job_that_gets_slow_little_by_little_is_told():
    training = Training()
    for step_s in (0.05, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25):
        assert training.runs(10, step_s) is None

    assert training.runs(25, 0.3) is not None


def test_a_smaller_loss_is_not_told():
    training = Training()
    training.runs(30, 0.1)

    assert training.runs(60, 0.35) is None


@pytest.mark.parametrize("pause_s", [5, 60, 600])
def test_a_pause_is_not_told(pause_s):
    training = Training()
    training.runs(30, 0.1)

    assert training.runs(pause_s, 1000) is None
    assert training.runs(5, 0.1) is None


def test_a_pause_every_few_steps_is_not_told():
    training = Training()
    for _ in range(10):
        assert training.runs(3, 0.1) is None
        assert training.runs(12, 1000) is None


def test_a_slow_start_is_not_what_is_usual():
    training = Training()
    training.runs(40, 2.0)
    training.runs(20, 0.1)
    found = training.runs(40, 1.0)

    assert found.then.step_ms == pytest.approx(100, rel=0.1)


def test_steps_of_two_kinds_are_told_once_at_most():
    training = Training()
    training.runs(20, 0.1)
    assert training.runs(30, 0.6) is not None
    for _ in range(3):
        assert training.runs(20, 0.1) is None
        assert training.runs(30, 0.6) is None


def test_a_validation_is_not_told():
    training = Training()
    training.runs(30, 0.1)
    for _ in range(4):
        assert training.runs(20, 1, trains=False) is None
        assert training.runs(3, 0.1) is None


def test_steps_with_more_work_are_not_told():
    training = Training()
    training.runs(30, 0.1, tokens_a_step=100)

    assert training.runs(60, 0.6, tokens_a_step=500) is None
    assert training.runs(60, 0.6, tokens_a_step=100) is not None


def test_another_count_of_steps_is_another_training():
    training = Training()
    training.runs(30, 0.01, source=1)

    assert training.runs(60, 0.5, source=2) is None
