"""A rank for which others wait, with an exception, a signal or a failed save."""

from __future__ import annotations

from ddtop.wire.records import FailedSave, Handling, LastException, Place
from tests import jobs
from tests.jobs import FakeJob, unix_ns

FULL = Handling("OSError", "[Errno 28] No space left on device", Place("save", "/w/train.py", 31))


def hang(*handling: int) -> FakeJob:
    """Rank 1 stands in another group, and the others wait for it."""
    job = jobs.trained()
    job.ranks[1].stands_at("report", "train.py", 60)
    job.others_wait(1)
    for number in handling:
        job.ranks[number].says["handling"] = FULL
    return job.passes(8)


ERROR = "RuntimeError: [enforce fail at inline_container.cc:603] . PytorchStreamWriter failed"


def after(what: str, record: object, *numbers: int) -> FakeJob:
    job = jobs.trained()
    job.ranks[1].stands_at("report", "train.py", 60)
    job.others_wait(1)
    for number in numbers:
        job.ranks[number].says[what] = record
    return job.passes(8)


def failed(ago_s: float) -> FailedSave:
    return FailedSave("torch.save", "/ckpt/7.pt", ERROR, unix_ns(jobs.trained().now - ago_s))


def of_a_thread(ago_s: float, thread: str = "Thread-1 (fill)") -> LastException:
    at = unix_ns(jobs.trained().now - ago_s)
    return LastException("KeyError", "'shard 17'", at, Place("fill", "/w/data.py", 31), thread)
