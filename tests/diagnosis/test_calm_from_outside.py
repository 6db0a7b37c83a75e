"""What is said of a job that was started without ddtop, as long as no rule has found anything."""

from ddtop.policy import POLICY
from ddtop.say.calm import from_outside
from ddtop.wire.records import RUN, OutsideLook
from tests.jobs import FakeJob, unix_ns


def looked_at(seconds, **standing):
    """Two ranks in one call, which spin: only the looks say how long they have waited."""
    job = FakeJob(2, run=RUN).trains(6)
    for rank in job.ranks:
        rank.stands_at(**standing)
        rank.says["outside"] = OutsideLook(since_unix_ns=unix_ns(job.now), asleep=False)
    return job.passes(seconds)


def test_where_the_ranks_stand_is_said_before_a_rule_may_judge_it():
    """`ddtop diagnose --pid` answers after seven seconds and had only "NO PROGRESS" to say."""
    job = looked_at(7, function="exchange", line=7, activity="collective", waits_on="p2p")

    assert job.kinds() == []
    assert job.verdict().calm.startswith("no rank has moved for ")
    place = "ranks 0,1 are in exchange (train.py:7)"
    assert f"; {place}, which is judged after 20 s; started without" in job.verdict().calm


def test_a_time_of_judgement_that_is_over_is_not_promised():
    """Ranks that compute are judged later, or not at all."""
    job = looked_at(30, function="solve", line=7)

    said = from_outside(job.snapshot(), POLICY)
    assert said.startswith("no rank has moved for 30 s; ranks 0,1 are in solve (train.py:7);")


def test_of_a_job_that_moves_only_how_it_is_judged_is_said():
    job = FakeJob(2, run=RUN)
    for rank in job.ranks:
        rank.says["outside"] = OutsideLook()

    assert job.trains(30).verdict().calm.startswith("started without DDTOP=1: judged by stacks")
