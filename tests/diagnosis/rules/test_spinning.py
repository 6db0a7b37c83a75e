"""Ranks on NCCL that spin in one line while they wait for their GPUs, as if they computed."""

import pytest

from tests.diagnosis.rules.spinning import aborted, on_nccl, spin
from tests.jobs import WORLD, brief, trained


def test_a_host_that_is_found_in_the_same_call_at_each_look_while_collectives_come_back_does_not_wait():  # noqa: E501
    """A job that its GPUs limit spends all of its time in loss.item()."""
    job = on_nccl(trained(4))
    for _ in range(20):
        spin(job, 0, 1, 2, 3)
        job.passes(0.5)
        for rank in job.ranks:
            condition = rank.standings[WORLD]
            condition.completed, condition.pending_since = condition.enqueued, None
            condition.open.clear()
    spin(job, 0, 1, 2, 3)
    job.passes(1)

    assert (job.snapshot().waits, job.ever()) == ((), [])


# -- torch's watchdog ends the ranks that wait


@pytest.mark.parametrize("first", [(0,), (0, 1, 3)])
def test_whom_the_watchdog_aborts_is_a_victim_and_who_had_not_come_is_named(first):
    """Half an hour later the launcher reports rank 0, exit code -6."""
    job = aborted(60, *first).passes(1)
    then = {finding.ranks for finding in job.verdict().findings}
    for rank in job.ranks:
        if rank.number not in first:
            rank.ends(signal=15)
    job.passes(3)

    assert then == {(2,)}
    assert brief(job.finding()) == ("critical", "comm-error", (2,))
    assert job.finding().summary.startswith("all_reduce #101 of default_pg timed out on rank")
    assert job.snapshot().ended.reason == "communication failed, first on rank 0"
    assert (
        "rank 2 had not joined it (last seen in wait_for_licence, train.py:53)"
        in job.finding().summary
    )
