"""The policy of the model decides whose GPU is a straggler, and whose GPU waits."""

import functools

import pytest

from ddtop.policy import POLICY
from tests.gpu_jobs import card
from tests.nccl_jobs import COMPUTES, HOT, NcclJob, one_computes

LONG_S = 3600.0
STRONG = COMPUTES | {"power_watts": 690.0}
HALF = COMPUTES | {"power_watts": 380.0}
"""More than half of a cap of 700 W, and little beside `STRONG`."""


@functools.cache
def one_of_eight():
    job = NcclJob().warms_up(20)
    return job.runs(55, one_computes(5))


@functools.cache
def in_its_first_minute():
    return NcclJob().runs(58, one_computes(0))


@functools.cache
def with_fewer_steps():
    job = NcclJob().warms_up(20)
    for _ in range(55):
        job.runs(1, one_computes(5))
        job.ranks[5].iteration -= 8
    return job


@functools.cache
def above_half_of_the_cap():
    job = NcclJob()
    for rank in job.ranks:
        rank.waits_share = 0.95
    job.runs(20, lambda second, rank: STRONG)
    return job.runs(55, lambda second, rank: STRONG if rank == 5 else HALF)


@functools.cache
def of_eight_five_are_known():
    job = NcclJob()
    job.has(*[card(number, *([number] if number < 5 else [])) for number in range(8)])
    job.warms_up(20)
    return job.runs(55, one_computes(2))


@functools.cache
def held_by_heat(*at_their_peak):
    """Rank 5 is slow, the others draw less than before, except these."""
    waits = COMPUTES | {"power_watts": 410.0, "sm_mhz": 1800}
    job = NcclJob().warms_up(30)
    job.runs(
        60, lambda second, rank: HOT if rank == 5 else COMPUTES if rank in at_their_peak else waits
    )
    return job


def stragglers(job, **changes):
    """The ranks whose GPUs are stragglers under this policy."""
    job.policy = POLICY.with_limits(changes)
    return tuple(rank.rank for rank in job.snapshot().ranks if rank.gpu_late is not None)


CASES = [
    (one_of_eight, {"gpu-wait.steps": 1_000_000}, (5,), ()),
    (one_of_eight, {"gpu-wait.calls": 1_000_000}, (5,), ()),
    (one_of_eight, {"gpu-wait.members": 9}, (5,), ()),
    (one_of_eight, {"gpu-wait.job_s": LONG_S}, (5,), ()),
    (in_its_first_minute, {"gpu-wait.job_s": 30.0}, (), (0,)),
    (with_fewer_steps, {"gpu-wait.steps_ratio": 0.9}, (), (5,)),
    (above_half_of_the_cap, {"gpu_wait_cap_ratio": 0.6}, (), (5,)),
    (of_eight_five_are_known, {"gpu-wait.told_ratio": 0.5}, (), (2,)),
    (held_by_heat, {"gpu-wait.below_peak_ratio": 0.5}, (5,), ()),
    (lambda: held_by_heat(0), {"gpu-wait.most_ratio": 0.8}, (), (5,)),
]


@pytest.mark.parametrize(
    ("scenario", "changes", "ours", "theirs"), CASES, ids=[next(iter(case[1])) for case in CASES]
)
def test_the_policy_says_whose_gpu_is_a_straggler(scenario, changes, ours, theirs):
    job = scenario()

    assert (stragglers(job), stragglers(job, **changes)) == (ours, theirs)


@pytest.mark.parametrize("members", [1, 2, 3])
def test_of_gpus_without_any_power_none_is_a_straggler_however_few_are_compared(members):
    job = NcclJob(world_size=2)
    job.runs(75, lambda second, rank: COMPUTES | {"power_watts": 0.0})

    assert stragglers(job, **{"gpu-wait.members": members}) == ()


def gpu_of_rank(job, number, **changes):
    job.policy = POLICY.with_limits(changes)
    return job.snapshot().ranks[number].gpu


def test_the_policy_says_how_much_power_a_gpu_draws_that_waits():
    job = above_half_of_the_cap()

    assert gpu_of_rank(job, 0).waits is False
    assert gpu_of_rank(job, 0, gpu_wait_cap_ratio=0.6).waits is True


def test_the_policy_says_how_much_power_a_gpu_draws_that_computes():
    job = above_half_of_the_cap()

    assert gpu_of_rank(job, 5).computes is True
    assert gpu_of_rank(job, 5, gpu_wait_cap_ratio=0.99).computes is False


def test_the_policy_says_how_often_a_collective_is_open_of_a_gpu_that_waits():
    job = NcclJob(world_size=4)
    for rank in job.ranks:
        rank.waits_share = 0.35
    job.warms_up(20)
    job.runs(20, one_computes(1))

    assert gpu_of_rank(job, 0).waits is False
    assert gpu_of_rank(job, 0, **{"gpu.wait_pending_ratio": 0.2}).waits is True
