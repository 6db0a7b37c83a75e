"""The sparklines of an earlier moment: the policy says which steps are old, and which ratios have
too few samples."""

from __future__ import annotations

import pytest

from ddtop.follow.tape import Past
from ddtop.model.job import Job
from tests.follow.taped import taped
from tests.jobs import FakeJob, unix_ns
from tests.second_policy import Case


def past_of(job, policy):
    """What the sparklines of rank 0 show at the end."""
    tape = taped(job, model=Job(job.name, policy))
    return Past(tape, unix_ns(job.now)).memory_of(0)


def last_step_ms(seconds, step_ms):
    def says(policy):
        job = FakeJob(1)
        job.ranks[0].says = {"step_ms": step_ms}
        job.trains(6)
        job.ranks[0].stands_at("fetch")
        job.passes(seconds)
        return past_of(job, policy).step_ms[-1]

    return says


def last_wait_ratio(policy):
    """The rank has been seen for one and a half seconds."""
    job = FakeJob(1)
    job.trains(2)
    return past_of(job, policy).wait_ratio[-1]


CASES = [
    Case("a step", "step_old_s", 1.0, last_step_ms(1.5, 100.0), 100.0, None),
    Case("a step", "step_old_factor", 1.0, last_step_ms(4, 2000.0), 2000.0, None),
    Case("a ratio", "window_min_s", 1.0, last_wait_ratio, None, 0.0),
]


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_the_policy_says_what_the_sparklines_of_a_moment_show(case):
    assert case.said_by_both() == (case.ours, case.theirs)
