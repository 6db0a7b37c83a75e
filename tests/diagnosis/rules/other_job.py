"""A rank of this job waits for a rank of another one."""

from __future__ import annotations

from ddtop.wire.records import FarEnd, Group, Groups, Place, Whereabouts
from tests.jobs import FakeJob, Standing, unix_ns

PEER = "10.0.0.1:29511"
IN_REDUCE = Place("generate", "/home/ada/rollout.py", 51, "collective", callee="all_reduce")
ASLEEP = Place("reload", "/home/ada/rollout.py", 43)


def end(still_s: float | None, place: Place | None = IN_REDUCE, job: str = "rollout") -> FarEnd:
    since = unix_ns(still_s) if still_s is not None else None
    return FarEnd(900, PEER, Whereabouts(job, 0, 2, 1, place), since)


def asks(
    still_s: float | None = 11.0,
    place: Place | None = IN_REDUCE,
    remote: str | None = PEER,
    waits_on: str | None = "socket",
    seconds: float = 20.0,
) -> FakeJob:
    """Rank 0 waits for an answer of the other job, the others for rank 0.

    `still_s`: when that job came to a stop.
    """
    job = FakeJob(3).trains(10)
    job.ranks[0].seen_outside = {"far_ends": (end(still_s, place),), "remote": remote}
    job.ranks[0].stands_at("ask", "/home/ada/train.py", 57, waits_on=waits_on)
    job.others_wait(0)
    return job.passes(seconds)


def shares_a_group(
    still_s: float | None = 11.0, place: Place | None = IN_REDUCE, seconds: float = 40.0
) -> FakeJob:
    """Rank 0 waits in a group that it shares with a rank of the other job, in a futex."""
    job = FakeJob(3)
    job.groups["weights"] = Group("weights", "weights", (), "gloo", (), (), PEER)
    job.ranks[0].standings["weights"] = Standing()
    job.say(Groups(tuple(job.groups.values())), job.ranks[0])
    job.trains(10)
    job.ranks[0].seen_outside = {"far_ends": (end(still_s, place),)}
    job.ranks[0].waits_in("broadcast", group="weights")
    for rank in job.ranks[1:]:
        rank.waits_in("barrier")
    return job.passes(seconds)
