"""The ranks have made different process groups, and some wait because of it."""

import pytest

from ddtop.wire.records import Group, Groups
from tests.diagnosis.rules.group_calls import EVERY, A, B, has_made, made, partitioned
from tests.jobs import FakeJob, trained

KIND = "collective-mismatch"


def waits_in_group(job, number, name, *members, seq=1):
    """It is in a collective of a group that it has made."""
    job.new_group(name, *members)
    rank = job.ranks[number]
    while rank.standings[name].enqueued < seq - 1:
        rank.passes_through(group=name)
    rank.waits_in(group=name)


def test_a_group_that_one_rank_does_not_make_is_named_though_it_waits_for_the_others():
    """`if rank != 2: new_group([0, 2])`, then all_reduce."""
    job = trained(3)
    job.ranks[2].waits_in(op="all_reduce", sizes=())
    job.ranks[1].waits_in(op="all_reduce", sizes=())
    has_made(job, 0, made(1, 0, 2), last=True)
    has_made(job, 1, made(1, 0, 2))
    has_made(job, 2)
    finding = job.passes(8).finds("critical", KIND, 2)

    assert finding.victims == (0, 1)
    assert finding.summary.startswith(
        "rank 2 has not made a new_group: ranks 0,1: new_group #1 of ranks 0,2 on gloo (train.py:40"
        " make_groups), rank 2: in all_reduce #101 of default_pg ("
    )
    assert finding.summary.endswith("; rank 0 has waited for 8 s in new_group #1 of ranks 0,2")
    assert "even ranks that are not in the group" in finding.advice


def test_the_number_shows_that_a_rank_has_left_out_an_earlier_group():
    """`if rank in members: new_group(members)`: the next group has another number there."""
    job = trained(3)
    for number in (0, 1):
        has_made(job, number, made(1, *A), made(2, *EVERY, line=44), last=True)
    has_made(job, 2, made(1, *EVERY, line=44), last=True)
    finding = job.passes(8).finds("critical", KIND, 2)

    assert (
        "rank 2 has not made a new_group: ranks 0,1: new_group #1 of ranks 0,1" in finding.summary
    )
    assert "rank 2: new_group #1 of ranks 0-2 on gloo (train.py:44 make_groups)" in finding.summary


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


def test_a_rank_that_waits_in_one_group_for_one_that_waits_in_another_is_a_cycle():
    job = trained(3)
    has_made(job, 0, made(1, *A), last=True)
    has_made(job, 1, made(1, *EVERY, line=44), last=True)
    has_made(job, 2, made(1, *A), made(2, *EVERY, line=44), last=True)
    finding = job.passes(8).finds("critical", "wait-cycle", 0, 1, 2)

    assert (
        "rank 1 has not made a new_group: ranks 0,2: new_group #1 of ranks 0,1" in finding.summary
    )


def test_local_groups_in_another_order_are_a_cycle():
    job = trained(3)
    has_made(job, 0, made(1, *A, local=True), last=True)
    has_made(job, 1, made(1, *EVERY, local=True, line=44), last=True)
    has_made(job, 2, made(1, *EVERY, local=True, line=44), last=True)
    finding = job.passes(8).finds("critical", "wait-cycle", 0, 1)

    assert "rank 0 waits in local new_group of ranks 0,1 after 1 group (train.py:40" in (
        finding.summary
    )
    assert "use_local_synchronization" in finding.advice


def test_a_local_group_after_another_number_of_groups_has_another_name():
    job = trained(2)
    has_made(job, 0, made(1, 0, local=True), made(2, *A, local=True), last=True)
    has_made(job, 1, made(1, *A, local=True), last=True)
    finding = job.passes(8).finds("critical", "wait-cycle", 0, 1)

    assert "after 2 groups" in finding.summary
    assert "torch puts that number into the name" in finding.advice


def test_the_first_collective_of_a_group_shows_it_where_new_group_waits_for_nobody():
    """NCCL connects there, and each side finds nobody under its number."""
    job = trained(3)
    job.new_group("1", *EVERY)
    job.new_group("2", *A)
    for number in range(3):
        job.ranks[number].waits_in(group="1" if number == 2 else "2")
        has_made(job, number, made(1, *EVERY, line=44))
    for number in (0, 1):
        has_made(job, number, made(1, *A), made(2, *EVERY, line=44))
    job.groups["2"] = Group("2", "group 2", EVERY, "gloo")
    job.say(Groups(tuple(job.groups.values()), made=(made(1, *EVERY, line=44),)), job.ranks[2])
    finding = job.passes(8).finds("critical", KIND, 2)

    assert finding.summary.endswith("ranks 0,1 have waited for 8 s in all_reduce #1 of group 2")


def test_members_wait_for_members_only_and_the_one_that_is_late_is_named():
    job = trained(3)
    has_made(job, 0, made(1, *A), last=True)
    has_made(job, 1)
    job.ranks[1].stands_at("prepare", line=12)
    has_made(job, 2, made(1, *A))
    finding = job.passes(8).finds("critical", "not-in-collective", 1)

    assert finding.summary.endswith("rank 0 waits for it in new_group #1 of ranks 0,1")


# -- what is no finding


def test_different_groups_that_nobody_waits_in_are_no_finding():
    job = trained(3)
    has_made(job, 0, made(1, *A))
    has_made(job, 1, made(1, *A))
    has_made(job, 2, made(1, *B))

    assert job.passes(30).ever() == []


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
    job.passes(8)

    assert job.kinds() == [("critical", "not-in-collective", (late,))]


def test_a_slow_first_collective_of_a_group_to_which_all_have_come_is_not_explained_by_strangers():
    """NCCL connects for ten seconds. No rank is in both groups."""
    job = trained(4)
    job.new_group("1", 0, 1)
    partitioned(job)
    for number in (0, 1):
        job.ranks[number].waits_in(group="1")
    job.passes(9)

    assert KIND not in {kind for _, kind, _ in job.ever()}


def test_a_group_that_has_completed_a_collective_was_made_well():
    job = trained(3)
    has_made(job, 2, made(1, *B))
    waits_in_group(job, 0, "1", *A, seq=3)
    has_made(job, 0, made(1, *A))
    has_made(job, 1, made(1, *A))
    job.passes(8)

    assert KIND not in {kind for _, kind, _ in job.ever()}


def test_groups_made_before_all_were_destroyed_are_not_compared():
    """Rank 1 has begun again, and the others follow it."""
    job = trained(3)
    has_made(job, 1, made(1, *EVERY, world=1), last=True)
    for number in (0, 2):
        has_made(job, number, made(1, *A))
        job.ranks[number].stands_at("prepare", line=12)
    job.passes(8)

    assert job.kinds() == [("critical", "not-in-collective", (0, 2))]


def test_a_group_made_by_a_rank_of_two_is_a_wait_cycle_and_names_both():
    """Which of two ranks is right is not known."""
    job = trained(2)
    has_made(job, 0, made(1, *A), last=True)
    job.ranks[1].waits_in(op="barrier", sizes=())
    has_made(job, 1)
    finding = job.passes(8).finds("critical", "wait-cycle", 0, 1)

    assert "rank 0 waits in new_group #1 of ranks 0,1 (train.py:40 make_groups)" in finding.summary


def test_what_was_open_before_a_rank_made_a_group_is_not_taken_for_a_wait():
    """The recorder is not read meanwhile. A hang in new_group was called `collective-stuck`."""
    job = trained(2)
    for number in range(2):
        job.ranks[number].waits_in()
        has_made(job, number, made(1, *A), last=True)

    assert job.passes(15).ever() == []


def test_a_rank_in_an_older_agent_that_notes_no_groups_is_not_accused():
    job = trained(3)
    has_made(job, 0, made(1, *EVERY), last=True)
    for number in (1, 2):
        job.say(Groups(tuple(job.groups.values())), job.ranks[number])
    job.passes(15)

    assert job.ever() == []


def test_a_job_of_ten_thousand_ranks_that_make_different_groups_is_judged_at_once():
    job = FakeJob(400)
    members = tuple(range(400))
    for number in range(400):
        odd = number == 7
        has_made(job, number, made(1, *(members[1:] if odd else members)), last=not odd)

    finding = job.passes(8).finds("critical", KIND, 7)
    assert len(finding.victims) == 399
