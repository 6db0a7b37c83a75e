"""Waits for single ranks in which nobody is at fault, or the rank that they wait for."""

import pytest

from tests.diagnosis.rules.deadlock import calls
from tests.jobs import FakeJob


@pytest.mark.parametrize("waits_on", ["queue", "socket", "stdin"])
def test_workers_that_wait_for_orders_are_idle_and_nobody_is_blamed(waits_on):
    """An inference server between two requests: rank 0 has never made a step."""
    job = FakeJob(3)
    job.ranks[0].stands_at("serve", "/home/ada/serve.py", 8, waits_on=waits_on)
    job.ranks[0].iteration = None
    for rank in (1, 2):
        calls(job, rank, "recv", 0)
    job.passes(400)

    assert job.ever() == [("info", "no-progress", ())]
    assert job.verdict().health == "ok"
    assert "idle" in job.verdict().calm
    assert "ranks 1,2 wait in recv for rank 0" in job.verdict().calm
