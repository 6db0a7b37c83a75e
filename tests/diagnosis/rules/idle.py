"""Jobs that have nothing to do."""

from __future__ import annotations

from tests.jobs import trained


def without_steps(job):
    """The same job, in which nothing counts steps."""
    for rank in job.ranks:
        rank.iteration = None
    return job


def polls(rank, function="wait_until_ready"):
    """`while not ready(): time.sleep(0.5)`."""
    rank.stands_at(function)
    rank.wakes_per_s, rank.wchan = 2.0, "hrtimer_nanosleep"


def serves(rank):
    """It waits for an HTTP request."""
    rank.stands_at("serve", callee="serve_forever", waits_on="socket")


def pushes(trainers):
    """Trainers, and a server as the last rank. Rank 0 has a group with the server."""
    job = without_steps(trained(trainers + 1))
    job.new_group("pair", 0, trainers)
    job.trains(2)
    serves(job.ranks[trainers])
    return job
