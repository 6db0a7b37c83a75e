"""The cause of a straggler follows the policy that is passed in."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from ddtop.diagnosis.finding import Context
from ddtop.diagnosis.straggler_cause import COMPUTES as LONGER
from ddtop.diagnosis.straggler_cause import (
    CPU,
    GC,
    GIL,
    HELD,
    LOADER,
    MEMORY,
    PROGRAMS,
    PYTHON,
    THROTTLED,
    UNKNOWN,
    cause_of,
)
from ddtop.policy import Policy
from ddtop.say.stragglers import cause_text, flame
from ddtop.wire.records import HostLoad, Loader, Spot
from tests.diagnosis.rules.gpu_straggler import late_job
from tests.diagnosis.rules.straggler import (
    AUG,
    answers,
    counting,
    crowded_by_others,
    job_with,
    pressed,
)
from tests.jobs import SECOND
from tests.nccl_jobs import COMPUTES, HOT, WAITS, one_computes
from tests.second_policy import Case


def read(job):
    """All ranks report their arrivals: rank 1 is late for 60 % of each step."""
    answers(job)
    return job.trains(2)


def loading():
    """Rank 1 waits 40 % of the time for its loader."""
    job = job_with()
    for rank in job.ranks:
        rank.loader, rank.loader_share = Loader(workers=0), 0.4 if rank.number == 1 else 0.02
    job.trains(12)
    return read(job)


def counted(**per_s):
    """These counters of rank 1 grow at these rates."""
    job = job_with()
    passes = counting(job, 1, **per_s)
    passes(12)
    answers(job)
    passes(2)
    return job


def collecting():
    return counted(gc_total_ns=0.4 * SECOND)


def holding_the_gil():
    """The function is in 40 % of the samples."""
    return counted(held_samples=4)


def at(samples, name="rotate"):
    """In this many of 100 samples rank 1 is in this function."""
    job = job_with()
    job.ranks[1].says = {"spots": (Spot(name, AUG, 88, samples),), "spots_samples": 100}
    return job


def in_a_function(samples):
    job = at(samples).trains(12)
    return read(job)


def under_pressure(slow, others, job=None):
    """Counters of the relay grow at one rate on rank 1, and at another on the others."""
    job = job or job_with()
    pressed(job, 24, slow, others)
    return read(job)


def throttled():
    return under_pressure({"throttled_ns": 0.4 * SECOND}, {"throttled_ns": 0})


def without_a_cpu():
    job = job_with()
    job.host_says = {"load": HostLoad(runnable=7, steal_ratio=0.1)}
    return under_pressure({"run_delay_ns": 0.45 * SECOND}, {"run_delay_ns": 0.05 * SECOND}, job)


def in_a_function_on_a_busy_host():
    """Rank 1 waits for a CPU for 33 %, and is in a function for 50 %, longer than the others."""
    return under_pressure({"run_delay_ns": 0.4 * SECOND}, {"run_delay_ns": 0.02 * SECOND}, at(55))


def beside_others():
    """Other programs take three of the four CPUs. Its samples differ by 18 % of the time."""
    job = job_with(share=0.5)
    crowded_by_others(job, cores=0.8, spots=(60, 42))
    return job


def short_of_memory(others):
    """Rank 1 reads 200 pages a second back from a disk."""
    return under_pressure({"major_faults": 200}, {"major_faults": others})


def hot():
    return late_job(lambda second, rank: HOT if rank == 1 else COMPUTES)


def computing():
    """The GPUs of the others wait, and are busy for 97 % of the time."""
    return late_job(one_computes(1, others=WAITS | {"util_ratio": 0.97}))


@functools.cache
def facts(make):
    return make().snapshot()


def cause(make, share_ratio=None):
    """The cause that is named for rank 1. `share_ratio`: the share of a step that it costs."""

    def says(policy: Policy):
        snapshot = facts(make)
        rank = snapshot.rank(1)
        late = rank.late
        if share_ratio is not None:
            late = replace(late, cost_ms=share_ratio * late.step_ms)
        return cause_of(rank, late, snapshot, policy)

    return says


def word(make, share_ratio=None):
    return lambda policy: cause(make, share_ratio)(policy).word


def hypervisor(policy):
    snapshot, found = facts(without_a_cpu), cause(without_a_cpu)(policy)
    text, _ = cause_text(found, snapshot.rank(1), Context(snapshot, policy, snapshot))
    return "the hypervisor takes" in text


@functools.cache
def rarely():
    return in_a_function(6)


@functools.cache
def sometimes():
    return in_a_function(20)


def shown(policy):
    return flame(facts(rarely).rank(1), policy)


FEW_FAULTS, MANY_FAULTS = (functools.partial(short_of_memory, others) for others in (0, 30))

CASES = [
    Case("loader", "straggler-cause.part", 0.7, word(loading), LOADER, UNKNOWN),
    Case("gc", "straggler-cause.part", 0.8, word(collecting), GC, UNKNOWN),
    Case("throttled", "straggler-cause.part", 0.8, word(throttled), THROTTLED, UNKNOWN),
    Case("gpu-clock", "straggler-cause.part", 1.2, word(hot), HELD, UNKNOWN),
    Case("cpu", "straggler-cause.part", 0.8, word(without_a_cpu), CPU, UNKNOWN),
    Case("other-programs", "straggler-cause.part", 0.95, word(beside_others), PROGRAMS, PYTHON),
    Case("not-other-programs", "straggler-cause.part", 0.3, word(beside_others), PROGRAMS, PYTHON),
    Case("gil", "straggler-cause.held_part", 0.8, word(holding_the_gil), GIL, UNKNOWN),
    Case("cpu", "straggler-cause.cpu_part", 0.5, word(in_a_function_on_a_busy_host), PYTHON, CPU),
    Case("python", "straggler-cause.code_part", 0.5, word(sometimes), PYTHON, UNKNOWN),
    Case("memory", "straggler-cause.faults_per_s", 300.0, word(FEW_FAULTS), MEMORY, UNKNOWN),
    Case("memory", "straggler-cause.faults_factor", 8.0, word(MANY_FAULTS), MEMORY, UNKNOWN),
    Case("python", "spot.least_ratio", 0.1, word(rarely, 0.1), PYTHON, UNKNOWN),
    Case("samples", "spot.least_ratio", 0.1, shown, ["6% in rotate (aug.py:88)"], []),
    Case("other-programs", "foreign_cores", 3.5, word(beside_others), PROGRAMS, PYTHON),
    Case("hypervisor", "throttled_told_ratio", 0.2, hypervisor, True, False),
    Case("gpu-power", "gpu_wait_busy_ratio", 0.99, word(computing), LONGER, UNKNOWN),
    Case(
        "gpu-power",
        "gpu_wait_power_ratio",
        0.25,
        word(computing),
        LONGER,
        UNKNOWN,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_the_policy_says_what_makes_a_rank_slow(case):
    assert case.said_by_both() == (case.ours, case.theirs)
