"""Jobs in which two threads of a rank use one group."""

from __future__ import annotations

import msgspec

from ddtop.wire.records import StackFrame, Stacks, ThreadStack
from tests.jobs import FakeJob, trained, unix_ns

C10D = "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def by(rank, *threads, group="0"):
    """The collective that each thread has open: (id, name) or None."""
    condition = rank.standings[group]
    for at, thread in enumerate(threads):
        found = {"thread_id": thread[0], "thread": thread[1]} if thread is not None else {}
        condition.open[at] = msgspec.structs.replace(condition.open[at], **found)


def both_wait(*threads, world_size=2):
    """Each rank has two open collectives, which these threads have called."""
    job = FakeJob(world_size).trains(10)
    for rank in job.ranks:
        rank.waits_in("all_gather")
        rank.waits_in("all_reduce")
        by(rank, *threads)
    return job.passes(3)


def thread(function, name="metrics", main=False, file=C10D):
    frames = (
        StackFrame("wrapper", C10D.replace("distributed_c10d", "c10d_logger"), 83),
        StackFrame(function, file, 3000),
    )
    return ThreadStack(
        (*frames, StackFrame("work", "/home/ada/train.py", 9, True)), name, 7 if main else 8, main
    )


def dumped(*threads, groups=()):
    job = trained(2)
    for name in groups:
        job.new_group(name, 0, 1)
    for rank in job.ranks:
        rank.waits_in("all_gather")
        for name in groups:
            rank.waits_in("all_reduce", group=name)
    job.passes(2)
    for rank in job.ranks:
        job.say(
            Stacks("a", rank.number, rank.pid, unix_ns(job.now), "agent", threads, automatic=True),
            rank,
        )
    return job.passes(2)
