"""Verdicts on MPI ranks that send to single ranks, and receive from one rank or from any rank."""

import pytest

from ddtop.wire.mpi import OUTSIDE_BIT, group_name
from tests.mpi_jobs import MpiJob, sent


@pytest.mark.parametrize(("taken", "said"), [(141, True), (142, False)])
def test_a_rank_that_receives_from_anybody_less_often_than_others_send_is_told_so(taken, said):
    """The receives were counted once for two senders."""
    job = MpiJob(3).passes(10)
    job.in_collective("Barrier", 0, 1)
    job.inside(0, job.ranks[0].mpi.calls[0], traffic=(sent(None, 4, 0, taken),))
    job.inside(1, job.ranks[1].mpi.calls[0], traffic=(sent(0, 4, 71, is_last=True),))
    job.in_single(2, "ssend", 0, 4, traffic=(sent(0, 4, 71, is_last=True),))
    finding = job.passes(8).finds("critical", "unmatched-p2p", 2)

    told = "142 messages have been sent to rank 0, which has begun 141 receives"
    assert (told in finding.summary) is said
    assert finding.advice.startswith("receive once for each message") is said


def waits_for_another_world(name="Barrier", **more):
    """Rank 0 is in a call with the world that it has spawned, the others wait for rank 0."""
    job = MpiJob(3).passes(10)
    job.in_collective("Barrier", 1, 2)
    outside = group_name(77 | OUTSIDE_BIT)
    job.inside(0, job.call(name, group=outside, **more))
    return job


@pytest.mark.parametrize("call", [{"name": "Barrier", "seq": 4}, {"name": "Recv", "tag": 2}])
def test_a_rank_that_waits_for_a_spawned_world_is_named(call):
    job = waits_for_another_world(**call)
    finding = job.passes(12).finds("warning", "not-in-collective", 0)

    assert f"rank 0 has been in {call['name']} with another MPI world" in finding.summary
    assert "ddtop jobs" in finding.advice
    assert job.passes(80).kinds() == [("critical", "not-in-collective", (0,))]
