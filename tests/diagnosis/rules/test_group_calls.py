"""The ranks have made different process groups, and some wait because of it."""

import pytest

from tests.diagnosis.rules.group_calls import EVERY, A, has_made, made, partitioned
from tests.jobs import FakeJob, trained

KIND = "collective-mismatch"


def test_a_group_that_only_one_rank_makes_is_one_more():
    job = trained(3)
    for number in (0, 2):
        has_made(job, number, made(1, *EVERY, line=44), last=True)
    has_made(job, 1, made(1, 1), made(2, *EVERY, line=44), last=True)

    assert "rank 1 makes one more new_group" in job.passes(8).finds("critical", KIND, 1).summary


@pytest.mark.parametrize(
    "other", [made(1, 0, 2, line=41), made(1, *A, line=41, backend="nccl")], ids=["members", "nccl"]
)
def test_other_members_or_another_backend_are_named(other):
    """The others train on: the ranks of the two groups have met under one number."""
    job = trained(3)
    has_made(job, 0, made(1, *A))
    has_made(job, 1, made(1, *A), last=True)
    has_made(job, 2, other)
    finding = job.passes(8).finds("critical", KIND, 2)

    assert finding.summary.startswith(
        "rank 2 makes another group: ranks 0,1: new_group #1 of ranks"
    )
    assert finding.victims == (1,)


def test_without_a_majority_both_sides_are_named():
    job = trained(4)
    for number in range(4):
        members = (0, 1) if number < 2 else (2, 3)
        has_made(job, number, made(1, *members), last=number == 0)

    assert "make different groups" in job.passes(8).finds("critical", KIND, 0, 1, 2, 3).summary


def test_members_wait_for_members_only_and_the_one_that_is_late_is_named():
    job = trained(3)
    has_made(job, 0, made(1, *A), last=True)
    has_made(job, 1)
    job.ranks[1].stands_at("prepare", line=12)
    has_made(job, 2, made(1, *A))
    finding = job.passes(8).finds("critical", "not-in-collective", 1)

    assert finding.summary.endswith("rank 0 waits for it in new_group #1 of ranks 0,1")


# -- what is no finding


@pytest.mark.parametrize("in_first", [True, False], ids=["in that group", "in the next one"])
def test_a_rank_that_is_late_is_late_though_others_have_made_another_group(in_first):
    """It would come to the same number as the others, and such groups may meet by chance."""
    job = trained(4)
    partitioned(job)
    if in_first:
        has_made(job, 0, made(1, 0, 1), last=True)
        has_made(job, 1)
        job.ranks[1].stands_at("prepare", line=12)
        late = 1
    else:
        for number in range(3):
            first = made(1, 0, 1) if number < 2 else made(1, 2, 3)
            has_made(job, number, first, made(2, 0, 1, 2, 3), last=True)
        job.ranks[3].stands_at("prepare", line=12)
        late = 3

    assert job.passes(8).kinds() == [("critical", "not-in-collective", (late,))]


def test_groups_made_before_all_were_destroyed_are_not_compared():
    """Rank 1 has begun again, and the others follow it."""
    job = trained(3)
    has_made(job, 1, made(1, *EVERY, world=1), last=True)
    for number in (0, 2):
        has_made(job, number, made(1, *A))
        job.ranks[number].stands_at("prepare", line=12)

    assert job.passes(8).kinds() == [("critical", "not-in-collective", (0, 2))]


def test_a_job_of_ten_thousand_ranks_that_make_different_groups_is_judged_at_once():
    job = FakeJob(400)
    members = tuple(range(400))
    for number in range(400):
        odd = number == 7
        has_made(job, number, made(1, *(members[1:] if odd else members)), last=not odd)

    finding = job.passes(8).finds("critical", KIND, 7)
    assert len(finding.victims) == 399
