"""Verdicts on jobs under MPI, where whoever waits uses a whole core for that."""

from __future__ import annotations

import msgspec
import pytest

from ddtop.wire.mpi import MpiPart
from ddtop.wire.records import OpenCall
from tests.jobs import brief
from tests.mpi_jobs import WORLD, MpiJob, sent
from tests.ranks import unix_ns


def test_ranks_that_spin_in_a_barrier_wait_for_the_one_that_sleeps():
    job = MpiJob()
    job.passes(10)
    job.in_collective("Barrier", 0, 1)
    job.ranks[2].stands_at("load", "/home/ada/sim.py", 40)
    job.passes(8)

    finding = job.finding()

    assert brief(finding) == ("critical", "not-in-collective", (2,))
    assert finding.victims == (0, 1)
    assert "ranks 0,1 wait for it in Barrier #21 of MPI_COMM_WORLD" in finding.summary
    assert job.snapshot().rank(0).spinning


def test_a_rank_whose_call_holds_the_gil_is_seen_by_its_relay():
    """The first lowercase allreduce on a communicator silences the agent: it is in a call, not frozen."""
    job = MpiJob()
    job.passes(10)
    job.in_collective("allreduce", 0, 1, by_relay=True)
    job.ranks[2].stands_at("load")
    job.passes(9)

    assert job.kinds() == [("critical", "not-in-collective", (2,))]


def test_two_calls_at_one_number_are_named_though_one_side_is_silent():
    job = MpiJob(2)
    job.passes(10)
    job.in_collective("allreduce", 0, by_relay=True)
    job.in_collective("Barrier", 1)
    job.passes(8)

    finding = job.finding()

    assert brief(finding) == ("critical", "collective-mismatch", (0, 1))
    assert "rank 0: allreduce, rank 1: Barrier" in finding.summary


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"nbytes": 800}, {"nbytes": 1600}, "Allreduce of 800 bytes"),
        ({"peer": 0}, {"peer": 2}, "root 2"),
    ],
)
def test_lengths_and_roots_that_differ_are_a_mismatch_of_the_minority(one, other, said):
    name = "Bcast" if "peer" in one else "Allreduce"
    job = MpiJob(4)
    job.passes(10)
    job.in_collective(name, 0, 1, 3, **one)
    job.in_collective(name, 2, **other)
    job.passes(8)

    finding = job.finding()

    assert brief(finding) == ("critical", "collective-mismatch", (2,))
    assert said in finding.summary


def test_a_length_that_is_not_known_on_one_side_is_no_mismatch():
    job = MpiJob()
    job.passes(10)
    job.in_collective("Allreduce", 0, nbytes=800)
    job.in_collective("Allreduce", 1)
    job.ranks[2].stands_at("load")
    job.passes(8)

    assert job.kinds() == [("critical", "not-in-collective", (2,))]


def test_barrier_and_its_lowercase_twin_are_one_collective():
    job = MpiJob()
    job.passes(10)
    job.in_collective("Barrier", 0)
    job.in_collective("barrier", 1)
    job.ranks[2].stands_at("load")
    job.passes(8)

    assert job.kinds() == [("critical", "not-in-collective", (2,))]


def test_who_waits_for_a_broadcast_waits_for_its_root_alone():
    """Rank 1 has not come either, but from it nothing is due."""
    job = MpiJob(3)
    job.passes(10)
    job.in_collective("bcast", 2, peer=0)
    job.ranks[0].stands_at("read_input", line=12)
    job.ranks[1].works_at("prepare", line=30)
    job.passes(8)

    finding = job.finding()

    assert brief(finding) == ("critical", "not-in-collective", (0,))
    assert finding.victims == (2,)


def test_a_wrong_tag_is_named_with_what_was_sent():
    job = MpiJob(2)
    job.passes(10)
    job.in_collective("Barrier", 0)
    job.inside(0, job.ranks[0].mpi.calls[0], traffic=(sent(1, 7),))
    job.in_single(1, "recv", 0, 99, traffic=(sent(0, 99, 0, 1),))
    job.passes(8)

    finding = job.finding()

    assert brief(finding) == ("critical", "unmatched-p2p", (1,))
    assert "recv from rank 0, tag 99" in finding.summary
    assert "rank 0 has sent to rank 1: 1 with tag 7 (receives begun: 0), none with tag 99" in finding.evidence


def test_a_ring_of_large_sends_is_a_cycle():
    job = MpiJob(3)
    job.passes(10)
    for rank in range(3):
        job.in_single(rank, "Send", (rank + 1) % 3, 3)
    job.passes(8)

    finding = job.finding()

    assert brief(finding) == ("critical", "wait-cycle", (0, 1, 2))
    assert "one Sendrecv" in finding.advice


def test_the_halves_of_two_sendrecvs_that_miss_each_other_are_named():
    job = MpiJob(2)
    job.passes(10)
    for rank in range(2):
        job.waits_for(rank, "sendrecv", ("Send", 1 - rank, 1), ("Recv", 1 - rank, 2))
    job.passes(8)

    finding = job.finding()

    assert brief(finding) == ("critical", "unmatched-p2p", (0, 1))
    assert "sendrecv: Recv from rank 1, tag 2" in finding.summary
    assert "rank 1 is in sendrecv: Send to rank 0, tag 1" in finding.summary


def test_of_several_requests_only_those_that_are_owed_are_waited_for():
    """Rank 1 has sent its part and computes on; rank 2 sleeps."""
    job = MpiJob(3)
    job.passes(10)
    job.waits_for(0, "Waitall", ("Irecv", 1, 5), ("Irecv", 2, 5), traffic=(sent(1, 5, 0, 1), sent(2, 5, 0, 1)))
    job.ranks[1].works_at("compute")
    job.outside(1, traffic=(sent(0, 5),))
    job.ranks[2].stands_at("load")
    job.outside(2)
    job.passes(8)

    assert job.kinds() == [("critical", "not-in-collective", (2,))]


def test_a_master_that_takes_from_anybody_waits_for_nobody_while_one_may_still_send():
    job = MpiJob(3)
    job.passes(10)
    job.in_single(0, "recv", None, None)
    job.in_single(1, "recv", 0, 4)
    job.ranks[2].works_at("compute")
    job.passes(40)

    assert job.kinds() == []


def test_a_receive_from_anybody_that_nobody_can_send_to_is_named():
    job = MpiJob(3)
    job.passes(10)
    job.in_single(0, "recv", None, 4)
    job.in_collective("Barrier", 1, 2)
    job.passes(8)

    finding = job.finding()

    assert brief(finding) == ("critical", "unmatched-p2p", (0,))
    assert "recv from any rank, tag 4" in finding.summary


def test_a_receive_from_itself_without_a_send_is_named():
    job = MpiJob(2)
    job.passes(10)
    job.in_collective("Barrier", 0)
    job.in_single(1, "recv", 1, 7)
    job.passes(8)

    assert job.kinds() == [("critical", "unmatched-p2p", (1,))]


def test_a_rank_in_finalize_has_left_and_is_no_worker_though_it_spins():
    job = MpiJob(2)
    job.passes(10)
    job.in_collective("Barrier", 0)
    job.ranks[1].works_at("main", line=99)
    job.outside(1, finalize_since_unix_ns=unix_ns(job.now))
    job.passes(10)

    assert job.kinds() == [("critical", "left-early", (1,))]


def test_the_rank_that_raised_and_hangs_in_finalize_is_named():
    job = MpiJob(2)
    job.passes(10)
    job.ranks[1].raises("ValueError", "boom")
    job.ranks[1].seen_outside = {"exiting": True}
    job.in_collective("Barrier", 0)
    job.passes(5)

    finding = job.finding()

    assert brief(finding) == ("critical", "rank-crashed", (1,))
    assert "its process lingers" in finding.summary


def test_a_rank_before_mpi_init_is_late_and_the_call_has_its_name():
    job = MpiJob(2)
    for rank in job.ranks:
        rank.mpi, rank.iteration, rank.phase, rank.trains = None, None, "starting", False
    job.ranks[0].calls = [OpenCall("MPI_Init", unix_ns(job.now))]
    job.ranks[0].cores = 1.0
    job.ranks[0].seen_outside = {"init_since_unix_ns": unix_ns(job.now)}
    job.ranks[1].stands_at("wait_for_licence")
    job.passes(0.5)
    job.ranks[0].reports = False
    job.passes(12)

    finding = job.finding()

    assert brief(finding) == ("critical", "late-to-init", (1,))
    assert "not in MPI_Init yet; rank 0 waits in MPI_Init for it" in finding.summary
    assert job.snapshot().rank(0).state.value == "joining"


def test_a_collective_that_one_side_has_passed_is_compared_from_memory():
    """A small bcast is over for its root at once; what the others call at that number is something else."""
    job = MpiJob(2)
    job.passes(10)
    job.in_collective("Barrier", 1)
    job.ranks[0].stands_at("write")
    job.outside(0, done=21)
    job.ranks[0].mpi = msgspec.structs.replace(job.ranks[0].mpi, done=(MpiPart("bcast", WORLD, 21, 0),))
    job.passes(8)

    assert job.kinds()[0] == ("critical", "collective-mismatch", (0, 1))


def test_a_truncated_message_of_a_collective_is_a_mismatch_and_not_only_a_crash():
    job = MpiJob(2)
    job.passes(10)
    job.ranks[1].raises("Exception", "MPI_ERR_TRUNCATE: message truncated")
    failed = job.call("Allreduce", group=WORLD, seq=21, nbytes=800)
    job.outside(1, done=21, failed=failed)
    job.ranks[0].stands_at("write")
    job.outside(0, done=21)
    job.ranks[0].mpi = msgspec.structs.replace(
        job.ranks[0].mpi, done=(MpiPart("Allreduce", WORLD, 21, None, None, 1600),)
    )
    job.passes(3)

    finding = job.finding()

    assert brief(finding) == ("critical", "collective-mismatch", (1,))
    assert "Allreduce of 800 bytes (#21 of MPI_COMM_WORLD)" in finding.summary
    assert "rank 0: Allreduce of 1,600 bytes (#21)" in finding.evidence


def test_a_truncated_message_is_told_once_though_the_raiser_lingers_in_its_call():
    job = MpiJob(2)
    job.passes(10)
    job.in_collective("Allreduce", 0, nbytes=1600)
    job.ranks[1].raises("Exception", "MPI_ERR_TRUNCATE: message truncated")
    call = job.call("Allreduce", group=WORLD, seq=21, nbytes=800)
    job.outside(1, done=21, failed=call, finalize_since_unix_ns=unix_ns(job.now))
    job.ranks[1].mpi = msgspec.structs.replace(
        job.ranks[1].mpi, done=(MpiPart("Allreduce", WORLD, 21, None, None, 800),)
    )
    job.passes(8)

    assert job.kinds() == [("critical", "collective-mismatch", (1,))]


def test_of_lengths_that_may_differ_nothing_is_told_where_the_roots_do():
    job = MpiJob(2)
    job.passes(10)
    job.in_collective("Reduce", 0, peer=0)
    job.in_collective("Reduce", 1, peer=1, nbytes=800)
    job.passes(8)

    assert "rank 0: Reduce, root 0, rank 1: Reduce, root 1" in job.finding().summary


def _started(job: MpiJob, number: int, *names: str) -> None:
    """It waits for collectives that it has started: of these only names and numbers are known."""
    parts = tuple(MpiPart(name, WORLD, job.done + 1 + place) for place, name in enumerate(names))
    job.inside(number, job.call("Waitall", parts=parts, parts_total=len(parts)))


def test_of_a_started_broadcast_that_is_waited_for_the_root_is_not_known_and_does_not_differ():
    job = MpiJob(2)
    job.passes(10)
    _started(job, 0, "Ibcast")
    job.in_collective("Ibcast", 1, peer=1, nbytes=80)
    job.passes(4)

    assert job.kinds() == []


def test_who_has_started_a_collective_and_then_sleeps_holds_up_those_that_wait_for_it():
    """MPI moves on only while the ranks are in it."""
    job = MpiJob(2)
    job.passes(10)
    _started(job, 0, "Ibcast", "Iallreduce")
    job.ranks[1].stands_at("compute", line=12)
    job.outside(1, done=22)
    job.passes(8)

    finding = job.finding()

    assert brief(finding) == ("critical", "not-in-collective", (1,))
    assert "moves on only in calls of MPI" in finding.advice


def test_two_that_receive_from_each_other_are_told_that_nobody_sends():
    job = MpiJob(2)
    job.passes(10)
    job.in_single(0, "recv", 1, 4)
    job.in_single(1, "recv", 0, 4)
    job.passes(8)

    assert brief(job.finding()) == ("critical", "wait-cycle", (0, 1))
    assert job.finding().advice.startswith("nobody sends")


def test_a_master_that_forgot_a_worker_is_named_with_it_and_not_who_is_done():
    job = MpiJob(3)
    job.passes(10)
    job.in_single(0, "recv", None, None)
    job.in_single(1, "recv", 0, None)
    _finalizing(job, 2)
    job.passes(10)

    assert job.kinds() == [("critical", "wait-cycle", (0, 1))]


def test_a_rank_that_leaves_without_finalize_went_first_though_the_launcher_kills_the_other():
    """os._exit(0) in one rank: mpirun ends the others, by SIGKILL."""
    job = MpiJob(2)
    job.passes(10)
    job.ranks[0].ends(0, exiting=False)
    job.ranks[1].ends(signal=9, later_s=0.05)
    job.passes(3)

    assert job.kinds() == [("critical", "left-early", (0,))]


def _finalizing(job: MpiJob, *numbers: int) -> None:
    for number in numbers:
        job.ranks[number].trains, job.ranks[number].cores = False, 1.0
        job.outside(number, finalize_since_unix_ns=unix_ns(job.now))


def test_a_rank_that_hangs_while_the_others_are_in_finalize_is_named():
    job = MpiJob(3)
    job.passes(10)
    _finalizing(job, 0, 1)
    job.ranks[2].stands_at("save", line=77)
    job.outside(2)
    job.passes(10)

    finding = job.finding()

    assert brief(finding) == ("critical", "not-in-collective", (2,))
    assert finding.victims == (0, 1)
    assert "ranks 0,1 wait for it in MPI_Finalize" in finding.summary


def test_who_is_done_early_keeps_nobody_waiting_while_the_others_work():
    job = MpiJob(3)
    job.passes(10)
    _finalizing(job, 2)
    job.ranks[0].works_at("relax")
    job.ranks[1].works_at("relax")
    job.passes(90)

    assert job.kinds() == []


def test_of_a_rank_that_waits_for_a_child_while_the_others_are_done_only_a_warning_is_given():
    job = MpiJob(2)
    job.passes(10)
    _finalizing(job, 0)
    job.ranks[1].stands_at("pack_results", waits_on="child")
    job.outside(1)
    job.passes(20)

    assert job.kinds() == [("warning", "not-in-collective", (1,))]


def test_ranks_that_wait_for_each_other_are_named_and_not_those_in_finalize():
    job = MpiJob(3)
    job.passes(10)
    _finalizing(job, 2)
    for rank in range(2):
        job.in_single(rank, "Ssend", 1 - rank, 3)
    job.passes(10)

    assert job.kinds() == [("critical", "wait-cycle", (0, 1))]


def test_the_receive_is_told_where_a_request_to_send_is_open_too():
    job = MpiJob(2)
    job.passes(10)
    job.waits_for(0, "Waitall", ("Isend", 1, 12), ("Irecv", 1, 11))
    job.in_collective("Barrier", 1)
    job.passes(8)

    assert "Waitall for Irecv from rank 1, tag 11" in job.finding().summary


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
    """Workers that run another program or talk to a server need no CPU, and that is their work."""
    job = MpiJob(3)
    job.passes(10)
    job.in_single(0, "recv", None, None)
    job.in_single(2, "recv", 0, 4)
    job.ranks[1].stands_at("fetch", waits_on=waits_on)
    job.ranks[1].wchan = wchan
    job.outside(1)
    job.passes(20)

    assert job.kinds() == kinds


@pytest.mark.parametrize(
    ("third", "kinds"), [("stands_at", [("critical", "not-in-collective", (1, 2))]), ("works_at", [])]
)
def test_a_fence_is_held_up_by_the_others_only_where_all_of_them_stand_still(third, kinds):
    """Which ranks share the window is not known."""
    job = MpiJob(3)
    job.passes(10)
    job.inside(0, job.call("Win.Fence"))
    job.ranks[1].stands_at("load", line=40)
    job.outside(1)
    getattr(job.ranks[2], third)("load", line=40)
    job.outside(2)
    job.passes(10)

    assert job.kinds() == kinds
