"""A job that trains slower than before, and healthy ones that only vary."""

import random
from statistics import median

from ddtop.diagnosis.rules.slowdown import Slowdown, _is_apart
from ddtop.wire.records import Speed


def test_random_noise_of_a_healthy_job_does_not_trigger_it():
    """Each piece of half a minute has twenty percent of noise, and there are a thousand looks."""
    chance = random.Random(7)

    def noisy():
        pieces = [10 * (1 + chance.gauss(0, 0.2)) for _ in range(4)]
        return Speed("steps", median(pieces), min(pieces), max(pieces), 100.0)

    alarms = sum(_is_apart(noisy(), noisy(), Slowdown()) for _ in range(10_000))

    assert alarms < 20
