"""GPUs that draw different power, and none of them is a straggler."""

import msgspec
import pytest

from ddtop.policy import POLICY
from ddtop.wire.records import GpuWatch
from tests.diagnosis.rules.gpu_straggler_silent import mostly
from tests.gpu_jobs import card
from tests.nccl_jobs import COMPUTES, WAITS, WARM_S, NcclJob, one_computes


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


def test_in_its_first_minute_a_job_compiles_and_loads():
    job = NcclJob().runs(58, one_computes(0))

    assert job.stood() == []


def test_a_rank_that_evaluates_while_the_others_wait_at_a_barrier_is_no_straggler():
    """The job makes no progress meanwhile, so other rules judge it."""
    job = NcclJob().warms_up()
    job.ranks[0].works_at("evaluate")
    job.others_wait(0, op="barrier")
    job.runs(60, one_computes(0))

    assert "straggler" not in [kind for _, kind, _ in job.stood()]


def test_a_job_that_makes_its_steps_in_bursts_waits_for_something_between_them():
    job = NcclJob().warms_up()
    for second in range(70):
        for rank in job.ranks:
            rank.trains = second % 40 < 20
        job.runs(1, one_computes(0))

    assert job.stood() == []


def test_steps_that_nothing_counts_prove_no_work_alike():
    """In rollouts and servers each rank has its own work."""
    job = NcclJob()
    for rank in job.ranks:
        rank.iteration = None
    job.warms_up()

    assert job.runs(60, one_computes(5)).stood() == []


def test_ranks_that_make_fewer_steps_have_another_part_in_the_job():
    job = NcclJob().warms_up()
    for second in range(60):
        for number in range(8):
            job.change(number, **one_computes(5)(second, number))
        job.trains(1)
        job.ranks[5].iteration -= 8

    assert job.stood() == []


def test_stages_of_a_pipeline_wait_for_the_heavy_one_by_design():
    """Four stages that send to each other, and sum the norm of their gradients at each step."""
    job = NcclJob(world_size=4)
    for rank in job.ranks:
        state = rank.state
        rank.state = lambda state=state: _sending(state())
    job.warms_up()

    assert job.runs(60, one_computes(2)).stood() == []


def _sending(state):
    groups = tuple(msgspec.structs.replace(one, p2p_calls=4 * one.enqueued) for one in state.groups)
    return msgspec.structs.replace(state, groups=groups)


def test_who_exchanges_most_in_a_smaller_group_is_not_compared_in_the_large_one():
    """Two replicas of four stages, one heavy: gradients go to the other replica's same stage."""
    job = NcclJob()
    for number in range(4):
        job.new_nccl_group(f"dp{number}", number, number + 4)
    for rank in job.ranks:
        state = rank.state
        rank.state = lambda state=state: mostly(state(), "dp")
    job.warms_up()

    assert job.runs(60, one_computes(2, 6)).stood() == []


def test_numbers_that_the_relay_repeats_while_the_driver_is_silent_prove_nothing():
    job = NcclJob().warms_up()
    job.runs(4, one_computes(5))
    for second in range(60):
        job.host_says["gpu_watch"] = GpuWatch(4000 + second % 5 * 1000)
        job.trains(1)

    assert job.stood() == []


def test_a_third_of_the_gpus_that_nobody_knows_could_be_the_one_that_all_wait_for():
    job = NcclJob()
    job.has(*[card(number, *([number] if number < 5 else [])) for number in range(8)])
    job.runs(WARM_S, lambda second, rank: COMPUTES)

    assert job.runs(60, one_computes(2)).stood() == []


@pytest.mark.parametrize("members", [1, 2, 3])
def test_of_gpus_without_any_power_none_is_a_straggler_however_few_are_compared(members):
    job = NcclJob(world_size=2)
    job.policy = POLICY.with_limits({"gpu-wait.members": members})
    job.runs(75, lambda second, rank: COMPUTES | {"power_watts": 0.0})

    assert [rank.gpu_late for rank in job.snapshot().ranks] == [None, None]
