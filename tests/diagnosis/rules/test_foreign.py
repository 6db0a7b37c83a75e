"""Ranks that wait in a group that is not of their job."""

import pytest

from ddtop.policy import POLICY
from ddtop.say.calm import calm_text
from ddtop.wire.records import Group, Groups
from tests.diagnosis.rules.foreign import STORE, between_jobs, by_hand, waits_for_weights
from tests.jobs import WORLD, FakeJob


def test_a_wait_for_another_job_is_nobody_s_fault():
    """An engine that has waited 20 s for new weights was a critical wait-cycle, every round."""
    job = between_jobs()
    waits_for_weights(job)

    assert job.passes(18).ever() == []
    text = calm_text(job.snapshot(), POLICY)
    assert text.endswith(
        "; rank 0 waits in broadcast #101 of group weights (store 10.0.0.1:29511) for processes"
        " outside this job"
    )


def test_a_group_made_by_hand_all_of_whose_members_are_ranks_is_of_this_job():
    """Trainer and engine are two ranks of one job."""
    job = FakeJob(3)
    by_hand(job, 0, 0)
    by_hand(job, 1, 2)
    job.trains(10)
    job.ranks[0].waits_in("broadcast", group="weights")
    job.ranks[1].waits_in("barrier")
    job.ranks[2].stands_at("hold", "engine.py")

    assert job.passes(8).kinds() == [("critical", "not-in-collective", (2,))]
    assert job.snapshot().group("weights").ranks == (0, 2)


@pytest.mark.parametrize("other", [{"number": 0}, {"number": 1, "store": "10.0.0.2:1"},
                                   {"number": 1, "size": 3}])  # fmt: skip
def test_two_members_of_two_such_groups_do_not_make_one(other):
    job = FakeJob(3)
    by_hand(job, 0, 0, size=other.get("size", 2))
    by_hand(job, rank=2, **other)

    assert job.snapshot().group("weights").foreign is not None


@pytest.mark.parametrize("first", [0, 1])
def test_one_member_that_sees_the_contradiction_is_enough(first):
    """The map {0: 0, 1: 1} fits rank 0 by chance: only rank 1 is another member than it says."""
    job = FakeJob(2)
    says = [
        Group("weights", "weights", (0, 1), "gloo"),
        Group("weights", "weights", (), "gloo", (), (), STORE),
    ]
    for number in (first, 1 - first):
        job.say(Groups((job.groups[WORLD], says[number])), job.ranks[number])

    assert job.snapshot().group("weights").foreign == STORE
