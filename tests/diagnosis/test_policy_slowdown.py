"""The policy decides when a job trains slower than before, and which cause is named."""

import pytest

from ddtop.wire.records import Pace
from tests.diagnosis.rules.crowded import loaded
from tests.diagnosis.rules.slowdown import job_of, speed
from tests.jobs import FakeJob
from tests.second_policy import Case, stands

FOUND = [("info", "slowdown", ())]
ALL_WAIT = ((), "all ranks spend more of their time in collectives")
NO_SOURCE = ((), "a step takes longer on all ranks, and no measurement shows why")


def slower(now, spread=0.02):
    pace = Pace(speed(now, spread=spread), start=speed(10.0, spread=spread))
    return job_of(pace, pace)


def waits_for_data(more_ms):
    """A step takes 67 ms longer."""
    pace = Pace(speed(6.0, loader_ms=more_ms), speed(10.0))
    return job_of(pace, pace)


def waits_in_collectives(*more):
    """Each rank's share of its time in collectives has grown by this much."""
    return job_of(*(Pace(speed(6.0, wait_ratio=0.1 + one), speed(10.0)) for one in more))


def lacks_cpus(delay_ratio):
    job = FakeJob(2)
    for rank in job.ranks:
        rank.says["pace"] = Pace(speed(6.0), speed(10.0))
    loaded(job, 30, run_delay_ns=delay_ratio)
    return job


def cause_in(scenario, *given):
    """The ranks that the finding names, and its sentence about the cause."""

    def says(policy):
        job = scenario(*given)
        job.policy = policy
        verdict = job.verdicts(joined_s=job.now - 1.5)[-1]
        (finding,) = [one for one in verdict.findings if one.kind == "slowdown"]
        return finding.ranks, finding.summary.rpartition("; ")[2]

    return says


CASES = [
    Case("a small loss", "slowdown.info_ratio", 0.2, stands(slower, 8.8), FOUND, []),
    Case("an uneven speed", "slowdown.noise_factor", 2.5, stands(slower, 8.0, 0.1), FOUND, []),
    Case(
        "data", "slowdown.share_ratio", 0.8, cause_in(waits_for_data, 40.0),
        ((), "most ranks wait 40 ms longer per step for data"), NO_SOURCE,
    ),
    Case(
        "all wait", "slowdown.wait_ratio", 0.3, cause_in(waits_in_collectives, 0.2, 0.2),
        ALL_WAIT, NO_SOURCE,
    ),
    Case(
        "the others wait", "slowdown.wait_ratio", 0.3,
        cause_in(waits_in_collectives, 0.2, 0.2, 0.0, 0.2),
        ((2,), "rank 2 takes longer, and the others wait"), NO_SOURCE,
    ),
    Case(
        "the others wait", "slowdown.even_ratio", 0.03,
        cause_in(waits_in_collectives, 0.4, 0.4, 0.04, 0.4),
        ((2,), "rank 2 takes longer, and the others wait"), ALL_WAIT,
    ),
    Case(
        "the others wait", "slowdown.few_part", 0.125,
        cause_in(waits_in_collectives, *[0.4] * 6, 0.0, 0.0),
        ((6, 7), "ranks 6,7 take longer, and the others wait"), ALL_WAIT,
    ),
    Case(
        "CPUs", "slowdown.delay_ratio", 0.5, cause_in(lacks_cpus, 0.3),
        ((), "most ranks are more often ready to run without a CPU"), NO_SOURCE,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_the_policy_says_when_a_job_is_slower_and_why(case):
    assert case.said_by_both() == (case.ours, case.theirs)
