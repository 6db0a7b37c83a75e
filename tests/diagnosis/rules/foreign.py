"""Jobs of `test_foreign.py` and of the pages of findings."""

from ddtop.wire.names import MAKES_BY_HAND
from ddtop.wire.records import Group, GroupMade, Groups
from tests.jobs import WORLD, FakeJob, Standing

STORE = "10.0.0.1:29511"


def between_jobs(foreign=STORE, ranks=()):
    """Rank 0 of three shares a group for the weights with rank 0 of another job."""
    job = FakeJob(3)
    job.groups["weights"] = Group("weights", "weights", ranks, "gloo", (), (), foreign)
    job.ranks[0].standings["weights"] = Standing()
    job.say(Groups(tuple(job.groups.values())), job.ranks[0])
    return job.trains(10)


def by_hand(job, number, rank, store=STORE, size=2):
    """That rank says that it is this member of the group for the weights."""
    group = Group("weights", "weights", (), "gloo", (), (), store, size, number)
    job.say(Groups((job.groups[WORLD], group)), job.ranks[rank])
    job.ranks[rank].standings["weights"] = Standing()


def makes(job, rank, name, number, *before, store=STORE, size=2):
    """That rank waits for the other members of the group; `before` are names of earlier ones."""
    made = tuple(
        GroupMade(MAKES_BY_HAND, 0, 0, Group(each, "", (), "gloo", (), (), store, size, number))
        for each in (*before, name)
    )
    job.say(Groups((job.groups[WORLD],), made=made), job.ranks[rank])
    job.ranks[rank].stands_at("join", "/home/ada/link.py", 7 + rank, callee=MAKES_BY_HAND)


def waits_for_weights(job):
    job.ranks[0].waits_in("broadcast", group="weights")
    for rank in job.ranks[1:]:
        rank.waits_in("barrier")
