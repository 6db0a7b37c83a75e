"""Jobs that made steps and now make none."""

from ddtop.wire.records import OpenCall
from tests.jobs import FakeJob, trained, unix_ns

LOCK = "/home/ada/.cache/torch_extensions/cpu/scan/lock"


def all_stand(job, function="main", **more):
    for rank in job.ranks:
        rank.stands_at(function, **more)


def makes_groups(job, lines):
    """Each rank is inside new_group, called from a line of its own."""
    for rank, line in zip(job.ranks, lines, strict=True):
        since = {"since_unix_ns": unix_ns(job.now)}
        rank.stands_at(
            "main",
            line=line,
            activity="collective",
            waits_on="collective",
            callee="new_group",
            **since,
        )
        rank.calls = [OpenCall("new_group", unix_ns(job.now))]


def starting(world_size):
    """Its ranks have no group yet, and have made no step."""
    job = FakeJob(world_size)
    for rank in job.ranks:
        rank.phase = "starting"
        rank.standings = {}
        rank.iteration = None
        rank.says = {"progress_unix_ns": None}
    return job


def workers_of_an_engine(*waits_on):
    """Each has answered its engine for a while, then waits so."""
    job = trained(len(waits_on))
    for rank, word in zip(job.ranks, waits_on, strict=True):
        rank.iteration = None
        rank.stands_at("cleanup" if word == "lock" else "dequeue", waits_on=word)
    return job


def a_pool():
    """A master and workers that poll for their tasks, as mpi4py.futures does; one has a task."""
    job = workers_of_an_engine("results", "orders", "orders", "pipe")
    for rank in job.ranks[1:3]:
        rank.works_at("main", waits_on="orders")
    return job
