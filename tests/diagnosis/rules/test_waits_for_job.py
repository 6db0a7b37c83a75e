"""A wait for a rank of another job crosses over to that job, if it stands still."""

import pytest

from ddtop.wire.records import Place
from tests.diagnosis.rules.other_job import ASLEEP, IN_REDUCE, PEER, asks, end, shares_a_group
from tests.jobs import Standing

TODAY = [("critical", "not-in-collective", (0,))]
CROSSED = [("critical", "waits-for-job", (0,))]
SERVES = Place("serve", "/home/ada/serve.py", 9, "asyncio")


def test_a_wait_for_a_job_that_stands_still_names_its_rank_and_what_that_does():
    """One rank of the environments slept in a lock; the trainer's sentence named a port."""
    finding = asks().finds("critical", "waits-for-job", 0)

    assert finding.summary == (
        "rank 0 waits for job rollout, rank 0, which has been in all_reduce (rollout.py:51"
        " generate) for 19 s; ranks 1,2 wait for it in all_reduce #101 of default_pg"
    )
    assert finding.evidence[0] == (f"rank 0 is connected to {PEER}: job rollout, rank 0 (pid 900)")
    assert (finding.victims, finding.advice) == (
        (1, 2), "look at that job: ddtop diagnose rollout",
    )  # fmt: skip


def test_a_request_with_a_timeout_waits_in_poll_so_only_its_frames_show_the_socket():
    assert asks(remote=None).kinds() == CROSSED


@pytest.mark.parametrize("still_s", [None, 27.0])
def test_while_the_other_job_moves_on_the_rank_that_waits_is_named_and_it_may_come(still_s):
    """The other job has just moved, or moves."""
    severity = "warning" if still_s is None else "critical"
    assert asks(still_s).kinds() == [(severity, "not-in-collective", (0,))]


def test_a_thread_of_the_rank_may_wait_for_the_other_job_that_works_for_it():
    """A trainer asks its engines in threads, and joins them; a rollout takes a minute."""
    job = asks(None, remote=None, waits_on="lock")
    finding = job.finds("warning", "not-in-collective", 0)
    assert finding.summary.startswith(
        "rank 0 has been waiting for a lock (train.py:57 ask) for 20 s, while job rollout, to which"
        " it is connected, moves on; ranks 1,2 wait for it"
    )
    assert job.passes(200).kinds() == TODAY


def test_a_rank_that_sleeps_waits_for_nobody():
    assert asks(None, remote=None, waits_on=None).kinds() == TODAY


def test_a_rank_that_is_connected_and_does_not_wait_there_is_named_as_ever():
    """It computes nothing in a lock of its own, and has an idle connection to a server."""
    assert asks(remote=None, waits_on="lock").kinds() == TODAY


def test_two_other_jobs_are_not_told_apart():
    job = asks(remote=None)
    job.ranks[0].seen_outside = {"far_ends": (end(11.0), end(11.0, job="reward"))}

    assert job.passes(3).kinds() == TODAY


def test_a_group_between_jobs_is_a_finding_of_this_job_once_the_other_one_stands_still():
    job = shares_a_group()
    finding = job.finds("warning", "waits-for-job", 0)

    assert (finding.ranks, finding.victims) == ((0,), (1, 2))
    assert finding.summary.startswith("rank 0 waits for job rollout, rank 0, which has been in all")
    assert f"group weights meets at the store {PEER}" in finding.evidence


def test_a_group_made_without_torch_s_names_is_known_by_the_rank_s_frames():
    """A ProcessGroupGloo that the program has made itself: torch knows no name of it."""
    assert asks(remote=None, waits_on="collective").kinds() == CROSSED


def test_a_rank_in_a_collective_of_its_own_job_does_not_wait_for_another_one():
    job = asks(remote=None)
    job.ranks[0].comes_back()
    job.ranks[0].waits_in("broadcast")
    job.passes(8)

    assert "waits-for-job" not in {kind for _, kind, _ in job.kinds()}


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


def test_a_job_that_sleeps_for_longer_than_between_two_looks_for_work_is_told():
    assert shares_a_group(place=ASLEEP, seconds=70).kinds() == [("warning", "waits-for-job", (0,))]


def test_a_usual_pause_between_two_jobs_stays_an_info():
    job = shares_a_group(seconds=1)
    job.ranks[0].healthy_wait_ms = 15_000.0

    assert job.passes(40).kinds() == [("info", "no-progress", ())]
    assert job.passes(10).kinds() == [("warning", "waits-for-job", (0,))]
