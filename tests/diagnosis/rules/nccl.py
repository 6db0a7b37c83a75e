"""Jobs that wait in NCCL, and what its RAS service says of them."""

from __future__ import annotations

from ddtop.wire.gpu import Communicator, RasAnswer, RasRank
from tests.jobs import FakeJob


def nccl_job(torch="2.13.0", **environment):
    job = FakeJob(4)
    for rank in job.ranks:
        rank.told |= {"backend": "nccl", "environment": environment, "torch": torch}
        job.greet(rank)
    return job


def service(*states, counts=None, usual=812, pids=None, hosts=None):
    """Its answer: a rank a state, with these launches of all_reduce. It tells addresses, not
    names.
    """
    launches, pids = (
        counts or [812] * len(states),
        pids or [4800 + number for number in range(len(states))],
    )
    hosts = hosts or ["10.0.0.1"] * len(states)
    ranks = tuple(
        RasRank(number, hosts[number], pids[number], state, number, {"AllReduce": launches[number]})
        for number, state in enumerate(states)
    )
    state = "ok" if set(states) == {"ok"} else "bad"
    return RasAnswer(
        (Communicator("0x5c", len(states), ranks, state=state, usual={"AllReduce": usual}),),
        "2.29.7",
    )
