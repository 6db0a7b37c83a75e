"""A wait for a rank of another job crosses over to that job, if it stands still."""

import pytest

from ddtop.wire.records import Place
from tests.diagnosis.rules.other_job import ASLEEP, IN_REDUCE, shares_a_group
from tests.jobs import Standing

SERVES = Place("serve", "/home/ada/serve.py", 9, "asyncio")


def engines(place=IN_REDUCE, rank_1_works=False):
    """Ranks 0 and 1 share a group with the other job; rank 1 has left out a call in it."""
    job = shares_a_group(place=place, seconds=0)
    for rank in job.ranks[1:]:
        rank.comes_back()
    job.ranks[1].standings["weights"] = Standing()
    job.ranks[1].stands_at("serve", "/home/ada/engine.py", 9, waits_on="asyncio")
    job.ranks[2].stands_at("serve", "/home/ada/engine.py", 9, waits_on="asyncio")
    job.ranks[1].cores = 1.0 if rank_1_works else 0.0
    return job.passes(40)


def test_a_member_that_has_left_out_a_call_is_named_where_both_jobs_wait_in_the_group():
    """An engine answered and made no broadcast. Rank 2 has not joined the group."""
    finding = engines().finds("warning", "not-in-collective", 1)

    assert finding.victims == (0,)
    assert finding.summary == (
        "rank 1 has not come to broadcast #101 of group weights (store 10.0.0.1:29511), and job"
        " rollout, rank 0, waits: it is waiting in its event loop (engine.py:9 serve)"
    )


def test_while_the_other_job_has_not_come_to_the_call_no_member_is_named():
    """The engines wait for the next weights, one after the other."""
    assert "not-in-collective" not in {kind for _, kind, _ in engines(place=ASLEEP).kinds()}


def test_a_member_that_works_may_come():
    assert "not-in-collective" not in {kind for _, kind, _ in engines(rank_1_works=True).kinds()}


@pytest.mark.parametrize(
    ("still_s", "place", "seconds"),
    [(None, IN_REDUCE, 90), (11.0, SERVES, 90), (11.0, ASLEEP, 55), (11.0, IN_REDUCE, 19)],
    ids=["it moves", "it waits for a request", "it may look for work", "a moment"],
)
def test_a_wait_between_jobs_without_a_limit_stays_an_info(still_s, place, seconds):
    job = shares_a_group(still_s, place, seconds)

    assert {severity for severity, _, _ in job.kinds()} <= {"info"}
