"""Ranks that wait for another rank in no call of a group: a key of the store, a request, a pipe."""

import pytest

from ddtop.wire.records import CONNECTION, KEY, PIPE, TAKES, Link, Sleeper
from tests.jobs import FakeJob, trained

ASLEEP = Sleeper("S", "wait_woken", "recvfrom")


def key(does=""):
    return Link(KEY, '"done/7/2"', does=does)


def request(rank, pid=4711):
    return Link(
        CONNECTION, "127.0.0.1:4455", "serve.py", pid, ASLEEP, does="ESTABLISHED", rank=rank
    )


def waiting(root, *links, ranks=(0, 1), job=None):
    """These ranks wait for that; rank 2 does what `root` says."""
    job = job or trained(3)
    for rank in ranks:
        job.ranks[rank].stands_at("collect", line=30, waits_on="socket")
        chain = "chain" if links[0].resource == KEY else None
        if chain:
            job.ranks[rank].says = {"chain": links}
        else:
            job.ranks[rank].seen_outside["chain"] = links
    job.ranks[2].stands_at("load", line=9, **root)
    return job


LOCK = {"waits_on": "lock"}


def test_the_only_rank_that_waits_for_no_key_is_blamed_by_those_that_do():
    finding = waiting(LOCK, key()).passes(15).finds("critical", "not-in-collective", 2)

    assert finding.summary == (
        "rank 2 has been waiting for a lock (train.py:9 load) for 15 s; ranks 0,1 wait for it in"
        " store.wait"
    )


def test_a_rank_whose_requests_another_rank_should_answer_waits_for_that_one():
    """Another thread of rank 2 may answer, so it stays a warning for a minute."""
    job = waiting(LOCK, request(2))
    finding = job.passes(15).finds("warning", "not-in-collective", 2)
    assert finding.summary.endswith("ranks 0,1 wait for it in a request")

    job.passes(50).finds("critical", "not-in-collective", 2)


@pytest.mark.parametrize("root", [{"waits_on": "queue"}, {"waits_on": "socket"}])
def test_a_server_without_a_request_is_not_at_fault(root):
    """It has made no steps: its clients wait for work, which comes from outside."""
    job = waiting(root, request(2), job=FakeJob(3).trains(10))
    for rank in job.ranks:
        rank.says["iteration"] = None

    assert [kind for _, kind, _ in job.passes(100).ever()] in ([], ["no-progress"])


@pytest.mark.parametrize(
    ("links", "ranks"),
    [
        ((key(TAKES),), (0, 1)),
        ((request(None),), (0, 1)),
        ((Link(PIPE, "/d/x", nobody=True, does="writes"),), (0, 1)),
        ((key(),), (0,)),
    ],
)
def test_other_waits_and_several_ranks_that_wait_for_nobody_blame_none(links, ranks):
    job = waiting(LOCK, *links, ranks=ranks)
    job.ranks[1].stands_at("collect", line=30, waits_on="lock" if ranks == (0,) else "socket")

    assert "not-in-collective" not in [kind for _, kind, _ in job.passes(30).ever()]


def test_a_rank_that_works_for_its_answer_is_not_blamed():
    job = waiting(LOCK, key())
    job.ranks[2].works_at("simulate", line=12)

    assert "not-in-collective" not in [kind for _, kind, _ in job.passes(40).ever()]
