"""Jobs whose frames a tape keeps."""

from __future__ import annotations

from ddtop.wire import frames
from tests.jobs import FakeJob


def in_order(job):
    found = [(frames.open_envelope(data), data) for data in job.frames]
    return sorted(found, key=lambda item: item[0].unix_ns)


def hangs():
    job = FakeJob(4)
    job.trains(40)
    job.ranks[2].stands_at("fetch_labels", "data.py", 40)
    job.others_wait(2)
    job.passes(60)
    return job


def dies():
    job = FakeJob(4)
    job.trains(30)
    job.ranks[3].ends(signal=9)
    job.others_wait(3)
    job.passes(20)
    for number in range(3):
        job.ranks[number].ends(signal=15, later_s=0.1 * number)
    job.passes(3)
    return job
