"""The first difference between the calls of the ranks of a group."""

import pytest

from ddtop.wire.records import BY_STEPS, UNORDERED, CallSite, Groups, Turn
from tests.diagnosis.rules.calls_differ import ALIKE, LOGS, LOOP, parted, turns
from tests.jobs import FakeJob
from tests.ranks import unix_ns


def test_a_call_more_is_a_warning_with_both_lines_while_the_job_runs():
    finding = parted(0).finds("warning", "calls-differ", 0)

    assert finding.summary == (
        "rank 0 has been out of step since #61 of default_pg (5 s): it called all_reduce in"
        " log_mean (train.py:88), 1 call more than ranks 1-3, which called all_reduce in step"
        " (train.py:40)"
    )
    assert (finding.group, finding.seq, finding.victims) == ("0", 61, ())


def test_two_calls_through_one_helper_are_told_with_the_lines_that_call_it():
    usual = CallSite("all_reduce", "/w/train.py", 40, "step", caller_line=12)
    again = CallSite("all_reduce", "/w/train.py", 40, "step", caller_line=19)
    finding = parted(0, also=(Turn("0", 2, usual),), site=again, instead=usual)
    summary = finding.finds("warning", "calls-differ", 0).summary

    assert "it called all_reduce in step (train.py:40, called in line 19)" in summary
    assert summary.endswith("in step (train.py:40, called in line 12)")


def test_the_evidence_says_who_has_called_the_helper():
    site = CallSite("all_reduce", "/w/train.py", 9, "total", caller_line=16)
    finding = parted(0, site=site).finds("warning", "calls-differ", 0)

    assert "called all_reduce in total (train.py:9), 1 call more" in finding.summary
    assert "in total (train.py:9, called in line 16)" in finding.evidence[0]


def test_a_hang_afterwards_has_its_cause_where_the_calls_parted():
    """Rank 0 waits in a call that the others never make, and they are asleep elsewhere."""
    job = parted(0)
    for rank in job.ranks[1:]:
        rank.stands_at("write_table", "train.py", 33)
    job.ranks[0].waits_in()
    finding = job.passes(8).finds("critical", "calls-differ", 0)

    assert finding.summary.endswith("; rank 0 waits in #151")
    assert "called all_reduce in log_mean (train.py:88)" in finding.summary


def test_the_one_rank_that_left_out_a_call_of_all_others_is_at_fault():
    finding = parted(0, 1, 3).finds("warning", "calls-differ", 2)

    assert "it called all_reduce in step (train.py:40), 1 call fewer than ranks" in finding.summary


def test_with_two_ranks_nobody_is_blamed():
    finding = parted(1, world_size=2).finds("warning", "calls-differ")

    assert "rank 1 and rank 0 have been out of step since #61" in finding.summary


def test_steps_with_other_numbers_of_calls_are_named_by_step():
    job = FakeJob(3).trains(10)
    for rank in job.ranks:
        own = [Turn("0" + BY_STEPS, 1, CallSite("step", "/w/t.py", 30, "fit", 1))]
        if rank.number == 1:
            made = CallSite("step", "/w/t.py", 30, "fit", 2)
            more = {"unix_ns": unix_ns(job.now), "more": 1}
            own.append(Turn("0" + BY_STEPS, 93, made, own[0].made, 92, **more))
        job.say(Groups(tuple(job.groups.values()), tuple(own)), rank)
    finding = job.passes(5).finds("warning", "calls-differ", 1)

    assert "since step 92 (#93) of default_pg" in finding.summary
    assert finding.summary.endswith(
        "it made 2 calls before the optimizer's step in fit (t.py:30), 1 call more than ranks 0,2"
    )


def test_of_a_call_more_and_the_step_behind_it_the_earlier_one_is_told():
    job = FakeJob(3).trains(10)
    steps = CallSite("step", "/w/t.py", 30, "fit", 1)
    for rank in job.ranks:
        own = [ALIKE, Turn("0" + BY_STEPS, 1, steps)]
        if rank.number == 1:
            own.append(Turn("0", 91, LOGS, LOOP, unix_ns=unix_ns(job.now - 0.1), more=1))
            two = CallSite("step", "/w/t.py", 30, "fit", 2)
            own.append(Turn("0" + BY_STEPS, 93, two, steps, 92, unix_ns=unix_ns(job.now), more=1))
        job.say(Groups(tuple(job.groups.values()), tuple(own)), rank)
    summary = job.passes(5).finds("warning", "calls-differ", 1).summary

    assert "it called all_reduce in log_mean (train.py:88), 1 call more" in summary


@pytest.mark.parametrize(
    "more",
    [
        {"instead": None},
        {"open": True},
        {"also": (Turn("0", UNORDERED, CallSite("")),)},
    ],
    ids=["may stand in its place", "the next call is not known", "calls change all the time"],
)
def test_what_is_no_evidence_is_not_told(more):
    job = FakeJob(4).trains(10)
    turns(job, 0, **more)
    job.passes(5)

    assert job.ever() == []


def test_a_turn_of_all_ranks_is_no_difference():
    assert parted(0, 1, 2, 3).ever() == []


def test_ranks_that_have_not_come_so_far_may_still_make_the_call():
    job = FakeJob(4).trains(10)
    for rank in job.ranks:
        own = [ALIKE]
        if rank.number == 0:
            own.append(Turn("0", 100_000, LOGS, LOOP, None, unix_ns=unix_ns(job.now)))
        job.say(Groups(tuple(job.groups.values()), tuple(own)), rank)
    job.passes(5)

    assert job.ever() == []


def test_a_rank_that_has_made_many_turns_since_does_not_know_the_first():
    job = FakeJob(4).trains(10)
    for rank in job.ranks:
        own = [ALIKE, Turn("0", 61, LOGS, LOOP, None, unix_ns=unix_ns(job.now))]
        if rank.number != 0:
            own = [Turn("0", 90, LOOP)]
        job.say(Groups(tuple(job.groups.values()), tuple(own)), rank)
    job.passes(5)

    assert job.ever() == []


def test_ranks_that_follow_a_leader_from_a_line_of_their_own_are_in_step():
    """Rank 0 broadcasts what to do, now and then from another line; the others listen in a loop."""
    job = FakeJob(4).trains(10)
    listens = CallSite("broadcast", "/w/serve.py", 30, "listen")
    for rank in job.ranks:
        own = [Turn("0", 1, listens)]
        if rank.number == 0:
            orders = CallSite("broadcast", "/w/serve.py", 12, "order")
            stops = CallSite("broadcast", "/w/serve.py", 18, "add_request")
            own = [Turn("0", 1, orders)]
            own.append(Turn("0", 61, stops, orders, None, unix_ns=unix_ns(job.now)))
        job.say(Groups(tuple(job.groups.values()), tuple(own)), rank)
    job.passes(5)

    assert job.ever() == []


def test_a_rank_that_has_not_gone_on_after_that_call_may_still_make_the_step():
    """All ranks make two calls before this step, and rank 0 has made it first."""
    job = FakeJob(3).trains(10)
    usual = CallSite("step", "/w/t.py", 30, "fit", 1)
    for rank in job.ranks:
        own = [Turn("0" + BY_STEPS, 1, usual)]
        if rank.number == 0:
            made = CallSite("step", "/w/t.py", 30, "fit", 2)
            own.append(Turn("0" + BY_STEPS, 100, made, usual, 98, unix_ns=unix_ns(job.now)))
        rank.trains = False
        job.say(Groups(tuple(job.groups.values()), tuple(own)), rank)

    assert [rank.standings["0"].enqueued for rank in job.ranks] == [100] * 3
    assert "calls-differ" not in {kind for _, kind, _ in job.passes(4).ever()}
