"""`late-to-init`, `rank-missing`, and `left-early` before the start: ranks wait in
init_process_group for ranks that are not there.

`rules.rendezvous` runs before: a rank that looks for the others in the wrong place is not late.
"""

from __future__ import annotations

from tests.jobs import FakeJob


def early(world_size=4, absent=(), hosts=1):
    """A job whose ranks have just begun."""
    job = FakeJob(world_size, hosts=hosts, absent=absent)
    for rank in job.ranks:
        rank.phase, rank.trains, rank.iteration = "starting", False, None
        rank.works_at("<module>", line=1, waits_on="import")
    return job


def enter(job, *numbers):
    """These are inside, and wait."""
    for number in numbers:
        job.ranks[number].stands_at(
            "main", line=30, waits_on="collective", callee="init_process_group"
        )
        job.ranks[number].is_in_init()


def missing(**variables):
    job = early(4, absent=[3])
    for rank in job.ranks:
        rank.told["environment"] = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"} | variables
    job.passes(2)
    enter(job, 0, 1, 2)
    return job
