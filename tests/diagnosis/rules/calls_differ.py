"""Jobs in which some ranks make a call more."""

from ddtop.wire.records import CallSite, Groups, Turn
from tests.jobs import FakeJob
from tests.ranks import unix_ns

LOOP = CallSite("all_reduce", "/w/train.py", 40, "step")
LOGS = CallSite("all_reduce", "/w/train.py", 88, "log_mean")
ALIKE = Turn("0", 1, LOOP)


def turns(job, *numbers, also=(), site=LOGS, instead=LOOP, **others):
    """These ranks make a call more at #61, and with the others what `also` has."""
    for rank in job.ranks:
        own = [ALIKE, *also]
        if rank.number in numbers:
            given = {"unix_ns": unix_ns(job.now), "more": 1} | others
            own.append(Turn("0", 61, site, instead, None, **given))
        job.say(Groups(tuple(job.groups.values()), tuple(own)), rank)


def parted(*numbers, world_size=4, **more):
    job = FakeJob(world_size).trains(10)
    turns(job, *numbers, **more)
    return job.passes(5)
