"""All ranks have joined, no rank is elsewhere, and the collective does not complete."""

from tests.diagnosis.rules.stuck import stuck
from tests.jobs import FakeJob, trained
from tests.ranks import WORLD, place


def test_a_collective_in_which_all_stand_is_stuck_and_blames_no_rank():
    """A switch dropped the packets of one flow for half an hour."""
    job = stuck().passes(8)
    finding = job.finds("critical", "collective-stuck")

    assert finding.victims == (0, 1, 2, 3)
    assert finding.summary.startswith(
        "ranks 0-3 are all in all_reduce #101 of default_pg, which has not completed for 8 s"
    )
    assert job.verdict().health == "critical"


def test_a_broadcast_that_one_rank_has_passed_is_stuck_for_those_that_all_have_joined():
    """Rank 2 used another root. The true root and rank 2 stay inside, and rank 1 has its result."""
    job = trained(3)
    for number in (0, 2):
        job.ranks[number].waits_in("broadcast")
    job.ranks[1].passes_through("broadcast")
    job.ranks[1].waits_in("all_reduce")
    finding = job.passes(8).finds("critical", "collective-stuck")

    assert finding.victims == (0, 1, 2)
    assert finding.summary.startswith(
        "broadcast #101 of default_pg has not completed for 8 s on ranks 0,2, but it has on rank"
        " 1; no rank is missing"
    )
    assert "such as the root" in finding.summary


def test_just_under_the_limit_nothing_is_reported():
    assert stuck().passes(5).ever() == []


def test_a_large_transfer_with_busy_ranks_is_not_stuck():
    """A checkpoint gathered over a slow link keeps the ranks' threads copying."""
    job = stuck()
    for rank in job.ranks:
        rank.cores = 0.3

    assert job.passes(30).ever() == []


def test_a_job_that_is_used_to_long_collectives_gets_three_times_its_longest():
    job = stuck()
    job.ranks[0].healthy_wait_ms = 10_000.0
    job.passes(29)
    assert job.ever() == []

    assert job.passes(4).kinds() == [("critical", "collective-stuck", ())]


def test_a_group_of_some_ranks_is_stuck_by_itself():
    job = FakeJob(4)
    job.new_group("dp", 1, 3)
    job.trains(10)
    for number in (1, 3):
        job.ranks[number].waits_in(group="dp")
    finding = job.passes(8).finding()

    assert (finding.kind, finding.victims, finding.group) == ("collective-stuck", (1, 3), "dp")


def test_with_one_member_elsewhere_it_is_not_stuck_but_missed():
    job = trained()
    job.ranks[3].stands_at("fetch")
    job.others_wait(3)

    assert job.passes(8).ever() == [("critical", "not-in-collective", (3,))]


def test_members_in_different_collectives_are_not_stuck_in_one():
    job = trained(2)
    job.ranks[0].waits_in()
    job.ranks[1].passes_through()
    job.ranks[1].waits_in()

    assert ("critical", "collective-stuck", ()) not in job.passes(8).ever()


def test_without_a_recorder_different_operations_are_not_taken_for_the_network():
    """torch 2.4 has no recorder for gloo: a barrier and an all_reduce look like one."""
    job = stuck()
    job.ranks[2].place = place("evaluate", line=61, callee="barrier", waits_on="collective")
    for rank in job.ranks:
        condition = rank.standings[WORLD]
        condition.open.clear()
        condition.last_op = None
    finding = job.passes(8).finding()

    assert finding.kind == "collective-stuck"
    assert "network, not" not in finding.summary
    assert finding.summary.endswith(
        "either the ranks call different operations, which is not known here, or the network fails"
    )
    assert "rank 2 is at /home/ada/train.py:61 evaluate › barrier" in finding.evidence
    assert any(line.startswith("ranks 0,1,3 are at") for line in finding.evidence)
    assert "check that all ranks call the same operation" in finding.advice
