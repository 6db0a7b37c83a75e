"""Ranks without an agent that are gone: nobody reported their exceptions."""

import pytest

from ddtop.wire.records import OutsideLook
from tests.diagnosis.rules.departures import looked_at
from tests.jobs import SECOND, unix_ns

KILL, SEGV, TERM, ABRT = 9, 11, 15, 6
MPI = {"OMPI_COMM_WORLD_RANK": "1"}


def computes(job, number):
    since = unix_ns(job.now) - SECOND
    job.ranks[number].says["outside"] = OutsideLook(None, None, since, True, apart_looks=3)


def go(job, *ends):
    """`(rank, seconds later, exit code or None, signal or None)`; then some time passes."""
    for number, later_s, code, number_of_signal in ends:
        job.ranks[number].ends(code, number_of_signal, later_s=later_s, exiting=False)
    job.passes(4)


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


def test_a_rank_that_fails_in_no_call_after_others_have_finished_may_be_the_cause():
    job = looked_at()
    computes(job, 2)
    job.passes(0.5)

    go(job, (0, 0.0, 0, None), (1, 0.1, 0, None), (2, 3.0, 1, None))

    assert said(job) == [("warning", "rank-crashed", (2,))]


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


def test_a_rank_that_failed_while_all_others_wait_has_crashed():
    job = looked_at()

    go(job, (1, 0.0, 1, None))

    assert said(job) == [("critical", "rank-crashed", (1,))]


def test_a_rank_that_had_waited_for_long_failed_because_of_another():
    """A timeout of a wait for a rank that lives."""
    job = looked_at(wait_s=40.0)

    go(job, (1, 0.0, 1, None))

    assert said(job) == [("warning", "rank-crashed", (1,))]


def test_a_rank_that_was_gone_before_may_have_waited_for_one_that_is_elsewhere():
    job = looked_at()
    computes(job, 2)
    job.passes(0.5)
    job.ranks[1].says["outside"] = None
    job.passes(0.5)

    go(job, (1, 0.0, 1, None))

    assert [one for one in said(job) if one[1] == "rank-crashed"] == [
        ("warning", "rank-crashed", (1,))
    ]


@pytest.mark.parametrize("number", [KILL, SEGV, TERM])
def test_a_signal_that_no_launcher_sends_is_the_cause(number):
    job = looked_at()

    go(job, (0, 0.0, 1, None), (1, 0.0, None, number), (2, 0.1, 1, None))

    assert said(job) == [("critical", "rank-killed", (1,))]


def test_an_abort_may_be_a_consequence():
    job = looked_at()

    go(job, (0, 0.0, 1, None), (1, 0.1, None, ABRT))

    assert not criticals(job)


@pytest.mark.parametrize("number", [TERM, KILL])
def test_what_an_mpi_launcher_sends_when_a_rank_has_failed_is_no_cause(number):
    job = looked_at(environment=MPI)

    go(job, (1, 0.0, 1, None), (0, 0.1, None, number), (2, 0.1, None, number))

    assert said(job) == [("critical", "rank-crashed", (1,))]


def test_spawned_ranks_are_ended_by_the_program_that_started_them():
    job = looked_at(claim="guess")

    go(job, (1, 0.0, 1, None), (0, 0.1, None, TERM), (2, 0.1, None, TERM))

    assert said(job) == [("critical", "rank-crashed", (1,))]


def test_a_rank_at_the_end_of_its_program_may_have_raised():
    """Python waits for its threads after an exception, too."""
    job = looked_at(wait_s=40.0)
    computes(job, 1)
    job.ranks[1].says |= {"phase": "leaving", "progress_unix_ns": unix_ns(job.now - 40)}

    (finding,) = job.passes(8).verdict().findings

    assert (finding.severity, finding.kind, finding.ranks) == ("warning", "left-early", (1,))
    assert "done or after an exception" in finding.summary
    assert "exception" in finding.advice


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
