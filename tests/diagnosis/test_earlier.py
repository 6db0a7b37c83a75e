"""A second fault does not hide the first, and a consequence is not called a cause."""

from tests.jobs import trained


def hangs(seconds=60):
    """Rank 2 sleeps, and the others wait for it for this long."""
    job = trained()
    job.ranks[2].stands_at("main", "train.py", 40)
    job.others_wait(2)
    return job.passes(seconds)


def test_a_rank_that_is_stopped_in_a_hang_comes_after_the_rank_that_caused_it():
    job = hangs()
    before = job.finding()
    job.ranks[0].is_stopped()

    first, second = job.passes(20).verdict().findings

    assert (first.kind, first.ranks, first.since_unix_ns) == (
        "not-in-collective", (2,), before.since_unix_ns,
    )  # fmt: skip
    assert (second.kind, second.ranks, second.victims) == ("rank-stopped", (0,), ())
    assert "wait" not in second.summary


def test_who_comes_later_sees_both_too():
    """`ddtop diagnose` looks for two seconds, long after both faults."""
    job = hangs()
    job.ranks[0].is_stopped()
    job.passes(20)

    late = job.verdicts(joined_s=job.now - 2)[-1]

    assert [one.ranks for one in late.findings] == [(2,), (0,)]


def test_a_stopped_rank_alone_explains_the_waits_that_follow():
    job = trained()
    job.ranks[0].is_stopped()
    job.others_wait(0)
    job.ranks[2].stands_at("main", "train.py", 40)

    assert job.passes(40).kinds() == [("critical", "rank-stopped", (0,))]


def test_a_rank_that_was_late_for_a_moment_when_another_was_stopped_is_no_cause():
    job = hangs(3)
    job.ranks[0].is_stopped()

    assert job.passes(60).ever() == [("critical", "rank-stopped", (0,))]


def test_the_rank_that_is_at_fault_is_named_once_when_it_is_stopped_too():
    job = hangs()
    job.ranks[2].is_stopped()

    assert job.passes(20).kinds() == [("critical", "rank-stopped", (2,))]


def test_a_mismatch_stays_when_one_of_its_ranks_is_stopped():
    job = trained()
    for rank in job.ranks:
        rank.waits_in(op="broadcast" if rank.number == 2 else "all_reduce")
    job.passes(30)
    job.ranks[0].is_stopped()

    assert job.passes(20).kinds() == [
        ("critical", "collective-mismatch", (2,)),
        ("critical", "rank-stopped", (0,)),
    ]


def test_after_both_have_been_resolved_nothing_stands():
    job = hangs()
    job.ranks[0].is_stopped()
    job.passes(20)
    job.ranks[0].continues()
    job.passes(5)
    assert job.kinds() == [("critical", "not-in-collective", (2,))]
    job.goes_on()

    assert job.trains(10).kinds() == []


def test_a_death_in_a_hang_does_not_hide_who_caused_it():
    job = hangs()
    job.ranks[0].ends(signal=9)

    assert job.passes(10).kinds() == [
        ("critical", "not-in-collective", (2,)),
        ("critical", "rank-killed", (0,)),
    ]


def test_what_follows_a_death_is_part_of_it():
    job = trained()
    job.ranks[0].ends(signal=9)
    job.others_wait(0)
    job.ranks[2].stands_at("main", "train.py", 40)

    assert job.passes(40).kinds() == [("critical", "rank-killed", (0,))]
