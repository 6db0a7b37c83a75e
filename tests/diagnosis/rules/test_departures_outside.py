"""Ranks without an agent that are gone: nobody reported their exceptions."""

from tests.diagnosis.rules.departures import looked_at
from tests.diagnosis.rules.departures_outside import go


def said(job):
    return [(one.severity, one.kind, one.ranks) for one in job.verdict().findings]


def criticals(job):
    return [one for one in job.ever() if one[0] == "critical"]


def test_ranks_that_fail_together_are_all_named_and_none_is_accused():
    job = looked_at()

    go(job, (1, 0.0, 1, None), (0, 0.3, 1, None), (2, 0.4, 1, None))

    assert said(job) == [("warning", "rank-crashed", (0, 1, 2))]
    assert job.snapshot().ended.first_rank is None
    assert not criticals(job)
