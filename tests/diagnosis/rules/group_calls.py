"""Jobs of `test_group_calls.py` and of the pages of findings."""

from ddtop.wire.names import OF_MEMBERS_ONLY
from ddtop.wire.records import Group, GroupMade, Groups, OpenCall, Place
from tests.jobs import unix_ns

A, B, EVERY = (0, 1), (1, 2), (0, 1, 2)


def made(number, *members, line=40, **more):
    group = Group(str(number), "", members, more.pop("backend", "gloo"))
    place = Place("make_groups", "/home/ada/train.py", line)
    return GroupMade("new_group", number, more.pop("world", 0), group, place=place, **more)


def has_made(job, number, *calls, last=False, tag=OF_MEMBERS_ONLY):
    """The rank has returned from these calls; with `last` it is still in the last one."""
    rank = job.ranks[number]
    job.say(Groups(tuple(job.groups.values()), made=calls), rank)
    if last:
        call = calls[-1]
        rank.stands_at("make_groups", line=call.place.line, waits_on="collective")
        rank.says["activity"] = "collective"
        since, peer = unix_ns(job.now), call.number
        rank.calls = [OpenCall("new_group", since, peer, tag)]


def partitioned(job):
    """`if rank in members: new_group(members)`, with the same number on both sides."""
    for number in range(4):
        has_made(job, number, made(1, 0, 1) if number < 2 else made(1, 2, 3))
