"""Ranks that are read from outside, all of them in calls for each other, without progress."""

import pytest

from ddtop.wire.records import COLLECTIVE, P2P, RUN, OutsideLook
from tests.jobs import FakeJob, unix_ns


def standing(*calls, quiet=True, absent=()):
    """Each rank sleeps in its call: (call, line)."""
    job = FakeJob(len(calls) + len(absent), run=RUN, absent=absent).trains(6)
    for rank, (call, line) in zip(job.ranks, calls, strict=False):
        kind = P2P if call in ("Send", "Recv") else COLLECTIVE
        now = unix_ns(job.now)
        rank.stands_at("train", line=line, waits_on=kind, callee=call, activity="collective")
        since = now if quiet else None
        rank.says["outside"] = OutsideLook(kind, call, now, True, quiet_since_unix_ns=since)
    return job


DIFFER = (("barrier", 19), ("backward", 12), ("backward", 12))


def test_ranks_that_sleep_in_different_collectives_never_meet():
    """Only rank 0 evaluates. Between two looks more may happen than an agent would miss."""
    job = standing(*DIFFER)
    assert job.passes(19).ever() == []
    finding = job.passes(3).finds("critical", "no-progress", 0)

    assert finding.advice.startswith("make all ranks call the same collectives in the same order")


@pytest.mark.parametrize(
    "job",
    [
        {"quiet": False},
        {"absent": (3,)},
    ],
)
def test_data_on_its_way_and_ranks_of_other_hosts_are_no_proof(job):
    standing(*DIFFER, **job).passes(40).finds("warning", "no-progress", 0)


def test_of_ranks_that_all_send_none_receives():
    job = standing(*(("Send", 7) for _ in range(4)))
    finding = job.passes(25).finds("warning", "no-progress", 0, 1, 2, 3)

    assert finding.advice.startswith("all send, and none receives: give neighbours opposite orders")
