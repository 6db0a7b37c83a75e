"""On NCCL a slow GPU is found by the power that the GPUs draw, not by arrival times."""

import pytest

from ddtop.model.facts import State
from tests.diagnosis.rules.straggler import answers
from tests.nccl_jobs import NcclJob, one_computes


def test_the_gpu_that_computes_while_the_others_spin_is_the_one_that_comes_last():
    job = NcclJob()
    for rank in job.ranks:
        # The host is ahead of its GPU, so a collective of NCCL is always open.
        rank.waits_share = 0.95
    job.warms_up()
    job.runs(60, one_computes(5))
    finding = job.finds("warning", "straggler", 5)

    assert finding.victims == (0, 1, 2, 3, 4, 6, 7)
    assert finding.summary == (
        "rank 5 is a straggler: its GPU computes while those of ranks 0-4,6,7 wait in NCCL, 100%"
        " busy at 29% of its power"
    )
    assert "620 W" in finding.evidence[0]
    assert "180 W" in finding.evidence[0]
    assert "ms" not in finding.summary
    assert "longer sequences" in finding.advice
    snapshot = job.snapshot()
    assert [rank.state is State.STRAGGLER for rank in snapshot.ranks] == [
        number == 5 for number in range(8)
    ]
    assert [rank.gpu.waits for rank in snapshot.ranks] == [number != 5 for number in range(8)]


# -- as the cause of a straggler that the arrival times have shown


def test_who_is_named_by_the_times_of_arrival_is_not_named_a_second_time():
    job = NcclJob()
    for rank in job.ranks:
        rank.waits_share = 0.02 if rank.number == 5 else 0.45
    job.warms_up()
    job.runs(30, one_computes(5))
    answers(job, (5,), cost_ms=40.0)
    job.runs(25, one_computes(5))

    assert [finding.kind for finding in job.verdict().findings] == ["straggler"]
    assert "of each 102 ms step" in job.finding().summary
    assert job.snapshot().ranks[5].gpu_late is None


@pytest.mark.parametrize(("seconds", "late"), [(35, {}), (60, {5: 40.0})])
def test_a_gpu_is_late_after_forty_seconds_of_means(seconds, late):
    job = NcclJob().warms_up()
    job.runs(seconds, one_computes(5))

    late_gpus = {one.rank: one.gpu_late for one in job.snapshot().ranks if one.gpu_late}
    assert {rank: late_gpu.seconds for rank, late_gpu in late_gpus.items()} == late


@pytest.mark.parametrize(("step_s", "late"), [(15, [5]), (50, [])])
def test_gpus_of_ranks_that_make_no_steps_are_not_compared(step_s, late):
    job = NcclJob().warms_up()
    for second in range(60):
        job.runs(1, one_computes(5))
        for rank in job.ranks:
            rank.iteration = 2000 + second // step_s

    assert [one.rank for one in job.snapshot().ranks if one.gpu_late] == late
