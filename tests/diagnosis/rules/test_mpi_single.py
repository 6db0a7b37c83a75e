"""Verdicts on MPI ranks that send to single ranks, and receive from one rank or from any rank."""

import pytest

from ddtop.wire.mpi import OUTSIDE_BIT, group_name
from tests.jobs import brief
from tests.mpi_jobs import MpiJob, sent


def two_that_receive(*sends, taken=()):
    """Rank 0 has sent these to rank 1, and both wait in recv for each other."""
    job = MpiJob(2).passes(10)
    job.in_single(0, "recv", 1, 6, traffic=sends)
    job.in_single(1, "recv", 0, 12, traffic=(*taken, sent(0, 12, 0, 1)))
    job.passes(8)
    return job.finding()


def test_where_the_last_send_had_another_tag_nobody_is_said_not_to_send():
    """A small message needs no receive: its sender goes on, and waits for the answer."""
    finding = two_that_receive(sent(1, 5, 60), sent(1, 11, is_last=True), taken=[sent(0, 5, 0, 60)])

    assert brief(finding) == ("critical", "wait-cycle", (0, 1))
    assert finding.summary.endswith("; but rank 0's last send to rank 1 had tag 11")
    assert finding.advice.startswith("make the tags of send and recv match")
    assert (
        "rank 0 has sent to rank 1: 60 with tag 5 (receives begun: 60), 1 with tag 11 (receives"
        " begun: 0), none with tag 12"
    ) in finding.evidence


def test_of_those_from_whom_it_may_receive_the_one_that_sent_another_tag_is_named():
    job = MpiJob(3).passes(10)
    job.in_single(0, "Probe", None, 5)
    for number, tag in ((1, 5), (2, 6)):
        call = job.call("Barrier", group="mpi:1", seq=job.done + 1)
        job.inside(number, call, traffic=(sent(0, tag, 71, is_last=True),))
    finding = job.passes(8).finds("critical", "unmatched-p2p", 0)

    assert "but rank 2 waits in Barrier" in finding.summary
    assert "and rank 2's last send to rank 0 had tag 6" in finding.summary


def test_where_the_last_send_was_received_nobody_sends():
    finding = two_that_receive(sent(1, 5, 60, is_last=True), taken=[sent(0, 5, 0, 60)])

    assert finding.advice.startswith("no rank sends")
    assert "last send" not in finding.summary


def test_how_many_receives_of_a_rank_that_takes_from_anybody_have_begun_is_not_said():
    """Its receives are not counted by peer: 0 would be untrue."""
    job = MpiJob(2).passes(10)
    job.in_collective("Barrier", 0)
    job.in_single(1, "ssend", 0, 4, traffic=(sent(0, 4, 71, is_last=True),))
    finding = job.passes(8).finds("critical", "unmatched-p2p", 1)

    assert "rank 1 has sent to rank 0: 71 with tag 4" in finding.evidence


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


def test_a_ring_of_large_sends_is_a_cycle():
    job = MpiJob(3).passes(10)
    for rank in range(3):
        job.in_single(rank, "Send", (rank + 1) % 3, 3)
    finding = job.passes(8).finds("critical", "wait-cycle", 0, 1, 2)

    assert "one Sendrecv" in finding.advice


def test_the_halves_of_two_sendrecvs_that_miss_each_other_are_named():
    job = MpiJob(2).passes(10)
    for rank in range(2):
        job.waits_for(rank, "sendrecv", ("Send", 1 - rank, 1), ("Recv", 1 - rank, 2))
    finding = job.passes(8).finds("critical", "unmatched-p2p", 0, 1)

    assert "sendrecv: Recv from rank 1, tag 2" in finding.summary
    assert "rank 1 is in sendrecv: Send to rank 0, tag 1" in finding.summary


def test_of_several_requests_only_those_that_are_owed_are_waited_for():
    """Rank 1 has sent its part and goes on computing. Rank 2 sleeps."""
    job = MpiJob(3).passes(10)
    job.waits_for(
        0, "Waitall", ("Irecv", 1, 5), ("Irecv", 2, 5), traffic=(sent(1, 5, 0, 1), sent(2, 5, 0, 1))
    )
    job.ranks[1].works_at("compute")
    job.outside(1, traffic=(sent(0, 5),))
    job.ranks[2].stands_at("load")
    job.outside(2)

    assert job.passes(8).kinds() == [("critical", "not-in-collective", (2,))]


def test_a_receive_from_anybody_that_nobody_can_send_to_is_named():
    job = MpiJob(3).passes(10)
    job.in_single(0, "recv", None, 4)
    job.in_collective("Barrier", 1, 2)
    finding = job.passes(8).finds("critical", "unmatched-p2p", 0)

    assert "recv from any rank, tag 4" in finding.summary


def test_a_receive_from_itself_without_a_send_is_named():
    job = MpiJob(2).passes(10)
    job.in_collective("Barrier", 0)
    job.in_single(1, "recv", 1, 7)

    assert job.passes(8).kinds() == [("critical", "unmatched-p2p", (1,))]


@pytest.mark.parametrize(
    ("tag", "traffic", "said"),
    [
        (7, (), "it has sent itself nothing;"),
        (7, (sent(1, 7, 3383, 3384),), "it has sent itself nothing more;"),
        (None, (sent(1, 7, 3383, 3383),), "it has sent itself nothing more;"),
        (7, (sent(1, 9, 3383, 3383), sent(1, 7, 0, 1)), "it has sent itself nothing with tag 7;"),
    ],
)
def test_a_rank_that_has_sent_itself_messages_has_not_sent_itself_nothing(tag, traffic, said):
    """Beside it stood "rank 0 has sent to rank 0: 3383 with tag 7"."""
    job = MpiJob(2).passes(10)
    job.in_collective("Barrier", 0)
    job.in_single(1, "recv", 1, tag, traffic=traffic)

    assert said in job.passes(8).finding().summary


def test_two_that_receive_from_each_other_are_told_that_nobody_sends():
    job = MpiJob(2).passes(10)
    job.in_single(0, "recv", 1, 4)
    job.in_single(1, "recv", 0, 4)
    job.passes(8)

    assert brief(job.finding()) == ("critical", "wait-cycle", (0, 1))
    assert job.finding().advice.startswith("no rank sends")


def test_the_receive_is_told_where_a_request_to_send_is_open_too():
    job = MpiJob(2).passes(10)
    job.waits_for(0, "Waitall", ("Isend", 1, 12), ("Irecv", 1, 11))
    job.in_collective("Barrier", 1)

    assert "Waitall for Irecv from rank 1, tag 11" in job.passes(8).finding().summary


@pytest.mark.parametrize(
    ("waits_on", "wchan", "kinds"),
    [
        ("lock", "futex_wait_queue", [("critical", "not-in-collective", (1,))]),
        (None, "wait_for_partner", [("critical", "not-in-collective", (1,))]),
        ("child", "do_wait", []),
        (None, "hrtimer_nanosleep", []),
        (None, None, []),
    ],
)
def test_a_master_waits_for_its_last_worker_where_that_cannot_be_at_work(waits_on, wchan, kinds):
    """Workers that run another program or call a server use no CPU, and still work."""
    job = MpiJob(3).passes(10)
    job.in_single(0, "recv", None, None)
    job.in_single(2, "recv", 0, 4)
    job.ranks[1].stands_at("fetch", waits_on=waits_on)
    job.ranks[1].wchan = wchan
    job.outside(1)

    assert job.passes(20).kinds() == kinds
