"""A host that is not heard any more: the policy decides whether its ranks still take part."""

import pytest

from tests.diagnosis.rules.host_lost import cut
from tests.second_policy import Case, stands

LOST = [("critical", "host-lost", (4, 5))]
CUT = [("info", "host-lost", (4, 5))]


def completed_sixteen_seconds_ago(step_ms=100.0):
    """Collectives with ranks 4 and 5 completed for 14 s after their host fell silent."""
    job = cut()
    for rank in job.ranks:
        rank.says = {"step_ms": step_ms}
    job.trains(14)
    job.others_wait(4, 5)
    return job.passes(16)


CASES = [
    Case(
        "long steps", "host-lost.step_factor", 1.0,
        stands(completed_sixteen_seconds_ago, 10_000.0), CUT, LOST,
    ),
    Case("what moves", "moving_s", 30.0, stands(completed_sixteen_seconds_ago), LOST, CUT),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=Case.name)
def test_the_policy_says_how_long_a_collective_shows_that_a_lost_host_takes_part(case):
    assert case.said_by_both() == (case.ours, case.theirs)
