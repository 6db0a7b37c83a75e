"""Which ranks are stragglers in a snapshot follows the policy that is passed in."""

from __future__ import annotations

import functools

import pytest

from ddtop.policy import Policy
from ddtop.wire.records import GpuWatch, Loader, ProcessLoad
from tests.diagnosis.rules.crowded import loaded
from tests.diagnosis.rules.misuse import communicating
from tests.diagnosis.rules.straggler import answers, job_with, read_once
from tests.jobs import SECOND, WORLD, FakeJob
from tests.nccl_jobs import COMPUTES, HOT, WAITS, NcclJob
from tests.second_policy import Case


def one_read(share=0.6, seconds=2):
    """Rank 1 was late for 60 % of each step in one read, this many seconds ago."""
    job = job_with(share=share).trains(12)
    answers(job)
    return job.trains(seconds)


def two_reads():
    """Rank 1 was late for 17 % of each step in two reads, five seconds apart."""
    job = job_with(share=0.18).trains(12)
    answers(job, cost_ms=17.0)
    job.trains(5)
    answers(job, cost_ms=17.0, request="r2")
    return job.trains(2)


def two_reads_on_crowded_cores():
    """Two reads, ten seconds apart, of a rank that lacks CPU time for longer than others wait."""
    job = job_with(share=0.2)
    for second in range(34):
        job.ranks[1].seen_outside = {"load": ProcessLoad(run_delay_ns=round(second * 0.4 * SECOND))}
        job.trains(1)
        if second == 23:
            answers(job, cost_ms=20.0)
    answers(job, cost_ms=20.0, request="r2")
    return job.trains(2)


def two_reads_of_much_on_crowded_cores():
    """Rank 1 was late for 60 % in two reads 5 s apart, and lacks CPU time for longer."""
    job = job_with()
    for second in range(29):
        job.ranks[1].seen_outside = {"load": ProcessLoad(run_delay_ns=round(second * 0.8 * SECOND))}
        job.trains(1)
        if second == 23:
            answers(job)
    answers(job, request="r2")
    return job.trains(2)


def loaders_of_which_three_are_faster():
    """Rank 1 waits for its loader. Half of the workers of the others have nothing to do."""
    job = job_with()
    for rank in job.ranks:
        rank.loader = Loader(2, 0 if rank.number == 1 else 3, 4, 2)
        rank.loader_share = 0.9 if rank.number == 1 else 0.04
    job.trains(12)
    answers(job)
    return job.trains(2)


def reads_of(*slow, cost_ms=(60.0, 60.0, 60.0)):
    """Each of these ranks was late in a read, 14 seconds apart, by this much in steps of 100 ms."""
    job = job_with()
    for number, (one, cost) in enumerate(zip(slow, cost_ms, strict=False)):
        for rank in job.ranks:
            rank.waits_share = 0.02 if rank.number == one else 0.6
        job.trains(12)
        answers(job, (one,), cost_ms=cost, request=f"r{number}")
        job.trains(2)
    return job


def two_reads_after_another_rank():
    return reads_of(1, 2, 2)


def one_read_after_a_weaker_one_of_another_rank():
    return reads_of(1, 2, cost_ms=(40.0, 60.0))


def one_read_of_stages():
    """A third of what the ranks enqueue is send and recv."""
    job = job_with()
    for rank in job.ranks:
        rank.standings[WORLD].offset = 40
    return read_once(job)


def an_old_balance():
    """The arrivals were read 20 seconds ago."""
    return communicating(0.8).trains(18)


def little_cpu():
    """Counters of the host for 40 seconds."""
    job = FakeJob(2)
    loaded(job, 40, run_delay_ns=0.5)
    return job


def gpus_that_wait(seconds, computes=COMPUTES, **waits):
    """The GPU of rank 5 computes for this long, and the others wait."""
    job = NcclJob().warms_up()
    return job.runs(seconds, lambda second, rank: computes if rank == 5 else WAITS | waits)


def gpus_of_which_nothing_new_is_known():
    """The relay has repeated their old numbers for 15 seconds."""
    job = gpus_that_wait(60)
    job.host_says["gpu_watch"] = GpuWatch(5000, "580")
    return job.trains(15)


def a_gpu_that_heat_holds_since_half_a_minute():
    """Its clock was low before."""
    job = NcclJob().warms_up()
    job.runs(30, lambda second, rank: HOT | {"throttle": ()} if rank == 5 else SLOWER)
    return job.runs(30, lambda second, rank: HOT if rank == 5 else SLOWER)


def seen(make, look):
    """The result of a look at the last snapshot of that job."""

    def says(policy: Policy):
        job = make()
        job.policy = policy
        return look(job.snapshot())

    return says


def late(make):
    """The ranks that are late by the arrivals."""
    return seen(make, lambda snapshot: [one.rank for one in snapshot.ranks if one.late is not None])


def gpu_late(make):
    """The ranks that are late by their GPUs."""
    return seen(make, lambda snapshot: [one.rank for one in snapshot.ranks if one.gpu_late])


def measured_s(snapshot):
    """Over how many seconds the pressure of rank 0 is measured."""
    return round(snapshot.ranks[0].process.pressure.seconds)


def gpu_late_s(snapshot):
    """Over how many seconds a GPU was late."""
    return [one.gpu_late.seconds for one in snapshot.ranks if one.gpu_late]


SLOWER = COMPUTES | {"power_watts": 410.0, "sm_mhz": 1800}
LONG = functools.partial(gpus_that_wait, 60)
BUSY = functools.partial(gpus_that_wait, 60, util_ratio=0.93)
ALIKE = functools.partial(gpus_that_wait, 60, COMPUTES | {"power_watts": 400.0}, power_watts=280.0)
CASES = [
    Case("one-read", "straggler_strong_ratio", 0.7, late(one_read), [1], []),
    Case(
        "crowded", "straggler_strong_ratio", 0.7, late(two_reads_of_much_on_crowded_cores), [1], []
    ),
    Case("turns", "straggler_strong_ratio", 0.5, late(one_read_after_a_weaker_one_of_another_rank),
     [], [2]),
    Case("one-read", "arrivals.span_s", 20.0, late(one_read), [1], []),
    Case("two-reads", "arrivals.rounds_apart_s", 10.0, late(two_reads), [1], []),
    Case("crowded", "arrivals.crowded_apart_s", 15.0, late(two_reads_on_crowded_cores), [1], []),
    Case("turns", "arrivals.crowded_apart_s", 20.0, late(two_reads_after_another_rank), [2], []),
    Case("read", "arrivals.stale_s", 10.0, late(lambda: one_read(seconds=20)), [1], []),
    Case("balance", "arrivals.stale_s", 10.0,
     seen(an_old_balance, lambda snapshot: len(snapshot.balances)), 1, 0),
    Case("samples", "arrivals.gone_ratio", 0.8, late(lambda: one_read(share=0.4)), [1], []),
    Case("loaders", "loading.busy_ratio", 0.2, late(loaders_of_which_three_are_faster), [1], []),
    Case("stages", "stages.ratio", 0.5, late(one_read_of_stages), [], [1]),
    Case("pressure", "oversubscribed_window_s", 30.0, seen(little_cpu, measured_s), 20, 30),
    Case("gpu", "gpu_mean_s", 5.0, gpu_late(lambda: gpus_that_wait(35)), [], [5]),
    Case("gpu-seconds", "gpu_mean_s", 5.0, seen(LONG, gpu_late_s), [40.0], [20.0]),
    Case("old-gpu", "gpu_mean_s", 5.0, gpu_late(gpus_of_which_nothing_new_is_known), [5], []),
    Case(
        "hot-gpu", "gpu_mean_s", 5.0, gpu_late(a_gpu_that_heat_holds_since_half_a_minute), [], [5]
    ),
    Case("gpu", "gpu_wait_busy_ratio", 0.9, gpu_late(BUSY), [], [5]),
    Case("gpu", "gpu_wait_power_ratio", 0.8, gpu_late(ALIKE), [], [5]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_the_policy_says_who_is_a_straggler(case):
    assert case.said_by_both() == (case.ours, case.theirs)
