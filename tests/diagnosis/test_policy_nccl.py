"""The policy decides whether an answer of NCCL's RAS service counts."""

import pytest

from ddtop.diagnosis.nccl import gone_ranks, ras_lines
from ddtop.wire.records import CommStatus
from tests.diagnosis.rules.nccl import frozen_job, nccl_job, service
from tests.second_policy import Case, kinds


def answered(*states, counts=None):
    """The service answered 20 seconds ago."""
    job = nccl_job().trains(2)
    job.say(CommStatus(service(*states, counts=counts)))
    job.passes(20)
    return job.snapshot()


def lines(policy):
    return ras_lines(answered("ok", "ok", "ok", "ok", counts=[812, 812, 811, 812]), policy)


def gone(policy):
    return gone_ranks(answered("ok", "ok", "dead", "ok"), policy)


def all_are_frozen():
    """The service answered four seconds ago, with the same answer as ten seconds before."""
    return frozen_job(0, 1, 2, 3)


BEHIND, FROZEN = "NCCL: rank 2 has launched 811 AllReduce, the others 812", ["interpreter-frozen"]
CASES = [
    Case("evidence", "ras_fresh_s", 10.0, lines, [BEHIND], []),
    Case("gone", "ras_fresh_s", 10.0, gone, (2,), ()),
    Case("frozen", "ras_fresh_s", 2.0, kinds(all_are_frozen), FROZEN, []),
    Case("frozen", "gil-held.ras_same_s", 12.0, kinds(all_are_frozen), FROZEN, []),
]


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_the_policy_says_which_answer_of_nccl_counts(case):
    assert case.said_by_both() == (case.ours, case.theirs)
