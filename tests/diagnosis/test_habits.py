"""Jobs in which long waits are usual: a usual wait is no hang, and a much longer one is."""

import pytest

from ddtop.wire.records import ProcessLoad
from tests.diagnosis.habits import used_to, validated
from tests.jobs import FakeJob, unix_ns


@pytest.mark.parametrize(
    ("stands_s", "kinds"),
    [
        (12, [("warning", "not-in-collective", (0,))]),
        (16, [("critical", "not-in-collective", (0,))]),
    ],
)
def test_a_rank_that_stands_no_longer_than_before_is_a_warning_only(stands_s, kinds):
    """In each round rank 0 waits 9 s for rollouts; each was reported as a hang."""
    job = used_to(9.0)
    job.ranks[0].stands_at("next_rollouts", waits_on="pipe")
    job.others_wait(0, op="broadcast")
    job.passes(stands_s)

    assert job.kinds() == kinds
    assert job.finding().summary.startswith(
        f"rank 0 has been waiting on a pipe (train.py:40 next_rollouts) for {stands_s} s"
    )


@pytest.mark.parametrize(
    ("stands_s", "kinds"), [(23, []), (30, [("critical", "not-in-collective", (0,))])]
)
def test_a_rank_that_has_stood_at_this_line_before_is_silent_for_as_long(stands_s, kinds):
    """The master of a farm sleeps between bursts, for 12 s. Its agent remembers the line, also
    where the workers' waits are forgotten."""
    job = used_to(0.02)
    job.ranks[0].says = {"stayed_s": 12.0}
    job.ranks[0].stands_at("serve")
    job.others_wait(0, op="broadcast")

    assert job.passes(stands_s).ever() == kinds


@pytest.mark.parametrize(
    ("sleeps_s", "kinds"),
    [
        (20, []),
        (28, [("warning", "not-in-collective", (0,))]),
        (3600, [("critical", "not-in-collective", (0,))]),
    ],
)
def test_a_sleep_that_will_be_longer_than_those_before_is_named_at_once(sleeps_s, kinds):
    job = used_to(0.02)
    job.ranks[0].says = {"stayed_s": 12.0, "sleeps_until_unix_ns": unix_ns(job.now + sleeps_s)}
    job.ranks[0].stands_at("serve")
    job.others_wait(0, op="broadcast")

    assert job.passes(8).kinds() == kinds


@pytest.mark.parametrize(
    ("stands_s", "severity"), [(28, "warning"), (36, "critical")], ids=["at first", "for too long"]
)
def test_a_rank_that_writes_down_an_exception_works_for_half_a_minute(stands_s, severity):
    """Short sleeps and short lines: hardly any CPU, and hundreds of bytes a second."""
    job = used_to(0.02)
    job.ranks[0].stands_at("report")
    job.ranks[0].says = {"writes_since_unix_ns": unix_ns(job.now)}
    job.others_wait(0)
    job.passes(stands_s)

    assert job.kinds() == [(severity, "not-in-collective", (0,))]
    assert ("is still working, in report" in job.finding().summary) == (severity == "warning")


def test_a_validation_that_has_come_twice_is_usual_however_many_steps_lie_between():
    """Every 500 steps it validates; waits are remembered for 100 steps."""
    job = FakeJob(3).trains(30)
    for _ in range(2):
        validated(job, 8.0)
    first = job.ever()
    before = job.now
    validated(job, 10.0)

    assert first == [("warning", "not-in-collective", (0,))]
    assert not any(verdict.findings for verdict in job.verdicts(joined_s=before - 5.0))


@pytest.mark.parametrize(
    ("delay_ratio", "seconds", "severity"),
    [(0.9, 12, "warning"), (0.1, 12, "critical"), (0.9, 100, "warning")],
    ids=["crowded", "idle", "crowded for long"],
)
def test_a_rank_that_is_ready_to_run_and_gets_no_cpu_is_not_stuck(delay_ratio, seconds, severity):
    """Beside forty processes rank 0 got 1 % of a core."""
    job = FakeJob(3).trains(30)
    job.ranks[0].stands_at("collect_statistics")
    job.others_wait(0)
    for passed in range(2 * seconds):
        delay_ns = round(delay_ratio * passed * 0.5 * 1e9)
        job.ranks[0].seen_outside = {"load": ProcessLoad(run_delay_ns=delay_ns)}
        job.passes(0.5)

    assert job.kinds() == [(severity, "not-in-collective", (0,))]
    told = "other processes have the CPUs" in "\n".join(job.finding().evidence)
    assert told == (delay_ratio > 0.5)
