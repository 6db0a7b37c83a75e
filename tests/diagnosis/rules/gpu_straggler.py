"""Jobs for the tests of `gpu_straggler` and of the policy."""

from tests.diagnosis.rules.straggler import answers
from tests.nccl_jobs import COMPUTES, NcclJob


def late_job(does):
    """Rank 1 is late by the arrivals. `does`: what the GPUs show for the last 17 seconds."""
    job = NcclJob(world_size=4)
    for rank in job.ranks:
        rank.waits_share = 0.02 if rank.number == 1 else 0.45
    job.runs(40, lambda second, rank: COMPUTES)
    job.runs(15, does)
    answers(job, cost_ms=40.0)
    return job.runs(2, does)
