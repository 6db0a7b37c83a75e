"""All ranks have joined, no rank is elsewhere, and the collective does not complete."""

from tests.diagnosis.rules.stuck import stuck
from tests.jobs import FakeJob, trained


def test_a_collective_in_which_all_stand_is_stuck_and_blames_no_rank():
    """A switch dropped the packets of one flow for half an hour."""
    job = stuck().passes(8)
    finding = job.finds("critical", "collective-stuck")

    assert finding.victims == (0, 1, 2, 3)
    assert finding.summary.startswith(
        "ranks 0-3 are all in all_reduce #101 of default_pg, which has not completed for 8 s"
    )
    assert job.verdict().health == "critical"


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
