"""Jobs whose frames a tape keeps."""

from __future__ import annotations

from ddtop.follow.tape import Tape
from ddtop.model.job import Job
from ddtop.policy import POLICY
from ddtop.wire import frames
from tests.jobs import FakeJob


def in_order(job):
    found = [(frames.open_envelope(data), data) for data in job.frames]
    return sorted(found, key=lambda item: item[0].unix_ns)


def taped(job, tape=None, model=None, **more):
    tape = tape or Tape(**more)
    model = model or Job(job.name, POLICY)
    for envelope, data in in_order(job):
        model.apply(envelope, frames.open_record(envelope))
        tape.add(envelope, data, model)
    return tape


def hangs():
    job = FakeJob(4).trains(40)
    job.ranks[2].stands_at("fetch_labels", "data.py", 40)
    job.others_wait(2)
    return job.passes(60)


def dies():
    job = FakeJob(4).trains(30)
    job.ranks[3].ends(signal=9)
    job.others_wait(3)
    job.passes(20)
    for number in range(3):
        job.ranks[number].ends(signal=15, later_s=0.1 * number)
    return job.passes(3)
