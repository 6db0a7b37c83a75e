"""Findings about a job that trains follow the policy that is passed in."""

import pytest

from ddtop.wire.records import SYMMETRIC, Loader
from tests.diagnosis.rules.crowded import loaded
from tests.diagnosis.rules.exception_swallowed import catching, caught, hang
from tests.diagnosis.rules.gpus import memory, refuses
from tests.diagnosis.rules.misuse import PLAIN, communicating, fed, taking_turns
from tests.gpu_jobs import GIB, GpuJob, card
from tests.jobs import FakeJob
from tests.second_policy import Case, kinds, text


def one_slow_worker():
    """80 % of the waits are for one of four workers."""
    job = FakeJob(2)
    for rank in job.ranks:
        rank.loader = Loader(4, 0, 8, 4, owed_most_pid=4711, owed_most_ratio=0.8)
        rank.loader_share = 0.7
    return job.trains(15)


def sharded_layers():
    return communicating(0.8, kind=SYMMETRIC)


def communicating_on_a_busy_host():
    """The ranks wait 15 % of the time for a CPU."""
    job = communicating(0.8)
    loaded(job, 20, run_delay_ns=0.15)
    return job


def skipping():
    """Each rank fetches nearly as many batches a step as there are ranks."""
    return fed(**(PLAIN | {"taken": 370})).trains(10)


def catching_before_a_hang():
    """Rank 2 does not enqueue its collective. It caught an exception until two windows ago."""
    retries = catching(caught("ConnectionError", count=3, windows=2, ago=2))
    return hang(catching(), catching(), retries, catching())


def full_and_fragmented():
    """A third of what torch has reserved of a full GPU is not in use."""
    job = GpuJob(card(0, 0, used_bytes=79 * GIB), card(1, 1), world_size=2)
    refuses(job, memory(12, allocated=50))
    return job


def hot_and_slower():
    """A GPU is throttled by heat, and steps have taken 150 ms since. They took 100 ms before."""
    job = GpuJob().trains(5)
    for rank in job.ranks:
        rank.says = {"step_ms": 150.0}
    job.change(2, throttle=("hw_thermal", "hw_slowdown"), sm_mhz=1005, celsius=91)
    return job.trains(10)


def capped():
    """A GPU at its power cap is slower than the others, which draw nine tenths of its power."""
    job = GpuJob()
    for number in range(4):
        job.change(number, power_watts=540.0)
    job.change(2, throttle=("sw_power_cap",), sm_mhz=1100, power_watts=600.0)
    return job.trains(10)


ONE_WORKER, FRAGMENTED, SLOWER, LACK, CATCHES = (
    "one worker is slower than the others",
    "expandable_segments",
    "a step takes 150 ms; the shortest took 100 ms",
    "the ranks also waited",
    "rank 2 catches ConnectionError again and again",
)
THROTTLED = ["gpu-throttled"]
CASES = [
    Case(
        "input-bound", "input-bound.one_ratio", 0.9,
        text(one_slow_worker, ONE_WORKER), True, False,
    ),
    Case("sync-bound", "sync-bound.reduce_ratio", 0.0, kinds(sharded_layers), [], ["sync-bound"]),
    Case(
        "sync-bound", "sync-bound.crowded_ratio", 0.5,
        text(communicating_on_a_busy_host, LACK), True, False,
    ),
    Case(
        "imbalance", "imbalance.phase_ratio", 0.0, text(taking_turns, "0% loader"), False, True,
    ),
    Case(
        "sampler", "sampler-not-distributed.feed_passed_over", 0.95, kinds(skipping), [],
        ["sampler-not-distributed"],
    ),
    Case(
        "caught", "exception-swallowed.recent_windows", 1, text(catching_before_a_hang, CATCHES),
        True, False,
    ),
    Case(
        "gpu-memory-low", "gpu-memory-low.spare_ratio", 0.5,
        text(full_and_fragmented, FRAGMENTED), True, False,
    ),
    Case(
        "gpu-throttled", "gpu-throttled.step_slower_factor", 2.0, text(hot_and_slower, SLOWER),
        True, False,
    ),
    Case("gpu-throttled", "gpu-throttled.gpu_load_ratio", 0.95, kinds(capped), THROTTLED, []),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_the_policy_says_what_costs_a_job_its_time(case):
    assert case.said_by_both() == (case.ours, case.theirs)
