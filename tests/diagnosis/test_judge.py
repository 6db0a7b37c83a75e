"""Findings over time: which stand, since when, and that two viewers show the same."""

import pytest

from ddtop.diagnosis.judge import Judge
from ddtop.policy import POLICY
from ddtop.say.told import look
from ddtop.wire.records import LOCK, THREAD, Link, Place
from tests.diagnosis.judging import CULPRIT, hang, judged
from tests.diagnosis.rules.starting import early, enter
from tests.jobs import BASE, FakeJob, brief, place, trained, unix_ns, without_times


def test_a_finding_appears_after_two_agreeing_snapshots():
    assert judged(hang(), [19.0, 19.5]) == [[], [CULPRIT]]


def test_a_judge_says_how_many_looks_it_needs_and_when_nothing_wavers_any_more():
    judge = Judge(POLICY)
    judged(hang(), [19.0], judge)
    assert (judge.snapshots_needed, judge.wavers) == (2, True)
    judged(hang(), [19.5], judge)

    assert (judge.snapshots_needed, judge.wavers) == (2, False)


def test_looks_closer_together_than_half_a_second_are_one():
    """A viewer that draws at 10 Hz has no more evidence than one that draws at 2 Hz."""
    assert judged(hang(), [19.0, 19.1, 19.2, 19.4, 19.5]) == [[], [], [], [], [CULPRIT]]


def test_it_clears_after_three_snapshots_without_it():
    job, judge = hang(), Judge(POLICY)
    judged(job, [19.0, 19.5], judge)
    job.goes_on()
    job.trains(5)

    assert judged(job, [22.0, 22.5, 23.0], judge) == [[CULPRIT], [CULPRIT], []]


def test_what_is_known_better_of_the_same_ranks_takes_its_place_at_once():
    job, judge = hang(), Judge(POLICY)
    judged(job, [19.0, 19.5], judge)
    place = Place("save", "/home/ada/saver.py", 22)
    job.ranks[2].says["chain"] = (
        Link(THREAD, who="saver", place=place),
        Link(LOCK, "self.lock", "MainThread", place=place, circle=True),
    )
    job.passes(1)

    assert judged(job, [21.0], judge) == [[("critical", "wait-cycle", (2,))]]


def test_one_snapshot_without_it_does_not_make_it_flicker():
    job, judge = hang(), Judge(POLICY)
    judged(job, [19.0, 19.5], judge)

    seen = judged(job, [12.0], judge) + judged(job, [20.0], judge)

    assert seen == [[CULPRIT], [CULPRIT]]


def test_what_was_seen_once_and_not_again_never_stood():
    job, judge = hang(), Judge(POLICY)

    assert judged(job, [19.0, 12.0, 19.5, 20.0], judge) == [[], [], [], [CULPRIT]]


@pytest.mark.parametrize("joined_s", [0.0, 12.0, 16.0, 18.5, 19.0])
def test_viewers_that_join_at_any_second_read_the_same(joined_s):
    """Two people on the phone, attached for an hour and a second, see the same culprit."""
    job = hang()

    first, late = job.verdicts()[-1], job.verdicts(joined_s=joined_s)[-1]

    assert [without_times(one) for one in late.findings] == [
        without_times(one) for one in first.findings
    ]
    assert late.findings[0].since_unix_ns == unix_ns(10.0)
    assert late == first


def test_since_is_when_the_fact_began_and_does_not_move():
    found = {finding.since_unix_ns for verdict in hang().verdicts() for finding in verdict.findings}

    assert found == {unix_ns(10.0)}


def test_what_stood_in_the_last_attempt_ended_with_it():
    job = hang()
    judge = Judge(POLICY)
    judged(job, [19.0, 19.5], judge)
    job.restarts()
    job.trains(1)

    assert judged(job, [21.0], judge) == [[]]


def test_an_ended_job_needs_no_second_opinion():
    """`ddtop diagnose` on a job that ended last week looks once."""
    job = trained(2)
    job.ranks[1].ends(signal=9)
    job.ranks[0].ends(signal=15, later_s=1.0)
    job.passes(2)

    assert judged(job, [13.0]) == [[("critical", "rank-killed", (1,))]]


def test_after_the_end_what_stood_before_is_told_by_how_it_ended():
    job = hang()
    judge = Judge(POLICY)
    judged(job, [19.0, 19.5], judge)
    for rank in job.ranks:
        rank.ends(signal=15, later_s=0.01)
    job.passes(1)

    assert judged(job, [20.5], judge) == [[("warning", "cancelled", ())]]


def test_the_worst_comes_first():
    severities = [brief(finding)[0] for finding in hang().verdict().findings]

    assert severities == sorted(severities, key=["critical", "warning", "info"].index)


def test_a_judge_of_an_empty_job_says_that_nobody_has_reported():
    verdict = look(Judge(POLICY), FakeJob(0).model().snapshot(BASE))[1]

    assert (verdict.health, verdict.headline) == ("ok", "no rank has reported yet")


def test_between_the_last_rank_and_its_launcher_nobody_is_said_to_stand_or_to_start():
    job = FakeJob(2)
    job.launcher_alive = True
    job.trains(10)
    for rank in job.ranks:
        rank.place = place("train", waits_on="collective")
        rank.ends(0)

    assert (
        job.passes(1).verdict().calm
        == "quiet: no rank is left, and the launcher has not ended yet, ranks 0,1 finished"
    )


# -- what is over soon


LATE = ("warning", "late-to-init", (2,))


def starts_slowly():
    """Ranks 0 and 1 wait in init_process_group, while rank 2 imports."""
    job = early(3).passes(1)
    enter(job, 0, 1)
    return job.passes(40)


def shown(job, judge):
    """In which seconds the warning is shown to a viewer that was there all the time."""
    seen = judged(job, [half / 2 for half in range(2, 80)], judge)
    return [second / 2 + 1 for second, found in enumerate(seen) if LATE in found]


def test_a_warning_about_a_slow_start_is_shown_once_it_has_stood():
    """The wait is too long after 10 s. At a high load it is over three seconds later."""
    seconds = shown(starts_slowly(), Judge(POLICY))

    assert min(seconds) == pytest.approx(21.5, abs=1)
    assert max(seconds) == 39.5


def test_a_viewer_that_comes_while_it_stands_shows_it_at_once():
    """`ddtop diagnose` looks for two seconds."""
    assert judged(starts_slowly(), [14.0, 14.5]) == [[], [LATE]]


def test_what_is_critical_about_a_start_is_shown_at_once():
    job = early(3).passes(1)
    enter(job, 0, 1)
    job.ranks[2].stands_at("wait_for_licence")
    job.passes(12)

    seen = judged(job, [half / 2 for half in range(2, 20)])
    assert [("critical", "late-to-init", (2,))] in seen
