"""A rank in one uninterruptible sleep by a dead file server, and busy ranks that look like it."""

import pytest

from tests.diagnosis.rules.io_stall import stalled
from tests.jobs import WORLD, trained


def test_a_rank_whose_file_server_died_is_named_with_its_file():
    """Rank 3 saved to NFS. The other three reported NCCL errors, and kill -9 had no effect."""
    finding = stalled(3).passes(8).finds("critical", "io-stall", 3)

    assert finding.victims == (0, 1, 2)
    assert finding.summary == (
        "rank 3 has been in uninterruptible sleep (nfs_wait_bit_killable) for 7 s, writing"
        " /ckpt/7.pt in save (train.py:88); ranks 0-2 wait for it in all_reduce #101 of"
        " default_pg"
    )
    assert (finding.group, finding.op, finding.seq) == (WORLD, "all_reduce", 101)
    assert finding.evidence[0].endswith(
        "state D, 0% of a core, wchan nfs_wait_bit_killable, in write of /ckpt/7.pt"
    )
    assert "kill -9 has no effect" in finding.advice


def test_it_replaces_not_in_collective_for_that_rank_only():
    job = stalled(3)
    job.ranks[1].comes_back()
    job.ranks[1].stands_at("fetch")
    for condition in job.ranks[1].standings.values():
        condition.enqueued -= 1
        condition.completed = condition.enqueued
    job.passes(12)

    assert job.kinds() == [("critical", "not-in-collective", (1,)), ("critical", "io-stall", (3,))]


def test_several_ranks_on_one_dead_server_are_one_finding():
    finding = stalled(1, 3).passes(8).finds("critical", "io-stall", 1, 3)

    assert finding.victims == (0, 2)
    assert finding.summary.startswith("ranks 1,3 have been in uninterruptible sleep")
    assert "ranks 0,2 wait for them" in finding.summary


def test_it_is_said_though_its_interpreter_is_frozen():
    """A page of a mapped file does not arrive, and the GIL is held all the while."""
    job = stalled(2, wchan="folio_wait_bit_common", syscall=None, file=None)
    job.ranks[2].reports = False

    assert job.passes(12).kinds() == [("critical", "io-stall", (2,))]


@pytest.mark.parametrize("moves", ["io_per_s", "wakes_per_s"])
def test_a_big_checkpoint_that_passes_through_d_all_the_time_is_no_stall(moves):
    """Every look finds it in D with the same wchan, but its counters or its wake-ups move."""
    job = stalled(0)
    setattr(job.ranks[0], moves, {"io_per_s": 80e6, "wakes_per_s": 40.0}[moves])

    assert "io-stall" not in {kind for _, kind, _ in job.passes(45).ever()}


def test_a_sleep_in_d_just_under_the_limit_is_silent():
    """A page-cache miss, a slow open."""
    job = stalled(0).passes(4.5)
    job.goes_on()

    assert job.trains(10).ever() == []


def test_a_disk_that_answers_once_in_a_while_begins_anew():
    """Another wchan is another sleep."""
    job = stalled(0)
    for second in range(8):
        job.ranks[0].wchan = f"folio_wait_{second % 2}"
        job.passes(1)

    assert "io-stall" not in {kind for _, kind, _ in job.ever()}


def test_without_waiters_it_is_a_warning_after_half_a_minute():
    """All ranks read their first batch, so no rank is in a collective yet."""
    job = trained(2)
    for rank in job.ranks:
        rank.stands_at("load")
    job.ranks[1].is_stalled("load", syscall="read", file="/data/a.tar")
    job.passes(25)
    assert job.ever() == []

    (finding,) = job.passes(10).verdict().findings
    assert (finding.severity, finding.kind, finding.ranks) == ("warning", "io-stall", (1,))
    assert finding.victims == ()
    assert "reading /data/a.tar in load (train.py:88)" in finding.summary


def test_a_frozen_rank_in_state_d_is_stopped_and_not_stalled():
    """Version 1 of the freezer leaves its processes in D."""
    job = stalled(1, wchan="__refrigerator", syscall=None, file=None, frozen=True)
    finding = job.passes(8).finds("critical", "rank-stopped", 1)

    assert finding.summary.startswith("rank 1 has been frozen by its cgroup for")


def test_a_child_that_does_not_get_to_start_is_what_to_look_at():
    """A program on a dead mount: vfork keeps the parent in D until the child has called exec."""
    finding = stalled(1, wchan="kernel_clone", syscall="vfork", file=None).passes(8).finding()

    assert (
        "waiting for a child process to start its program in save (train.py:88)" in finding.summary
    )
    assert "--ppid 4801" in finding.advice


def test_after_the_server_came_back_it_clears():
    job = stalled(3).passes(8)
    assert job.kinds() == [("critical", "io-stall", (3,))]

    job.ranks[3].wchan, job.ranks[3].seen_outside = None, {}
    job.goes_on()

    assert job.trains(5).kinds() == []


def test_a_sleep_in_d_that_is_no_io_is_not_called_a_dead_disk():
    """A cgroup that the relay cannot read froze it in the nanosleep where it was."""
    job = stalled(1, wchan="hrtimer_nanosleep", syscall="clock_nanosleep", file=None)

    assert job.passes(8).kinds() == [("critical", "not-in-collective", (1,))]
