"""The ranks have made different process groups, and some wait because of it."""

import pytest

from tests.diagnosis.rules.group_calls import A, has_made, made, partitioned
from tests.jobs import trained

KIND = "collective-mismatch"


@pytest.mark.parametrize(
    "other", [made(1, 0, 2, line=41), made(1, *A, line=41, backend="nccl")], ids=["members", "nccl"]
)
def test_other_members_or_another_backend_are_named(other):
    """The others train on: the ranks of the two groups have met under one number."""
    job = trained(3)
    has_made(job, 0, made(1, *A))
    has_made(job, 1, made(1, *A), last=True)
    has_made(job, 2, other)
    finding = job.passes(8).finds("critical", KIND, 2)

    assert finding.summary.startswith(
        "rank 2 makes another group: ranks 0,1: new_group #1 of ranks"
    )
    assert finding.victims == (1,)


# -- what is no finding


@pytest.mark.parametrize("in_first", [True, False], ids=["in that group", "in the next one"])
def test_a_rank_that_is_late_is_late_though_others_have_made_another_group(in_first):
    """It would come to the same number as the others, and such groups may meet by chance."""
    job = trained(4)
    partitioned(job)
    if in_first:
        has_made(job, 0, made(1, 0, 1), last=True)
        has_made(job, 1)
        job.ranks[1].stands_at("prepare", line=12)
        late = 1
    else:
        for number in range(3):
            first = made(1, 0, 1) if number < 2 else made(1, 2, 3)
            has_made(job, number, first, made(2, 0, 1, 2, 3), last=True)
        job.ranks[3].stands_at("prepare", line=12)
        late = 3

    assert job.passes(8).kinds() == [("critical", "not-in-collective", (late,))]
