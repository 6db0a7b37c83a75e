"""Ranks without an agent that are gone: nobody reported their exceptions."""

import pytest

from tests.diagnosis.rules.departures import looked_at
from tests.diagnosis.rules.departures_outside import KILL, SEGV, TERM, computes, go

MPI = {"OMPI_COMM_WORLD_RANK": "1"}


def said(job):
    return [(one.severity, one.kind, one.ranks) for one in job.verdict().findings]


def criticals(job):
    return [one for one in job.ever() if one[0] == "critical"]


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_a_rank_that_fails_in_a_call_long_after_another_has_left_is_a_victim(world_size):
    job = looked_at(world_size)
    others = range(1, world_size)

    go(job, (0, 0.0, 0, None), *((rank, 3.0, 1, None) for rank in others))

    assert said(job) == [("critical", "left-early", (0,))]
    assert criticals(job) == [("critical", "left-early", (0,))]


@pytest.mark.parametrize("world_size", [2, 3])
def test_who_went_first_within_moments_is_not_known(world_size):
    """A process may end after those that failed because its sockets had closed."""
    job = looked_at(world_size)

    go(job, (0, 0.2, 0, None), *((rank, 0.0, 1, None) for rank in range(1, world_size)))

    assert said(job) == [("warning", "left-early", (0,))]
    (finding,) = job.verdict().findings
    assert "from outside it is not known" in finding.summary
    assert not criticals(job)


def test_ranks_that_fail_together_are_all_named_and_none_is_accused():
    job = looked_at()

    go(job, (1, 0.0, 1, None), (0, 0.3, 1, None), (2, 0.4, 1, None))

    assert said(job) == [("warning", "rank-crashed", (0, 1, 2))]
    assert job.snapshot().ended.first_rank is None
    assert not criticals(job)


@pytest.mark.parametrize("number", [KILL, SEGV, TERM])
def test_a_signal_that_no_launcher_sends_is_the_cause(number):
    job = looked_at()

    go(job, (0, 0.0, 1, None), (1, 0.0, None, number), (2, 0.1, 1, None))

    assert said(job) == [("critical", "rank-killed", (1,))]


@pytest.mark.parametrize("number", [TERM, KILL])
def test_what_an_mpi_launcher_sends_when_a_rank_has_failed_is_no_cause(number):
    job = looked_at(environment=MPI)

    go(job, (1, 0.0, 1, None), (0, 0.1, None, number), (2, 0.1, None, number))

    assert said(job) == [("critical", "rank-crashed", (1,))]


@pytest.mark.parametrize(
    ("code", "expected"), [(None, []), (1, [("warning", "left-early", (0,))])], ids=["unknown", "1"]
)
def test_a_job_that_ends_while_it_is_looked_at_failed_only_if_somebody_saw_it(code, expected):
    """Its launcher has reaped three ranks, the exit code of the fourth is 0."""
    job = looked_at(4)
    computes(job, 1)

    go(
        job,
        *((rank, 0.1 * rank, None, None) for rank in (2, 3)),
        (1, 0.1, code, None),
        (0, 1.0, 0, None),
    )

    assert said(job) == expected
