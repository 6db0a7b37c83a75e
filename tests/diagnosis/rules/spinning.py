"""Ranks whose threads spin."""

from __future__ import annotations

import msgspec

from tests.jobs import WORLD, trained

ITEM = {"function": "train_step", "line": 77}


def on_nccl(job):
    """On NCCL without data of its GPUs: no driver library, MIG, or several ranks per GPU."""
    job.groups[WORLD] = msgspec.structs.replace(job.groups[WORLD], backend="nccl")
    for rank in job.ranks:
        rank.told["backend"] = "nccl"
        job.greet(rank)
    return job


def spin(job, *ranks, activity="other", timeout_ms=1_800_000):
    """They are in `loss.item()`, or in a launch whose queue is full."""
    for number in ranks:
        job.ranks[number].waits_in(timeout_ms=timeout_ms)
        job.ranks[number].works_at(**ITEM, activity=activity)


def aborted(after_s, *ranks):
    """Rank 2 sleeps; the others wait with a timeout of a minute, and SIGABRT ends them then."""
    job = on_nccl(trained(4))
    job.ranks[2].stands_at("wait_for_licence", line=53)
    spin(job, 0, 1, 3, timeout_ms=60_000)
    job.passes(after_s)
    for number in ranks:
        job.ranks[number].ends(signal=6, later_s=0.05 * number)
    return job
