"""Jobs whose ranks end: without agents, and after a hang that was over."""

from ddtop.wire.records import COLLECTIVE, RUN, OutsideLook
from tests.jobs import FakeJob, hung, unix_ns

RESET = "Connection closed by peer [10.0.0.2]:41233"


def looked_at(world_size=3, wait_s=0.05, **told):
    """A job that was started without ddtop, all ranks in all_reduce for `wait_s` at each look."""
    job = FakeJob(world_size, run=RUN)
    for rank in job.ranks:
        rank.told |= told
        job.greet(rank)
    job.trains(6)
    for rank in job.ranks:
        since = unix_ns(job.now - wait_s)
        rank.says["outside"] = OutsideLook(COLLECTIVE, "all_reduce", since, wait_s > 1)
    return job.passes(0.5)


def cancelled_after_a_hang(over_for_s=0):
    """A hang of ten seconds; the job trained again for this long, then SIGTERM came."""
    job = hung(10, joined_s=0.0)
    if over_for_s:
        job.goes_on()
        job.trains(over_for_s)
    for rank in job.ranks:
        rank.ends(signal=15, later_s=0.01 * rank.number)
    return job.passes(3)
