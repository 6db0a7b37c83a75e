"""A window of the policy that is longer than ours is measured as long as it says."""

import pytest

from ddtop.wire.records import ProcessLoad, ProcessState
from tests.diagnosis.rules.input_bound import loading
from tests.jobs import SECOND, FakeJob, trained
from tests.second_policy import Case, kinds


def seen(job, policy):
    job.policy = policy
    return job.snapshot()


def window_s(policy):
    job = FakeJob(1).trains(40)
    return round(seen(job, policy).ranks[0].reported.window_s)


def loading_lately():
    """The ranks wait for data for 70 % of the time, since 12 seconds."""
    job = loading(0.0).trains(30)
    for rank in job.ranks:
        rank.loader_share = 0.7
    return job.trains(12)


def loading_long():
    """... and here for 40 seconds."""
    return loading(0.7).trains(40)


def cores_used(policy):
    """Cores that a rank used: one for 20 seconds, then none for 15."""
    job = trained(1).trains(10)
    job.ranks[0].stands_at("fetch")
    job.ranks[0].cores = 0.0
    job.passes(15)
    return round(seen(job, policy).ranks[0].process.cpu_ratio, 1)


def candidate(policy):
    """A process that is no rank yet used a core for 10 seconds, and was asleep for 15."""
    job = FakeJob(2, absent=[1])
    for second in range(26):
        cpu_ns, switches = min(second, 10) * SECOND, min(second, 10)
        job.candidates = (ProcessState(None, 4999, "S", cpu_ns=cpu_ns, switches=switches),)
        job.passes(1)
    (found,) = seen(job, policy).candidates
    return found


def lacks_cpu(policy):
    """Whether a rank lacks a CPU that waited for one until 4 s ago, and is ready to run now."""
    job = trained(1)
    job.ranks[0].stands_at("collect")
    job.ranks[0].letter = "R"
    for second in range(13):
        delay_ns = round(0.9 * min(second, 8) * SECOND)
        job.ranks[0].seen_outside = {"load": ProcessLoad(run_delay_ns=delay_ns)}
        job.passes(1)
    return seen(job, policy).ranks[0].process.lacks_cpu


CASES = [
    Case("a rank's counters", "window_s", 30.0, window_s, 10, 30),
    Case("loading lately", "window_s", 30.0, kinds(loading_lately), ["input-bound"], []),
    Case("loading long", "window_s", 30.0, kinds(loading_long), *[["input-bound"]] * 2),
    Case("a rank's CPU", "cpu_window_s", 20.0, cores_used, 0.0, 0.2),
    Case("a candidate", "cpu_window_s", 20.0, lambda p: candidate(p).working, False, True),
    Case("a candidate", "candidate.asleep_s", 20.0, lambda p: candidate(p).woke, False, True),
    Case("two windows of one series", "oversubscribed_window_s", 4.0, lacks_cpu, True, True),
]


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_a_window_is_as_long_as_the_policy_says(case):
    assert case.said_by_both() == (case.ours, case.theirs)
