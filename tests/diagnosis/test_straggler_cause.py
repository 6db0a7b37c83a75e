"""What makes a straggler slow: the first cause that explains enough of what it costs."""

import functools
from dataclasses import replace

import pytest

from ddtop.diagnosis.finding import Context
from ddtop.diagnosis.straggler_cause import (
    COMPUTES,
    CPU,
    GC,
    GIL,
    HELD,
    LOADER,
    MEMORY,
    PROGRAMS,
    PYTHON,
    TAKEN,
    THROTTLED,
    UNKNOWN,
    cause_of,
)
from ddtop.policy import POLICY
from ddtop.say.topics.stragglers import cause_text, flame
from ddtop.wire.records import HostLoad, Loader, Spot
from tests import nccl_jobs
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
from tests.nccl_jobs import HOT, WAITS, one_computes


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


def counted(said=None, **per_s):
    """These counters of rank 1 grow at these rates."""
    job = job_with()
    passes = counting(job, 1, said, **per_s)
    passes(12)
    answers(job)
    passes(2)
    return job


def collecting():
    return counted(gc_total_ns=0.4 * SECOND)


def holding_the_gil():
    """The function is in 40 % of the samples."""
    return counted(held_samples=4)


def taking_turns():
    """Another thread computes at the same time, and each takes the GIL from the other."""
    return counted({"held_by": Spot("pack", AUG, 6, 8)}, held_samples=4)


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


def without_a_cpu(steal_ratio=0.0):
    job = job_with()
    job.host_says = {"load": HostLoad(runnable=7, steal_ratio=steal_ratio)}
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
    return late_job(lambda second, rank: HOT if rank == 1 else nccl_jobs.COMPUTES)


def warm():
    """Its clock is held a little below those of the others."""
    return late_job(
        lambda second, rank: HOT | {"sm_mhz": 1700} if rank == 1 else nccl_jobs.COMPUTES
    )


def computing(util_ratio=0.97):
    """The GPUs of the others wait, and are busy for so much of the time."""
    return late_job(one_computes(1, others=WAITS | {"util_ratio": util_ratio}))


def cause(job, share_ratio=None):
    """The cause that is named for rank 1. `share_ratio`: the share of a step that it costs."""
    snapshot = job.snapshot()
    late = snapshot.rank(1).late
    if share_ratio is not None:
        late = replace(late, cost_ms=share_ratio * late.step_ms)
    return cause_of(snapshot.rank(1), late, snapshot, POLICY)


rarely, sometimes = (functools.partial(in_a_function, samples) for samples in (6, 20))


@pytest.mark.parametrize(
    ("job", "word"),
    [
        (loading, LOADER),
        (collecting, GC),
        (throttled, THROTTLED),
        (hot, HELD),
        (warm, UNKNOWN),
        (computing, COMPUTES),
        (lambda: computing(0.93), UNKNOWN),
        (without_a_cpu, CPU),
        (beside_others, PROGRAMS),
        (in_a_function_on_a_busy_host, PYTHON),
        (holding_the_gil, GIL),
        (taking_turns, TAKEN),
        (sometimes, PYTHON),
        (rarely, UNKNOWN),
        (lambda: short_of_memory(0), MEMORY),
        (lambda: short_of_memory(30), MEMORY),
        (lambda: short_of_memory(60), UNKNOWN),
    ],
)
def test_what_takes_most_of_the_time_that_a_rank_is_late_is_its_cause(job, word):
    assert cause(job()).word == word


def test_a_function_in_few_samples_explains_a_small_cost():
    assert cause(rarely(), 0.1).word == PYTHON
    assert flame(rarely().snapshot().rank(1), POLICY) == ["6% in rotate (aug.py:88)"]


def test_a_thread_that_takes_the_gil_is_told_by_its_function():
    job = taking_turns()
    snapshot = job.snapshot()
    text, advice = cause_text(cause(job), snapshot.rank(1), Context(snapshot, POLICY, snapshot))

    assert text.endswith("of the samples, in pack (aug.py:6): both take the GIL in turns")
    assert advice.startswith("do what pack (aug.py:6) does in a process of its own")


@pytest.mark.parametrize(("steal_ratio", "is_told"), [(0.06, True), (0.04, False)])
def test_what_the_hypervisor_takes_is_told(steal_ratio, is_told):
    job = without_a_cpu(steal_ratio)
    snapshot = job.snapshot()
    text, _ = cause_text(cause(job), snapshot.rank(1), Context(snapshot, POLICY, snapshot))
    assert ("the hypervisor takes" in text) == is_told
