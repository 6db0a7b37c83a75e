"""`straggler`: the job moves, and in most steps all ranks wait for the same ones."""

from __future__ import annotations

from ddtop.wire.records import Arrivals
from ddtop.wire.samples import arrivals_of
from tests.arriving import entered
from tests.jobs import FakeJob


def job_with(slow=(1,), share=0.6, ranks=4):
    """The others wait this share of each step for the slow ranks."""
    job = FakeJob(ranks)
    for rank in job.ranks:
        rank.waits_share = 0.02 if rank.number in slow else share
    return job


def answers(job, slow=(1,), step_ms=100.0, cost_ms=60.0, request="r1", steps=100):
    """All ranks say when they put in their last collectives, of which each step has one."""
    times = entered(
        len(job.ranks),
        steps,
        lambda rank, number: (
            step_ms - cost_ms + (cost_ms if rank in slow else 0) + (rank * 7 + number) % 5
        ),
    )
    for rank, one in zip(job.ranks, times, strict=True):
        record = arrivals_of("0", one)
        job.say(Arrivals(request, (record,), steps), rank)
