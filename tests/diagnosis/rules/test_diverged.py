"""Parameters that DistributedDataParallel keeps equal, and that differ between ranks."""

from __future__ import annotations

from math import inf, nan

import pytest

from ddtop.wire.records import Replica
from tests.jobs import WORLD, FakeJob
from tests.spread import SpreadJob

NAMES = ("0.weight", "2.bias")
SAME = (0.0298, -0.5)


def replica(taken, group=WORLD, model=0, names=NAMES):
    """Samples of a model after every 16th step."""
    numbered = tuple((16 * (number + 1), values) for number, values in enumerate(taken))
    return Replica((group, model, names), numbered)


def job_with(*taken, **more) -> FakeJob:
    """One list a rank: the values of each sample. All of them are in each report."""
    job = FakeJob(len(taken))
    for number, (rank, own) in enumerate(zip(job.ranks, taken, strict=True)):
        given = {name: one[number] if type(one) is list else one for name, one in more.items()}
        rank.says["replicas"] = (replica(own, **given),) if own is not None else ()
    return job.trains(5)


def test_the_rank_that_differs_from_the_others_is_named_with_the_first_step():
    other = (0.0312, -0.5)
    finding = job_with([SAME] * 4, [SAME, SAME, other, other], [SAME] * 4).finds(
        "warning", "diverged", 1
    )

    assert finding.summary == (
        "the parameters of rank 1 differ from those of ranks 0,2 since optimizer step 48 or before:"
        " 0.weight (0.0312 instead of 0.0298); DistributedDataParallel averages their gradients, so"
        " they should be equal"
    )
    assert finding.evidence[:2] == (
        "rank 1, after step 64: 0.weight 0.0312, 2.bias -0.5",
        "rank 0, after step 64: 0.weight 0.0298, 2.bias -0.5",
    )


def test_if_the_others_agree_the_first_rank_is_the_one_that_differs():
    job_with([(1.0, 2.0)] * 2, [SAME] * 2, [SAME] * 2).finds("warning", "diverged", 0)


@pytest.mark.parametrize("values", [[(1.0, 2.0), SAME], [(1.0, 2.0), SAME, (3.0, 4.0)]])
def test_without_a_majority_nobody_is_blamed(values):
    finding = job_with(*([one, one] for one in values)).finding()

    assert finding.ranks == tuple(range(len(values)))
    assert "differ from each other since" in finding.summary
    assert "2.bias (2 on rank 0, -0.5 on rank 1)" in finding.summary


@pytest.mark.parametrize("lost", [nan, inf])
def test_a_rank_whose_parameters_are_lost_alone_is_named(lost):
    job_with([SAME] * 2, [(lost, lost)] * 2, [SAME] * 2).finds("warning", "diverged", 1)


def test_parameters_that_are_lost_on_all_ranks_are_equal():
    assert job_with([(nan, inf)] * 3, [(nan, inf)] * 3).ever() == []


def test_the_first_step_stays_though_later_reports_no_longer_have_it():
    job = job_with([SAME] * 2, [(1.0, 1.0)] * 2)
    for rank in job.ranks:
        later = tuple((step + 1600, values) for step, values in rank.says["replicas"][0].taken)
        rank.says["replicas"] = (Replica((WORLD, 0, NAMES), later),)
    job.trains(5)

    assert "since optimizer step 16 or before" in job.finding().summary


def test_it_is_over_when_the_values_are_equal_again():
    job = job_with([SAME] * 2, [(1.0, 1.0)] * 2)
    assert job.finding().kind == "diverged"
    for rank in job.ranks:
        rank.says["replicas"] = (replica([SAME] * 4),)
    job.trains(40)

    assert job.kinds() == []


def test_it_stays_while_the_last_samples_of_two_ranks_have_no_step_in_common():
    job = job_with([SAME] * 2, [(1.0, 1.0)] * 2)
    job.ranks[0].says["replicas"] = (Replica((WORLD, 0, NAMES), ((8000, SAME),)),)
    job.trains(5)

    assert [began.step for began in job.model().ranks[1].apart.values()] == [16]


def test_a_hundredth_in_three_samples_is_a_difference():
    assert job_with([SAME] * 3, [(0.0301, -0.5)] * 3).finding().kind == "diverged"


OTHER = [(1.0, 2.0)] * 4


@pytest.mark.parametrize(
    "near_miss",
    [
        lambda: job_with([SAME] * 4, [SAME, SAME, SAME, (1.0, 1.0)]),
        lambda: job_with([SAME] * 4, [SAME, (1.0, 1.0), SAME, (1.0, 1.0)]),
        lambda: job_with([SAME] * 4, [(0.0298 * (1 + 1e-6), -0.5)] * 4),
        lambda: job_with([SAME] * 4, OTHER, group=["a", "b"]),
        lambda: job_with([SAME] * 4, OTHER, model=[0, 1]),
        lambda: job_with([SAME] * 4, OTHER, names=[("a", "b"), ("c", "d")]),
        lambda: job_with([SAME] * 4, OTHER, None),
        lambda: job_with([SAME] * 4, [()] * 4),
    ],
    ids=["once", "now and then", "the last bit", "groups", "models", "names", "a member", "none"],
)
def test_what_is_no_evidence_is_silent(near_miss):
    assert near_miss().ever() == []


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
    memory = job_with([SAME] * 2, OTHER[:2]).model().ranks[1]
    ((key, began),) = memory.apart.items()
    memory.move(5)

    assert memory.apart[key].since_unix_ns == began.since_unix_ns + 5
