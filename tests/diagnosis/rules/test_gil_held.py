"""Ranks whose GIL is held by C code: their agents are silent, and NCCL's thread still answers."""

import pytest

from tests.diagnosis.rules.nccl import frozen_job, launches_outside


@pytest.mark.parametrize(
    "more",
    [
        {"same_ms": None},
        # A loop in C that trains has launched more since the last answer.
        {"same_ms": 2_000},
        {"counts": (812, 812, 812, 812)},
        {"counts": (812, 811, 811, 811)},
    ],
)
def test_one_answer_or_even_launches_blame_nobody(more):
    assert frozen_job(0, 1, 2, 3, **more).verdict().findings == ()


def from_outside(*given, **more):
    findings = launches_outside(*given, **more).verdict().findings
    return [one for one in findings if "according to NCCL" in one.summary]


def test_of_ranks_that_are_read_from_outside_two_equal_answers_are_needed():
    """On an H200 ranks that spin in a wait slept as often as those that train."""
    (finding,) = from_outside((812, 812, 811, 812))

    assert (finding.severity, finding.kind) == ("critical", "not-in-collective")
    assert (finding.ranks, finding.victims) == ((2,), (0, 1, 3))
    assert "no rank has enqueued another for 6 s" in finding.summary


@pytest.mark.parametrize(
    "more",
    [
        {"counts": (812,) * 4},
        {"same_ms": None},
        {"same_ms": 0},
        # One that is not in a call for others goes on by itself.
        {"kind": None},
    ],
)
def test_ranks_that_go_on_or_have_launched_as_much_are_not_named(more):
    assert from_outside(**{"counts": (812, 812, 811, 812)} | more) == []
