"""`Job.copy`: two models that have the same content and change independently."""

from dataclasses import is_dataclass

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtop.model.job import Job
from ddtop.policy import POLICY
from ddtop.wire.records import ProcessState
from tests import gpu_jobs
from tests.arriving import answers, entered
from tests.jobs import SECOND, FakeJob


def hung_start():
    """One process without a rank number computes; the others wait in init_process_group."""
    job = FakeJob(3)
    for second in range(8):
        job.candidates = (ProcessState(None, 4999, "R", None, second * SECOND),)
        job.passes(1)
    return job.in_order()


def hang_on_gpus():
    job = gpu_jobs.GpuJob(*(gpu_jobs.card(index, index) for index in range(4)))
    job.trains(4)
    job.others_wait(2)
    job.passes(6)
    return job.in_order()


JOBS = {"hung start": hung_start(), "hang on GPUs": hang_on_gpus()}


def job_of(records):
    job = Job("train", POLICY)
    for envelope, record in records:
        job.apply(envelope, record)
    return job


def mutable_parts(value, path="job"):
    """Every part of `value` that can change after it was made, with its path."""
    if isinstance(value, (msgspec.Struct, str, bytes, int, float, type(None))):
        return
    if is_dataclass(value) and value.__dataclass_params__.frozen:
        return
    if isinstance(value, tuple):
        for at, one in enumerate(value):
            yield from mutable_parts(one, f"{path}[{at}]")
        return
    yield path, value
    if isinstance(value, dict):
        for key, one in value.items():
            yield from mutable_parts(one, f"{path}[{key!r}]")
    elif isinstance(value, (list, set)) or type(value).__name__ == "deque":
        for at, one in enumerate(value):
            yield from mutable_parts(one, f"{path}[{at}]")
    names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
    for name in names:
        if hasattr(value, name):
            yield from mutable_parts(getattr(value, name), f"{path}.{name}")


@settings(max_examples=40)
@given(st.sampled_from(sorted(JOBS)), st.integers(0, 10_000))
def test_a_copy_shares_no_part_that_can_change(which, place):
    records = JOBS[which]
    job = job_of(records[: 1 + place % len(records)])

    for answer in answers(entered(3, 4, lambda rank, number: 20 + 5 * (rank == 2))):
        job.rounds.add(answer)

    own = {id(part): path for path, part in mutable_parts(job)}
    shared = [own[id(part)] for _, part in mutable_parts(job.copy()) if id(part) in own]

    assert shared == []


@settings(max_examples=20)
@given(st.sampled_from(sorted(JOBS)), st.integers(0, 10_000))
def test_records_that_one_model_takes_in_do_not_change_the_other(which, place):
    records = JOBS[which]
    split = 1 + place % len(records)
    job, now = job_of(records[:split]), records[split - 1][0].unix_ns
    before = msgspec.msgpack.encode(job.snapshot(now), enc_hook=repr)

    earlier = job.copy()
    for envelope, record in records[split:]:
        job.apply(envelope, record)

    assert msgspec.msgpack.encode(earlier.snapshot(now), enc_hook=repr) == before


def test_a_look_back_during_a_hung_start_leaves_the_live_facts_alone():
    """The candidate computed. After a look back in time its CPU share was unknown."""
    records = JOBS["hung start"]
    job, now = job_of(records), records[-1][0].unix_ns
    live = job.snapshot(now).candidates

    past = job.copy()
    past.candidates.clear()
    past.candidates.move("any", SECOND)

    assert live[0].working is True
    assert job.snapshot(now).candidates == live
