"""Jobs in which long waits are usual: a usual wait is no hang, and a much longer one is."""

from tests.diagnosis.habits import validated
from tests.jobs import FakeJob


def test_a_validation_that_has_come_twice_is_usual_however_many_steps_lie_between():
    """Every 500 steps it validates; waits are remembered for 100 steps."""
    job = FakeJob(3).trains(30)
    for _ in range(2):
        validated(job, 8.0)
    first = job.ever()
    before = job.now
    validated(job, 10.0)

    assert first == [("warning", "not-in-collective", (0,))]
    assert not any(verdict.findings for verdict in job.verdicts(joined_s=before - 5.0))
