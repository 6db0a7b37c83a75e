"""A job that made steps and now makes none, and the long pauses that are no fault."""

import pytest

from ddtop.diagnosis.standstill import StandstillLimits
from ddtop.policy import POLICY
from tests.diagnosis.rules.no_progress import (
    all_stand,
)
from tests.jobs import trained

KIND = "no-progress"


# -- idle: no fault, however long


@pytest.mark.parametrize(
    ("change", "severity"),
    [
        pytest.param({"iteration": 50}, "warning", id="it counted steps"),
        pytest.param({"wakes_per_s": 0.0}, "critical", id="it sleeps once"),
        pytest.param(
            {"says": {"iteration_source": "collectives"}, "iteration": 50},
            "warning",
            id="a simulation",
        ),
    ],
)
def test_a_rank_that_sleeps_in_a_training_is_no_idle_master(change, severity):
    job = trained(3)
    job.ranks[0].stands_at("wait_for_licence", line=8)
    job.ranks[0].wakes_per_s = 5.0
    job.ranks[0].wchan = "hrtimer_nanosleep"
    job.ranks[0].iteration = None
    for name, value in change.items():
        setattr(job.ranks[0], name, value)
    job.others_wait(0, op="broadcast")

    assert job.passes(10).kinds() == [(severity, "not-in-collective", (0,))]


# -- long pauses of healthy jobs


def test_a_pause_that_it_has_made_twice_is_usual():
    """After each epoch it waits for a server that evaluates. The third time is expected."""
    job = trained(2)
    for _ in range(2):
        all_stand(job, "evaluate_elsewhere", waits_on="lock")
        job.passes(15)
        job.goes_on()
        job.trains(10)
    pauses = [rank.progress.usual_pause_s for rank in job.snapshot().ranks]
    all_stand(job, "evaluate_elsewhere", waits_on="lock")
    job.passes(22)

    assert all(15 <= pause <= 16 for pause in pauses)
    assert job.ever() == []


def test_a_long_validation_on_all_ranks_is_silent_and_an_info_in_the_end():
    job = trained(4).passes(1)
    for second in range(320):
        for rank in job.ranks:
            rank.works_at("validate", line=30 + second % 5, callee="forward")
        job.passes(1)
        if second == 280:
            assert job.ever() == []

    assert job.ever() == [("info", KIND, ())]


@pytest.mark.parametrize("word", ["compile", "checkpoint-save", "checkpoint-load"])
def test_a_phase_that_takes_long_is_no_hang_for_five_minutes(word):
    job = trained(2)
    all_stand(job, waits_on=word)
    job.passes(58)
    assert job.ever() == []
    job.passes(230)
    assert job.ever() == [("warning", KIND, (0, 1))]

    assert job.passes(20).kinds() == [("critical", KIND, (0, 1))]


def test_the_limits_are_those_that_are_reported():
    assert POLICY.no_progress_s == 20.0
    assert POLICY.of(StandstillLimits).no_progress_step_factor == 10.0
    assert POLICY.of(StandstillLimits).no_progress_critical_s == 60.0
