"""Waits for single ranks: which rank is named, and when no rank is."""

import pytest

from ddtop.wire.records import OpenCall
from tests.jobs import FakeJob, trained, unix_ns


def calls(job, rank, name, peer=None, tag=0):
    """From now on that rank is in a call that waits for single ranks."""
    one = job.ranks[rank]
    one.stands_at("exchange", "/home/ada/pipe.py", 30 + rank)
    one.calls.append(OpenCall(name, unix_ns(job.now), peer, tag, 1))


def test_a_ring_of_receives_is_named_whole():
    job = trained(3)
    for rank in range(3):
        calls(job, rank, "recv", (rank - 1) % 3)
    finding = job.passes(8).finds("critical", "wait-cycle", 0, 1, 2)

    assert finding.victims == ()
    assert "rank 1 waits in recv from rank 0 (pipe.py:31 exchange)" in finding.summary


def test_two_groups_in_opposite_order_are_a_cycle():
    """Rank 1 called weights and gradients in the opposite order."""
    job = trained(2)
    job.new_group("a", 0, 1)
    job.new_group("b", 0, 1)
    job.ranks[0].waits_in("all_reduce", group="a")
    job.ranks[1].waits_in("all_reduce", group="b")
    job.passes(8)

    assert (job.finding().kind, job.finding().ranks) == ("wait-cycle", (0, 1))


def one_elsewhere(*others):
    """Rank 2 waits in the group of all ranks, these others in a second group, the rest nowhere."""
    job = trained(4)
    job.new_group("a", 0, 1, 2, 3)
    for rank in job.ranks:
        rank.stands_at("load")
    job.ranks[2].waits_in("all_reduce")
    for number in others:
        job.ranks[number].waits_in("barrier", group="a", sizes=())
    return job.passes(8)


def test_one_rank_that_all_others_wait_for_in_another_group_is_named_alone():
    """It left out a call in that group: it has the minority on its side."""
    finding = one_elsewhere(0, 1, 3).finds("critical", "collective-mismatch", 2)

    assert finding.victims == (0, 1, 3)
    assert finding.summary.startswith("rank 2 waits in all_reduce #")
    assert "but ranks 0,1,3 wait for it in barrier #1 of group a" in finding.summary
    assert "all ranks call the same collectives" in finding.advice


def test_if_they_wait_for_another_rank_too_there_is_no_majority():
    assert one_elsewhere(0, 1).ever() == [("critical", "not-in-collective", (3,))]


def test_another_tag_names_both_sides_and_who_waits_for_them():
    job = trained(3)
    calls(job, 0, "send", 1, 6)
    calls(job, 1, "recv", 0, 5)
    job.ranks[2].waits_in()
    finding = job.passes(8).finds("critical", "unmatched-p2p", 0, 1)

    assert finding.victims == (2,)
    assert "the tags differ" in finding.summary


def test_two_receives_with_different_tags_are_a_cycle():
    """Nothing was sent, so no tag can be wrong."""
    job = trained(2)
    calls(job, 0, "recv", 1, 6)
    calls(job, 1, "recv", 0, 5)

    assert job.passes(8).kinds() == [("critical", "wait-cycle", (0, 1))]


def test_a_recv_whose_peer_is_in_a_collective_is_the_call_that_cannot_match():
    """Rank 2 receives from rank 1 instead of rank 0. Rank 1 has nothing to send."""
    job = trained(3)
    calls(job, 2, "recv", 1)
    calls(job, 0, "send", 2)
    job.ranks[1].waits_in()
    finding = job.passes(8).finds("critical", "unmatched-p2p", 2)

    assert finding.victims == (0, 1)
    assert "but rank 1 waits in all_reduce #101 of default_pg" in finding.summary


def test_a_rank_whose_side_several_others_miss_is_the_one_that_has_left_it_out():
    """The middle stage of a pipeline takes three micro-batches of four."""
    job = trained(3)
    calls(job, 0, "send", 1)
    job.ranks[1].waits_in()
    calls(job, 2, "recv", 1)
    finding = job.passes(8).finds("critical", "unmatched-p2p", 1)

    assert finding.victims == (0, 2)
    assert "ranks 0,2 wait in send to rank 1 and recv from rank 1, but rank 1" in finding.summary
    assert "where it waits for ranks 0,2" in finding.summary


def test_a_stage_that_stands_is_named_and_not_those_that_wait_for_it():
    job = trained(4)
    job.ranks[0].stands_at("load", "/home/ada/data.py", 12)
    for rank in (1, 2, 3):
        calls(job, rank, "recv", rank - 1)
    finding = job.passes(8).finds("critical", "not-in-collective", 0)

    assert finding.victims == (1, 2, 3)
    assert finding.summary.startswith("rank 0 has been in load (data.py:12) for")


def test_a_matched_pair_is_no_fault_of_one_rank():
    """Four gigabytes over a slow link: after 20 s there is a warning, which blames neither side."""
    job = trained(2)
    calls(job, 0, "send", 1, 3)
    calls(job, 1, "recv", 0, 3)
    job.passes(18)
    assert job.ever() == []

    assert job.passes(12).ever() == [("warning", "no-progress", (0, 1))]


def test_a_cycle_that_comes_apart_in_time_leaves_no_trace():
    job = trained(2)
    calls(job, 0, "recv", 1)
    calls(job, 1, "recv", 0)
    job.passes(4)
    for rank in job.ranks:
        rank.calls.clear()

    assert job.trains(10).ever() == []


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


def test_a_master_that_had_a_step_and_then_waits_is_no_idle_one():
    """wandb.init in the middle of a run."""
    job = trained(3)
    job.ranks[0].stands_at("log", "/home/ada/train.py", 8, waits_on="socket")
    for rank in (1, 2):
        calls(job, rank, "recv", 0)

    assert job.passes(30).finding().ranks == (0,)


def test_a_stage_to_which_others_send_is_no_idle_master():
    """A pipeline without an optimizer. Its middle stage waits for a queue that stays empty."""
    job = FakeJob(3)
    job.ranks[1].stands_at("stage", "/home/ada/pipe.py", 8, waits_on="queue")
    job.ranks[1].iteration = None
    calls(job, 0, "send", 1)
    calls(job, 2, "recv", 1)
    job.passes(8)

    assert (job.finding().kind, job.finding().ranks) == ("not-in-collective", (1,))


def making_a_group(job, *numbers, tag=0):
    for number in numbers:
        rank = job.ranks[number]
        rank.stands_at("make_groups", line=70, activity="collective", waits_on="collective")
        rank.calls = [OpenCall("new_group", unix_ns(job.now), None, tag)]


def test_who_does_not_come_to_a_new_group_is_named():
    """`if rank in members: dist.new_group(members)`: the other ranks must call it too."""
    job = trained()
    making_a_group(job, 0, 1, 3)
    job.ranks[2].stands_at("prepare", line=12)
    finding = job.passes(8).finds("critical", "not-in-collective", 2)

    assert finding.victims == (0, 1, 3)
    assert finding.summary.endswith("ranks 0,1,3 wait for it in new_group")
    assert "even ranks that are not in the group" in finding.advice


def test_a_new_group_against_a_collective_is_a_cycle():
    job = trained(2)
    making_a_group(job, 0)
    job.ranks[1].waits_in(op="barrier", sizes=())
    finding = job.passes(8).finds("critical", "wait-cycle", 0, 1)

    assert "even ranks that are not in the group" in finding.advice


@pytest.mark.parametrize("others", ["all are in it", "only its members have to come"])
def test_a_new_group_to_which_all_have_come_blames_nobody(others):
    job = trained(3)
    if others == "all are in it":
        making_a_group(job, 0, 1, 2)
    else:
        making_a_group(job, 0, 1, tag=1)
        job.ranks[2].stands_at("prepare", line=12)

    assert job.passes(20).ever() == []


@pytest.mark.parametrize(
    ("waits", "advice"),
    [
        # The gradient's stage 2 sends to 0 instead of 1. All three ranks are stuck, and the odd
        # call is that send.
        (
            [("recv", 1), ("recv", 2), ("send", 0)],
            "while rank 1 waits for a send from rank 2: check the peer of that send",
        ),
        # Each send is right, but the order is wrong.
        ([("send", 1), ("send", 2), ("recv", 0)], "opposite order"),
    ],
)
def test_a_send_that_goes_past_whom_it_is_waited_for_by_is_distinguished_from_a_matter_of_order(
    waits, advice
):
    job = trained(3)
    for rank, (name, peer) in enumerate(waits):
        calls(job, rank, name, peer)
    finding = job.passes(8).finds("critical", "wait-cycle", 0, 1, 2)

    assert advice in finding.advice
