"""GPUs that draw different power, and none of them is a straggler."""

import pytest

from ddtop.policy import POLICY
from tests.nccl_jobs import COMPUTES, WAITS, NcclJob, one_computes


def near(second, rank):
    """GPUs of one model under one load differ by a tenth, and vary as much each second."""
    return COMPUTES | {
        "power_watts": 600.0 + 60 * ((rank * 7 + second * 3) % 3 - 1),
        "sm_mhz": 1700 + 30 * (rank % 4),
    }


def rotating(second, rank):
    return COMPUTES if rank == second // 4 % 8 else WAITS


def half_and_half(second, rank):
    return COMPUTES if rank % 2 else WAITS


def memory_bound(second, rank):
    """All draw little power: a kernel that reads memory draws hardly more than one that waits."""
    return WAITS | {"power_watts": 260.0 if rank == 3 else 200.0}


def untold(second, rank):
    return one_computes(5)(second, rank) | {"power_watts": None}


def two_kinds(second, rank):
    return COMPUTES | {"name": "H100"} if rank == 5 else WAITS | {"name": "L40S"}


def two_caps(second, rank):
    return COMPUTES if rank == 5 else WAITS | {"power_cap_watts": 350.0}


def above_half_of_the_cap(second, rank):
    """Some ranks decode, others prefill: at 55 % of its cap a GPU does not wait."""
    return COMPUTES | {"power_watts": 690.0} if rank == 5 else COMPUTES | {"power_watts": 380.0}


def idle(second, rank):
    """They wait for data, not in NCCL."""
    return COMPUTES if rank == 5 else {"util_ratio": 0.3, "power_watts": 150.0, "sm_mhz": 1980}


def ten_seconds_each(second, rank):
    return COMPUTES if rank == second // 10 % 8 else WAITS


def cut_in_instances(second, rank):
    return one_computes(5)(second, rank) | {"mig": True}


@pytest.mark.parametrize(
    "does",
    [
        near,
        rotating,
        ten_seconds_each,
        half_and_half,
        memory_bound,
        untold,
        two_kinds,
        two_caps,
        above_half_of_the_cap,
        idle,
        cut_in_instances,
    ],
)
def test_what_looks_like_it_and_is_something_else_is_not_reported(does):
    assert NcclJob().warms_up().runs(70, does).stood() == []


@pytest.mark.parametrize("members", [1, 2, 3])
def test_of_gpus_without_any_power_none_is_a_straggler_however_few_are_compared(members):
    job = NcclJob(world_size=2)
    job.policy = POLICY.with_limits({"gpu-wait.members": members})
    job.runs(75, lambda second, rank: COMPUTES | {"power_watts": 0.0})

    assert [rank.gpu_late for rank in job.snapshot().ranks] == [None, None]
