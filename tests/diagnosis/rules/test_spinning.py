"""Ranks on NCCL that spin in one line while they wait for their GPUs, as if they computed."""

import pytest

from tests.diagnosis.rules.spinning import aborted, on_nccl, spin
from tests.jobs import WORLD, brief, trained
from tests.nccl_jobs import COMPUTES, NcclJob


@pytest.mark.parametrize("activity", ["other", "forward", "optimizer"])
def test_who_has_not_come_is_named_though_those_that_wait_spin(activity):
    """A rank sleeps; the others burn a core each in cudaStreamSynchronize."""
    job = on_nccl(trained(4))
    job.ranks[2].stands_at("wait_for_licence", line=53)
    spin(job, 0, 1, 3, activity=activity)
    finding = job.passes(8).finds("critical", "not-in-collective", 2)

    assert finding.victims == (0, 1, 3)
    assert finding.summary.startswith("rank 2 has been in wait_for_licence (train.py:53) for 8 s")


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


@pytest.mark.parametrize("watts", [620.0, 230.0])
def test_a_collective_behind_a_long_computation_is_not_stuck(watts):
    """Nor behind a GPU that draws little because its kernel mostly reads memory."""
    cards = COMPUTES | {"power_watts": watts}
    job = NcclJob().runs(70, lambda second, rank: cards)
    spin(job, *range(8))
    job.runs(60, lambda second, rank: cards)

    assert job.ever() == []


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
