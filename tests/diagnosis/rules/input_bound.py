"""Jobs for the tests of `input_bound` and of the policy."""

from ddtop.wire.records import Loader
from tests.jobs import FakeJob


def loading(share=0.7, **more):
    """A job whose ranks spend this share of their time in the DataLoader."""
    job = FakeJob(4)
    given = {
        "workers": 1,
        "depth": 0,
        "capacity": 2,
        "workers_alive": 1,
        "prefetch_factor": 2,
    } | more
    for rank in job.ranks:
        rank.loader, rank.loader_share = Loader(**given), share
    return job
