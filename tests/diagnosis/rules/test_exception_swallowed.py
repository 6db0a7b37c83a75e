"""An exception that some ranks catch again and again, and the others do not."""

from tests.diagnosis.rules.exception_swallowed import catching, caught, hang, job_in_which


def test_an_exception_that_one_rank_alone_catches_is_reported_with_its_line():
    job = job_in_which(catching(), catching(), catching(caught()), catching())
    finding = job.finds("info", "exception-swallowed", 2)

    assert finding.summary == (
        "rank 2 catches ValueError again and again at model.py:88 in Net.forward (about 40 a"
        " second); the other ranks do not"
    )
    assert finding.evidence == (
        (
            "rank 2: ValueError at /home/ada/model.py:88 in Net.forward, 60 in 1.5 s of sampling,"
            " in every sample"
        ),
    )
    assert job.verdict().health == "ok"


def test_two_places_of_the_same_ranks_are_one_finding():
    both = catching(caught(), caught("KeyError", 90))
    job = job_in_which(both, both, catching(), catching())
    finding = job.finding()

    assert finding.ranks == (0, 1)
    assert len(finding.evidence) == 2
    assert finding.summary.startswith("ranks 0,1 catch ValueError")


def test_what_all_ranks_catch_alike_is_the_programs_style():
    """`try: cache[key] except KeyError:` in every step."""
    alike = catching(caught("KeyError"))

    assert job_in_which(alike, alike, alike, alike).ever() == []


def test_what_all_but_one_rank_catch_is_not_held_against_them():
    alike = catching(caught())

    assert job_in_which(catching(), alike, alike, alike).ever() == []


def test_a_rare_one_is_in_some_ranks_looks_by_chance():
    rare = catching(caught(count=5, windows=5))

    assert job_in_which(rare, catching(), catching(), catching()).ever() == []
    assert job_in_which(rare, catching(caught()), catching(), catching()).ever() == []


def test_too_few_looks_are_no_evidence():
    few = catching(caught(windows=5), windows=5)

    assert job_in_which(few, *[catching(windows=5)] * 3).ever() == []


def test_a_rank_that_could_not_tell_all_is_not_one_that_does_not_catch_it():
    assert job_in_which(catching(caught()), catching(omitted=3)).ever() == []


def test_where_nobody_asked_nothing_is_reported():
    assert job_in_which(None, None, None, None).ever() == []
    assert job_in_which(catching(caught()), None, None, None).ever() == []


LINE = (
    "rank 2 catches ConnectionError again and again at model.py:88 in Net.forward (about 2 a"
    " second)"
)


def test_what_a_blamed_rank_catches_is_evidence_and_no_finding_of_its_own():
    """The rank calls a server again and again, with a pause, and never reaches the collective."""
    retries = catching(caught("ConnectionError", count=3, windows=2, ago=1))

    assert LINE in hang(catching(), catching(), retries, catching()).finding().evidence
    always = catching(caught("ConnectionError", count=3))
    assert LINE in hang(catching(), catching(), always, catching()).finding().evidence


def test_what_those_that_wait_catch_too_is_no_evidence():
    retries = catching(caught("ConnectionError", count=3, windows=2))

    assert LINE not in hang(catching(), retries, retries, catching()).finding().evidence


def test_what_a_blamed_rank_caught_before_it_stood_still_is_no_evidence():
    before = catching(caught("ConnectionError", count=3, windows=2, ago=4))

    assert LINE not in hang(catching(), catching(), before, catching()).finding().evidence
