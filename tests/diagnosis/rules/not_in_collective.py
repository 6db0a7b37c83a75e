"""The job of most tests of `not-in-collective`."""

from tests.jobs import FakeJob


def hang(before_s=10.0):
    """Four ranks train. Then rank 2 is stuck in user code and the others wait for it."""
    job = FakeJob(4).trains(before_s)
    job.ranks[2].stands_at("wait_for_licence", "/home/ada/train.py", 53)
    job.others_wait(2)
    return job
