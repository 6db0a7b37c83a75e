"""Jobs in which some ranks catch an exception again and again that the others never catch."""

from ddtop.wire.records import Catching, Caught
from tests.jobs import FakeJob

SECOND = 1_000_000_000


def caught(name="ValueError", line=88, count=60, windows=6, ago=0):
    return Caught(name, "/home/ada/model.py", "Net.forward", line, count, windows, ago)


def catching(*found, windows=6, omitted=0):
    return Catching(windows, windows * SECOND // 4, found, omitted)


def job_in_which(*catches):
    """A rank for each entry, with the exceptions that it catches."""
    job = FakeJob(len(catches))
    for rank, what in zip(job.ranks, catches, strict=True):
        rank.says = {"catching": what}
    return job.trains(10)


def hang(*catches):
    """Rank 2 of such a job does not enqueue a collective that the others wait in."""
    job = job_in_which(*catches)
    job.ranks[2].stands_at("fetch", "/home/ada/data.py", 40)
    job.others_wait(2)
    return job.passes(8)
