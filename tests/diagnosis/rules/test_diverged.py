"""Parameters that DistributedDataParallel keeps equal, and that differ between ranks."""

from __future__ import annotations

import pytest

from ddtop.wire.records import Replica
from tests.jobs import WORLD, FakeJob
from tests.spread import SpreadJob

NAMES = ("0.weight", "2.bias")
SAME = (0.0298, -0.5)


def replica(taken):
    """Samples of a model after every 16th step."""
    numbered = tuple((16 * (number + 1), values) for number, values in enumerate(taken))
    return Replica((WORLD, 0, NAMES), numbered)


def apart(*ours):
    """A job of two ranks whose values differ."""
    job = FakeJob(2)
    for rank, values in zip(job.ranks, ours or (SAME, (1.0, 1.0)), strict=True):
        rank.says["replicas"] = (replica([values] * 2),)
    return job.trains(5)


@pytest.mark.parametrize(("more", "is_apart"), [(8e-5, False), (1.5e-4, True)])
def test_values_that_differ_by_rounding_are_not_apart(more, is_apart):
    job = apart((3.0,), (3.0 * (1 + more),))

    assert bool(job.model().ranks[1].apart) == is_apart


def test_it_stays_while_the_last_samples_of_two_ranks_have_no_step_in_common():
    job = apart()
    job.ranks[0].says["replicas"] = (Replica((WORLD, 0, NAMES), ((8000, SAME),)),)
    job.trains(5)

    assert [began.step for began in job.model().ranks[1].apart.values()] == [16]


def test_a_rank_of_an_earlier_life_is_not_compared():
    """Rank 1 trains again after a restart, and the host of rank 0 has not said so yet."""
    job = SpreadJob(2, 2).trains(3)
    job.ranks[0].says["replicas"] = (replica([SAME] * 2),)
    job.trains(3)
    job.goes_silent("node0")
    job.begins_again({"node1": [1]}, 2, ["node1"])
    job.ranks[1].says["replicas"] = (replica([(1.0, 1.0)] * 2),)
    job.trains(5)
    ranks = job.model().ranks

    assert ranks[0].state.replicas
    assert ranks[1].apart == {}


def test_when_it_began_moves_with_the_clock_of_the_host():
    memory = apart().model().ranks[1]
    ((key, began),) = memory.apart.items()
    memory.move(5)

    assert memory.apart[key].since_unix_ns == began.since_unix_ns + 5
