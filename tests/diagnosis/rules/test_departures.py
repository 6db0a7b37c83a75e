"""Ranks that are gone: which ended first, which were a consequence, and which were no fault."""

import pytest

from tests.diagnosis.rules.departures import RESET, all_raise
from tests.jobs import FakeJob, trained
from tests.mpi_jobs import MpiJob

# -- rank-crashed


def test_the_first_exception_is_named_and_the_connection_errors_are_folded():
    """Four tracebacks are interleaved; three of them are "connection closed by peer"."""
    job = trained()
    job.ranks[1].raises("ValueError", "bad sample 7")
    job.ranks[1].ends(1, later_s=0.2)
    job.passes(0.5)
    for number in (0, 2, 3):
        job.ranks[number].raises("RuntimeError", RESET)
        job.ranks[number].ends(1, later_s=0.3)
    finding = job.passes(3).finds("critical", "rank-crashed", 1)

    assert finding.summary.startswith("rank 1 raised ValueError: bad sample 7 at data.py:40 load")
    assert job.snapshot().ended.first_rank == 1


def test_ranks_that_raise_the_same_at_once_are_all_named():
    """Every rank makes the same mistake of the user, so rank 0 did not cause the other ends."""
    job = all_raise(0.0, 0.1, 0.3, 0.2)
    finding = job.finds("critical", "rank-crashed", 0, 1, 2, 3)

    assert finding.victims == ()
    assert finding.summary.startswith(
        "all ranks raised RuntimeError: mat1 and mat2 shapes cannot be"
    )
    assert "ended after it" not in finding.summary
    assert "rank 0" not in finding.advice
    assert job.snapshot().ended.reason == "all ranks raised RuntimeError"


def test_when_mpirun_is_killed_no_rank_is_the_first():
    """Ranks of Open MPI end themselves when their launcher's socket closes."""
    job = MpiJob(3).passes(3)
    for rank in job.ranks:
        rank.ends(195, later_s=0.02 * rank.number)
    finding = job.passes(3).finding()

    assert (finding.ranks, finding.victims) == ((0, 1, 2), ())
    assert finding.summary == "ranks 0-2 ended with exit code 195: their launcher is gone"
    assert "who killed mpirun" in finding.advice
    assert job.snapshot().ended.reason == "the ranks lost their launcher"


def test_a_crash_is_one_finding_before_and_after_others_wait_for_the_rank():
    """The exception is reported before the others reach the collective."""
    job = trained()
    job.ranks[1].raises("ValueError", "bad sample 7")
    job.passes(2)
    job.others_wait(1)
    seen = []
    for _ in range(8):
        job.passes(0.5)
        seen.append([finding.kind for finding in job.verdict().findings])

    assert job.finding().group is not None
    assert seen == [["rank-crashed"]] * 8


@pytest.mark.parametrize(
    ("kind", "text", "advice"),
    [
        ("MemoryError", "", "rank 2 asked for more memory than it may have"),
        ("OutOfMemoryError", "CUDA out of memory", "the rank itself uses the memory"),
        ("OSError", "[Errno 28] No space left on device", "rank 2 found its disk full"),
        ("OSError", "[Errno 27] File too large", "rank 2 wrote a larger file than it may"),
        ("OSError", "[Errno 24] Too many open files: 'a.pt'", "rank 2 has more files open"),
        (
            "RuntimeError",
            "Expected to have finished reduction in the prior iteration before starting a new one.",
            "some parameters had no part in the loss of rank 2",
        ),
        ("RuntimeError", "stack expects each tensor to be equal size, but got [3]", "the samples"),
    ],
)
def test_a_rank_that_lacks_something_is_told_what(kind, text, advice):
    job = trained()
    job.ranks[2].raises(kind, text)
    job.ranks[2].ends(1)

    assert job.passes(3).finding().advice.startswith(advice)


# -- rank-killed


@pytest.mark.parametrize(
    ("ending", "ours"),
    [
        ({"signal": 11, "walking": True}, True),
        ({"signal": 6, "walking": True}, True),
        ({"signal": 11}, False),
        # Somebody else ended it in that moment.
        ({"signal": 9, "walking": True}, False),
        ({"signal": 15, "walking": True}, False),
    ],
)
def test_a_rank_that_dies_while_ddtop_reads_its_frames_was_crashed_by_ddtop(ending, ours):
    job = trained()
    job.ranks[3].ends(**ending)
    job.others_wait(3)
    finding = job.passes(3).finds("critical", "rank-killed", 3)

    assert finding.summary.startswith("ddtop's own thread crashed rank 3 (pid 4803): SIG") is ours
    assert finding.summary.startswith("rank 3 (pid 4803) was killed by SIG") is not ours
    assert ("DDTOP_FRAMES=off" in finding.advice) is ours


def test_the_launchers_sigterm_after_a_first_death_is_a_consequence():
    """Three ranks "killed by SIGTERM" hide the one that was killed by SIGKILL."""
    job = trained()
    job.ranks[2].ends(signal=9)
    job.passes(0.5)
    for number in (0, 1, 3):
        job.ranks[number].ends(signal=15, later_s=0.01 * number)
    job.passes(4)

    assert job.ever() == [("critical", "rank-killed", (2,))]
    assert job.snapshot().ended.reason == "rank 2 went first: SIGKILL"


# -- left-early


def test_ranks_that_finish_some_seconds_apart_are_healthy():
    """Rank 0 writes the final checkpoint; the ranks need nothing more from each other."""
    job = trained()
    for number in (1, 2, 3):
        job.ranks[number].ends(0, later_s=0.2 * number)
    job.ranks[0].works_at("save_final")
    job.passes(20)
    assert job.ever() == []
    job.ranks[0].ends(0)
    job.passes(2)

    assert job.ever() == []
    assert (job.verdict().health, job.verdict().calm) == ("ok", "ok: all ranks finished")


def test_an_early_finisher_whose_peers_need_nothing_more_is_silent():
    job = trained()
    job.ranks[3].ends(0)
    job.trains(10)

    assert job.ever() == []
    assert job.verdict().calm == "ok: 3/4 moving, rank 3 finished, watched 20 s"


# -- elastic restart


def test_between_two_attempts_the_job_has_not_ended():
    job = FakeJob(4)
    job.launcher_alive = True
    job.trains(10)
    for rank in job.ranks:
        rank.ends(1)

    assert job.passes(3).snapshot().ended is None
